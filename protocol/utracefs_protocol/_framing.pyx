"""Finds where a MessagePack object ends, without building it.

A peer is hostile, so an object is decoded only when its extent is known: its length, its depth, and that it
ends within the limit. The walk keeps, per open array or map, the number of missing elements. A declared
length over the limit is refused before the bytes arrive, and so is a declared number of elements over it,
since each takes a byte at least: we never buffer an object that we refuse.
"""

import errno

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t

from utracefs_protocol.errors import ProtocolError

cdef extern from "bin.h" nogil:
    unsigned bin_get_header(const uint8_t *at, size_t length, uint32_t *size)

cdef enum:
    MAX_STACK = 64          # what max_nesting may be at most

cdef enum Outcome:
    INCOMPLETE = 0
    COMPLETE = 1
    TOO_LARGE = 2
    TOO_DEEP = 3
    BROKEN = 4

cdef struct Walk:
    uint64_t at             # bytes from the beginning of the object to the next element's type byte
    uint64_t to_come        # elements announced and not begun; each is a byte at least
    int depth               # open arrays and maps
    uint64_t left[MAX_STACK]    # elements missing in each of them, the one being walked included


cdef inline void begin(Walk *walk) noexcept nogil:
    walk.at = 0
    walk.to_come = 1
    walk.depth = 0


