# cython: boundscheck=False, wraparound=False
"""The fields of a record as text, by the print fmt of its event's format: as `trace-cmd report` prints them.

    op          prints
    UNSIGNED    %u, %d of what has no sign
    SIGNED      %d
    HEX_NUMBER  %x
    POINTER     0x and %x
    SYMBOL      the name of an address, or as POINTER
    STRING      bytes up to a NUL or the end
    HEX_BYTES   two digits a byte
    FLOAT       as Python prints it, though a kernel prints its bits as an integer
    ARRAY       its numbers as JSON
    FORMATTED   any of these with a width or flags: by Python's `%`, since they are rare

print_fmt.py parses the print fmt, once per event. A record prints `<OVERFLOW>` alone if any of its fields
reaches beyond its end.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from utracefs_protocol.events._fields cimport find_bytes, put_elements, set_elements, set_place
from utracefs_protocol.events._line cimport *

from utracefs_protocol.limits import ENTRY_HEADER_SIZE
from utracefs_protocol.events.print_fmt import How, conversions
from utracefs_protocol.text import bytes_of, text_of
#: from utracefs_protocol.events.event_format import EventFormat

cdef size_t HEADER = ENTRY_HEADER_SIZE

cdef dict OPS = {
    How.STRING: STRING,
    How.HEX: HEX_BYTES,
    How.POINTER: POINTER,
    How.SYMBOL: SYMBOL,
    How.FLOAT: FLOAT,
    How.ARRAY: ARRAY,
}


cdef class EventPrinter:
    """Prints the records of one event.

    event: its EventFormat. system: its system; markers of `ftrace` lose the newline at their end.
    symbols: address to name, for `%ps`. one_line: print `?` for LF and CR in a string, which would begin a
    line that looks like another record. (The kernel and trace-cmd print them.)
    """

    def __cinit__(
        self, event: EventFormat, *, str system="", symbols: Mapping[int, str] | None = None,
        bint one_line=False
    ):
        cdef Step *step
        cdef bytes before
        self.name = text_of(event.name)
        self._drops_newline = system == "ftrace"
        self._one_line = one_line
        self._is_raw_data = system == "ftrace" and self.name == "raw_data"
        self._symbols = symbols if symbols is not None else {}
        self._pieces = conversions(event)
        self._texts = [bytes_of(piece.before) for piece in self._pieces]
        self._count = len(self._pieces)
        self._steps = <Step *>malloc(sizeof(Step) * (self._count + 1))
        if self._steps == NULL:
            raise MemoryError
        for i, piece in enumerate(self._pieces):
            step = &self._steps[i]
            before = self._texts[i]
            step.before = PyBytes_AS_STRING(before)
            step.before_size = <size_t>PyBytes_GET_SIZE(before)
            step.op = TEXT_ONLY
            if piece.field is not None:
                set_place(&step.place, piece.field)
                set_elements(&step.elements, piece.field)
                step.op = self._op(piece)

    @staticmethod
    def _op(piece):
        if piece.how is How.NUMBER:
            if not piece.format:
                return SIGNED if piece.signed else UNSIGNED
            return HEX_NUMBER if piece.format == "%x" and not piece.signed else FORMATTED
        return FORMATTED if piece.format else OPS[piece.how]

    def __dealloc__(self):
        free(self._steps)

    def text(self, entry: bytes | bytearray | memoryview) -> str:
        """The fields of an entry, common fields first, of any length and content."""
        cdef Py_buffer view
        cdef Line line
        cdef size_t room = 512
        PyObject_GetBuffer(entry, &view, PyBUF_SIMPLE)
        try:
            while True:
                text = PyBytes_FromStringAndSize(NULL, room)
                line.start = line.p = PyBytes_AS_STRING(text)
                line.end = line.start + room
                line.full = False
                self.put(&line, <const uint8_t *>view.buf, view.len)
                if not line.full:
                    return text_of(text[:line.p - line.start])
                room *= 4
        finally:
            PyBuffer_Release(&view)

    cdef int put(self, Line *line, const uint8_t *entry, size_t size) except -1:
        """Append the same to a line."""
        cdef char *start = line.p
        if self._is_raw_data:
            put_raw_data(line, entry, size)
        elif not self._put_steps(line, entry, size):
            line.p = start
            put(line, b"<OVERFLOW>", 10)
        elif self._drops_newline and line.p > start and (line.p - 1)[0] == c'\n':
            line.p -= 1
        if self._one_line:
            while start < line.p:
                if start[0] == c'\n' or start[0] == c'\r':
                    start[0] = c'?'
                start += 1
        return 0

    cdef bint _put_steps(self, Line *line, const uint8_t *entry, size_t size) except -1:
        """Whether all fields lie within the entry."""
        cdef const Step *step
        cdef const uint8_t *data
        cdef size_t length
        cdef Py_ssize_t i
        for i in range(self._count):
            step = &self._steps[i]
            put(line, step.before, step.before_size)
            if step.op == TEXT_ONLY:
                continue
            if not find_bytes(&step.place, entry, size, &data, &length):
                return False
            if step.op == UNSIGNED:
                put_decimal(line, load_unsigned(data, length), 0, c' ')
            elif step.op == SIGNED:
                put_signed(line, load_signed(data, length))
            elif step.op == STRING:
                put_string(line, data, length)
            elif step.op == HEX_BYTES:
                put_hex_pairs(line, data, length)
            elif step.op == FLOAT:
                put_float(line, load_float(data, length))
            elif step.op == ARRAY:
                put_elements(line, step.elements, data, length)
            elif step.op == HEX_NUMBER:
                put_hex(line, load_unsigned(data, length), 0)
            elif step.op == POINTER:
                put(line, b"0x", 2)
                put_hex(line, load_unsigned(data, length), 0)
            else:
                self._put_object(line, i, data, length)
        return True

    cdef int _put_object(self, Line *line, Py_ssize_t i, const uint8_t *data, size_t length) except -1:
        piece = self._pieces[i]
        how = piece.how
        cdef bytes text
        if how is How.STRING:
            text = data[:length]
            value = text_of(text.partition(b"\0")[0])
        elif how is How.HEX:
            text = data[:length]
            value = text.hex()
        else:
            value = load_signed(data, length) if piece.signed else load_unsigned(data, length)
            if how is How.CHARACTER:
                value = chr(value & 0xFF)
            elif how is How.SYMBOL:
                value = self._symbols.get(value) or f"0x{value:x}"
            elif how is How.POINTER:
                value = f"0x{value:x}"
        text = bytes_of((piece.format or "%s") % (value,))
        put(line, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        return 0


cdef void put_raw_data(Line *line, const uint8_t *entry, size_t size) noexcept nogil:
    """trace_marker_raw: a tag and bytes, as the kernel prints them (and trace-cmd for itself)."""
    if size < HEADER + 4:
        put(line, b"<OVERFLOW>", 10)
        return
    put(line, b"# ", 2)
    put_hex(line, load32(entry + HEADER), 0)
    put_hex_bytes(line, entry + HEADER + 4, size - HEADER - 4, c' ', True)
