"""Formats for timelines, with slices and counters on tracks of processes and threads.

All formats use one model: `tracks` has the user's options, `_track_writer` decides what a record becomes
(point, begin, end, span, count) and which processes, threads and lanes are new, `_placing` chooses the lane
of a slice; `perfetto` and `chrome` only encode the result. Perfetto's trace processor checks it
(tests/client/export/timelines/trace_processor.py).
"""
