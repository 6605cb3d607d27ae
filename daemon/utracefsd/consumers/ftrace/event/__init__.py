"""One event in one instance, and the way of its records into the ring buffer.

event_file        enabled, soft-disabled, attached; filter and triggers of each event
event_words       the events that a word written to `set_event` selects
inject            the file `inject`
_sink             compiled, the record path: FtraceProbe (one event), FtraceSink (the instance, its clock)
_trigger_cells    compiled: the base of all triggers on the record path; their counts and switches, in a file
                  that outlives the daemon
"""
