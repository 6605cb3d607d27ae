"""The ring buffer of an instance.

buffer_store   its place (files or memory) and its size
snapshot       the spare buffer, and swapping it with the buffer
stats          the file `stats`
_ring_buffer   compiled: the buffer and its readers; in include/ the ring of one cpu (ring_buffer.h, also its
               writer; ring_reading.h; ring_mapping.h) and the swap (spare.h)
"""
