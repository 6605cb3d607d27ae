"""The ftrace consumer: instances of ring buffer, enable switches and options; status bit 0.

instances      all instances, by name and number
instance       one instance: what an administrator does to it
event_file     one event in one instance: whether its records are stored there
settings       what an instance is set to, and a successor gets
options        names and defaults of `trace_options`
buffer_store   where the ring buffer lives, and how large it is
markers        trace_marker, trace_marker_raw
error_log      error_log
event_words    which events a word written to `set_event` means
text           header lines of `trace`, `stats`

Compiled, because it runs for every record:

_sink          the record path: FtraceProbe, FtraceSink, trace clocks
_ring_buffer   the buffer of an instance and what reads it; include/ring_buffer.h has the ring of one cpu
_text          a record as a line of `trace`
_body          how the body of such a line is printed
_line          what a line is put together from
"""
