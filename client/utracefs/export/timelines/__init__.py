"""Formats for timelines: events become slices and counters on tracks of processes and threads."""
