"""The perf consumer: counting and sampling; status bit 1.

events   perf_event_open and its ioctls
_sink    the record path (compiled): the count, and the ring of samples
"""
