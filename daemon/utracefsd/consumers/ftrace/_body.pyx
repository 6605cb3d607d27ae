# cython: boundscheck=False, wraparound=False
"""How the body of a user event is printed: one step per field, made once per event id from its declaration.

    step     prints                                 declared as
    INT1     'c'(N), or (N) if c is unprintable     any integer or struct of 1 byte
    INT2     0xH (N), N unsigned                    of 2 bytes
    INT4     0xH (N), N signed whatever is declared of 4 bytes
    INT8     0xH (N), N signed                      of 8 bytes
    NO_SIZE  <INVALID-SIZE>                         structs of other sizes
    CHARS    bytes up to a NUL or the size          char arrays
    STRING   bytes up to a NUL or the length        __data_loc and __rel_loc whose type contains `char`
    ARRAY    hex bytes joined by `,`                other __data_loc and __rel_loc

This is print_fields() in kernel/trace/trace_output.c, not the event's print fmt. Entries are hostile: every
field, and every range that a loc word names, is checked against the end of the entry before it is read; what
reaches past it prints `<OVERFLOW>`. `__data_loc` ranges count from the start of the entry, so they may lie
over the common header or the loc word itself, and are printed like anything else.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc

from utracefs_protocol.declaration import FieldKind


cdef class BodyPlan:
    """The steps of one event. `known` is False for an id that belongs to no event."""

    def __cinit__(self, event):
        cdef Py_ssize_t i
        cdef Step *step
        cdef bytes label
        self.known = event is not None
        if event is None:
            return
        self.name, self.fields = event
        self.title = self.name + b":"
        self.labels = [b" %s=" % field.name for field in self.fields]
        self.count = len(self.labels)
        self.steps = <Step *>malloc(sizeof(Step) * (self.count + 1))
        if self.steps == NULL:
            raise MemoryError
        for i, field in enumerate(self.fields):
            step = &self.steps[i]
            label = self.labels[i]
            step.label = PyBytes_AS_STRING(label)
            step.label_size = <size_t>PyBytes_GET_SIZE(label)
            step.offset = field.offset
            step.size = field.size
            step.op = self._op(field)

    cdef Op _op(self, field) except *:
        kind = field.kind
        if kind is FieldKind.CHAR_ARRAY:
            return CHARS
        if kind is FieldKind.DATA_LOC:
            return DATA_STRING if field.is_string else DATA_ARRAY
        if kind is FieldKind.REL_LOC:
            return REL_STRING if field.is_string else REL_ARRAY
        size = field.size
        if size == 1:
            return INT1
        if size == 2:
            return INT2
        if size == 4:
            return INT4
        return INT8 if size == 8 else NO_SIZE

    def __dealloc__(self):
        free(self.steps)

    cdef bint same(self, event):
        if event is None:
            return not self.known
        return self.known and (
            (event[0] is self.name and event[1] is self.fields)
            or (event[0] == self.name and event[1] == self.fields)
        )
