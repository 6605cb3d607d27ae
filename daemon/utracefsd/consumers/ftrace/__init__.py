"""The ftrace consumer: instances of ring buffer, enable switches and options; status bit 0.

instances       all instances, by name and number
instance        one instance: an administrator's operations on it
markers         trace_marker, trace_marker_raw
pid_lists       set_event_pid, set_event_notrace_pid
standing_files  standing_events, standing_filters, standing_triggers: applied to each new event
trigger/        the file `trigger` and its kinds, the file `hist`
event/          one event in one instance, and the record path
hist/           histograms: definition, table, text
text/           records as lines of `trace`, and its headers
buffer/         the ring buffer, its files and sizes, its snapshot
error_log       error_log
settings        the settings of an instance, with their options, which the next daemon takes over

A package imports only packages below it (contract in pyproject.toml).
"""
