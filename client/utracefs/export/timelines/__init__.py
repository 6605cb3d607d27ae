"""Formats for timelines, with slices and counters on tracks of processes and threads."""
