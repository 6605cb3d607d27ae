# cython: boundscheck=False, wraparound=False
"""Prints the body of a user event: one step per field, made once per event id from its declaration.

    step     prints                                 declared as
    INT1     'c'(N), or (N) if c is unprintable     any integer or struct of 1 byte
    INT2     0xH (N), N unsigned                    of 2 bytes
    INT4     0xH (N), N signed whatever is declared of 4 bytes
    INT8     0xH (N), N signed                      of 8 bytes
    NO_SIZE  <INVALID-SIZE>                         structs of other sizes
    STRING   bytes up to a NUL or the size          char arrays
             bytes up to a NUL or the length        __data_loc and __rel_loc whose type contains `char`
    ARRAY    hex bytes joined by `,`                other __data_loc and __rel_loc

    FLOAT    as Python does                         struct double, struct float (a kernel: INT8, INT4)

    NUMBERS  JSON                                   arrays: Field.element (a kernel: as other structs)

    UNSIGNED, SIGNED, HEXADECIMAL                   fields of synthetic events (print_synth_event())

This follows print_fields() in kernel/trace/trace_output.c, not the event's print fmt. A field that reaches
beyond the end of the entry (checked in `_fields` of the protocol) prints `<OVERFLOW>`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc

from utracefs_protocol.events._fields cimport set_elements, set_place


cdef class BodyPlan:
    """The steps of one event. `known` is False for an id that belongs to no event."""

    def __cinit__(self, event):
        cdef Py_ssize_t i
        cdef Step *step
        cdef bytes label
        self.known = event is not None
        if event is None:
            return
        self.name, self.fields = event[:2]
        self.synthetic = len(event) > 2 and event[2]
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
            set_place(&step.place, field)
            set_elements(&step.elements, field)
            step.op = self._op(field)

    cdef Op _op(self, field) except *:
        if field.is_string:
            return STRING
        if field.is_loc:
            return ARRAY
        if field.is_float:
            return FLOAT
        if field.element is not None:
            return NUMBERS
        size = field.size
        if self.synthetic:
            if field.type == b"gfp_t":
                return HEXADECIMAL
            # A smaller value is printed from its whole slot: -1 of an s8 is 255.
            return SIGNED if field.signed and size in (4, 8) else UNSIGNED
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
        ) and self.synthetic == (len(event) > 2 and event[2])
