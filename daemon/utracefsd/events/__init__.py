"""Events: declarations, references, status bytes, and tracepoints.

event           one event
event_table     the life of events; only this module changes status bytes
event_ids       trace event ids
dynamic_events  the lines with which administrators create and delete events
synthetic       definitions of synthetic events
idle_events     events to remove when there is no space for another
enablers        words of other programs that follow the status
notifier        enablers that their connections set when notified
status_file     the page of status bytes that programs map
lowest_free     allocates the lowest free number: event ids, status indexes, numbers of instances
_tracepoint     the compiled side: checks records and passes them to probes
"""
