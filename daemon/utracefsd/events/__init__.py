"""Events: what is declared, who refers to it, what its status byte says, and where its records fire.

event           one event
event_table     the life of events; the only place that changes status
dynamic_events  the lines by which administrators create and delete events
enablers        words of other programs that follow the status
status_file     the page of status bytes that programs map
lowest_free     gives out the lowest free number: event ids, status indexes, numbers of instances
_tracepoint     the compiled side: where an event's records fire
"""
