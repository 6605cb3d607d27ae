"""The ring buffer of an instance.

buffer_store   its place (files or memory) and its size
snapshot       the spare buffer, and swapping it with the buffer
stats          the file `stats`
_ring_buffer   compiled: the buffer and its readers; include/ring_buffer.h has the ring of one cpu,
               include/spare.h the swap
"""
