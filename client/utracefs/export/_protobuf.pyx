"""Protobuf, for writers.

A message is a sequence of (number << 3 | type, value); type 0 is a varint (7 bits per byte, the lowest first,
the top bit set in all but the last), type 2 a varint of the length and the bytes. Negative numbers are
varints of 64 bit. Messages whose length is known only at their end get one of 4 bytes, `80 80 80 00` being 0,
as in Perfetto's own writer.
"""

from libc.stdint cimport uint64_t

from utracefs_protocol.text import clean


cpdef bytes utf8(str text):
    """U+FFFD for each byte that is not UTF-8."""
    return clean(text).encode()


cpdef bytes varint(uint64_t value):
    cdef list found = []
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


cpdef bytes tagged(int tag, uint64_t value):
    return varint(tag) + varint(value)


cpdef bytes message(int tag, bytes body):
    """With its tag and length."""
    return varint(tag) + varint(len(body)) + body