cdef inline uint64_t big_endian(const uint8_t *data, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | data[i]
    return value


cdef Outcome advance(Walk *walk, const uint8_t *data, uint64_t length, uint64_t max_object,
                     int max_nesting) noexcept nogil:
    """Continue the walk; `data` is the beginning of the object, of which `length` bytes are here."""
    cdef uint8_t kind
    cdef int size_bytes             # bytes of the length or count behind the type byte
    cdef uint64_t head, body, elements
    cdef bint container
    while True:
        if walk.at >= length:
            return INCOMPLETE
        kind = data[walk.at]
        size_bytes = 0
        body = 0
        elements = 0
        container = False
        # The type byte says how it continues: a length of `size_bytes`, then `body` bytes or `elements`.
        if kind <= 0x7F or kind >= 0xE0:        # positive and negative fixint
            pass
        elif kind <= 0x8F:                      # fixmap
            container = True
            elements = 2 * (kind & 0x0F)
        elif kind <= 0x9F:                      # fixarray
            container = True
            elements = kind & 0x0F
        elif kind <= 0xBF:                      # fixstr
            body = kind & 0x1F
        elif kind == 0xC1:
            return BROKEN
        elif kind <= 0xC3:                      # nil, false, true
            pass
        elif kind <= 0xC6:                      # bin 8, 16, 32
            size_bytes = 1 << (kind - 0xC4)
        elif kind <= 0xC9:                      # ext 8, 16, 32
            size_bytes = 1 << (kind - 0xC7)
            body = 1
        elif kind <= 0xCB:                      # float 32, 64
            body = 4 << (kind - 0xCA)
        elif kind <= 0xCF:                      # uint 8, 16, 32, 64
            body = 1 << (kind - 0xCC)
        elif kind <= 0xD3:                      # int 8, 16, 32, 64
            body = 1 << (kind - 0xD0)
        elif kind <= 0xD8:                      # fixext 1, 2, 4, 8, 16
            body = 1 + (1 << (kind - 0xD4))
        elif kind <= 0xDB:                      # str 8, 16, 32
            size_bytes = 1 << (kind - 0xD9)
        else:                                   # array 16, 32, map 16, 32
            container = True
            size_bytes = 2 if kind == 0xDC or kind == 0xDE else 4
        head = 1 + size_bytes
        if container and walk.depth >= max_nesting:
            return TOO_DEEP
        if length - walk.at < head:
            return INCOMPLETE
        if size_bytes:
            if container:
                elements = big_endian(data + walk.at + 1, size_bytes)
                if kind >= 0xDE:
                    elements *= 2
            else:
                body += big_endian(data + walk.at + 1, size_bytes)
        # Limits are checked by what the object claims, before its bytes are here: none are kept in vain.
        if walk.at + head + body + elements + (walk.to_come - 1) > max_object:
            return TOO_LARGE
        if length - walk.at < head + body:
            return INCOMPLETE
        # One object done, its elements to come.
        walk.at += head + body
        walk.to_come += elements - 1
        if elements:
            walk.left[walk.depth] = elements
            walk.depth += 1
            continue
        # It may have been the last element of the containers around it.
        while walk.depth:
            walk.left[walk.depth - 1] -= 1
            if walk.left[walk.depth - 1]:
                break
            walk.depth -= 1
        if walk.depth == 0:
            return COMPLETE


cdef raise_for(Outcome outcome, max_object, int max_nesting):
    if outcome == TOO_LARGE:
        raise ProtocolError(errno.EMSGSIZE, f"message of more than {max_object} bytes")
    if outcome == TOO_DEEP:
        raise ProtocolError(errno.EPROTO, f"arrays and maps nested more than {max_nesting} deep")
    raise ProtocolError(errno.EPROTO, "byte 0xc1, which begins no MessagePack object")


cdef uint64_t limit_of(max_object) except? 0:
    """The limit; for None one that sums here cannot reach without overflow."""
    return UINT64_MAX // 4 if max_object is None else <uint64_t> max_object


cdef class Scanner:
    """Walks one object after the other, and remembers its place in one that is not complete: after `scan`
    returned 0, call it again with the same object at `offset` (the buffer may have moved) and more bytes
    behind it."""
    cdef Walk walk
    cdef object max_object
    cdef uint64_t limit
    cdef int max_nesting

    def __init__(self, max_object: int | None = None, int max_nesting=8):
        if not 0 <= max_nesting <= MAX_STACK:
            raise ValueError(f"max_nesting {max_nesting}; at most {MAX_STACK}")
        self.max_object = max_object
        self.limit = limit_of(max_object)
        self.max_nesting = max_nesting
        begin(&self.walk)

    def scan(self, buffer: bytes | bytearray | memoryview, Py_ssize_t offset) -> int:
        """Offset of the byte after the object that begins at `offset`, or 0 while it is not complete.
        EMSGSIZE as soon as it must be longer than max_object, EPROTO (nested too deep, the invalid type
        byte)."""
        cdef Py_buffer view
        cdef Outcome outcome
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= offset <= view.len:
                raise IndexError(f"offset {offset} in {view.len} bytes")
            outcome = advance(&self.walk, <const uint8_t *> view.buf + offset, view.len - offset, self.limit,
                              self.max_nesting)
        finally:
            PyBuffer_Release(&view)
        if outcome == INCOMPLETE:
            return 0
        cdef Py_ssize_t end = offset + <Py_ssize_t> self.walk.at
        begin(&self.walk)
        if outcome != COMPLETE:
            raise_for(outcome, self.max_object, self.max_nesting)
        return end


def record_run(
    buffer: bytes | bytearray | memoryview, Py_ssize_t offset, max_object: int | None = None
) -> int:
    """Offset of the byte after the run of complete bin objects that begins at `offset`, which ends in front
    of an incomplete or too large one."""
    cdef Py_buffer view
    cdef const uint8_t *data
    cdef uint64_t limit = limit_of(max_object)
    cdef uint64_t at, length
    cdef unsigned head
    cdef uint32_t body
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= offset <= view.len:
            raise IndexError(f"offset {offset} in {view.len} bytes")
        data = <const uint8_t *> view.buf
        length = view.len
        at = offset
        with nogil:
            while True:
                head = bin_get_header(data + at, length - at, &body)
                if not head or <uint64_t> head + body > limit or length - at < <uint64_t> head + body:
                    break
                at += head + body
    finally:
        PyBuffer_Release(&view)
    return at
