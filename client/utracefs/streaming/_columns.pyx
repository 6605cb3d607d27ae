# cython: boundscheck=False, wraparound=False
"""Records as columns, for each event: an array.array for numbers, a list for texts and bytes.

A second builder beside `recordings._columns`: these columns are objects of Python, for programs without any
library. Filling them by `Values` and `put_fields` of the other one, as the HTML page does, took 1.5 times the
CPU time.
"""

import array

from cpython cimport array
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from utracefs.recordings._records cimport (
    FLOAT_VALUE, SIGNED_VALUE, UNSIGNED_VALUE, EventDecoder, Getter, Raw, Records, value_of
)
from utracefs_protocol.events._fields cimport find_bytes

from utracefs.recordings.columns import column_names
#: from array import array

cdef enum:
    FIRST_ROWS = 1024

OWN = ("time_ns", "cpu", "pid", "tid", "comm")  #: tuple[str, ...]

_TYPES = {1: "b", 2: "h", 4: "i", 8: "q"}


cdef class _Table:
    cdef EventDecoder event
    cdef Py_ssize_t rows
    cdef Py_ssize_t room
    cdef array.array time
    cdef array.array cpu
    cdef array.array pid
    cdef array.array tid
    cdef list comm
    cdef list columns           # array or list for each field

    def __init__(self, EventDecoder event not None):
        cdef Py_ssize_t i
        cdef Getter *getter
        self.event = event
        self.time = array.array("Q")
        self.cpu = array.array("I")
        self.pid = array.array("i")
        self.tid = array.array("i")
        self.comm = []
        self.columns = []
        for i in range(event.count):
            getter = &event.getters[i]
            code = _TYPES.get(getter.place.size) if getter.kind in (SIGNED_VALUE, UNSIGNED_VALUE) else None
            if getter.kind == FLOAT_VALUE:
                self.columns.append(array.array("d" if getter.place.size == 8 else "f"))
            elif code is None:
                self.columns.append([])
            else:
                self.columns.append(array.array(code if getter.kind == SIGNED_VALUE else code.upper()))
        self.resize(FIRST_ROWS)

    cdef int resize(self, Py_ssize_t room) except -1:
        self.room = room
        for column in (self.time, self.cpu, self.pid, self.tid, *self.columns):
            if isinstance(column, array.array):
                array.resize(column, room)
        return 0

    cdef int add(self, const Raw *raw, str comm) except -1:
        cdef Py_ssize_t i, n = self.rows
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef Getter *getter
        if not self.event.fits(raw):
            return 0
        if n == self.room:
            self.resize(2 * n)
        self.time.data.as_ulonglongs[n] = raw.time_ns
        self.cpu.data.as_uints[n] = raw.cpu
        self.pid.data.as_ints[n] = raw.pid
        self.tid.data.as_ints[n] = raw.tid
        self.comm.append(comm)
        for i in range(self.event.count):
            getter = &self.event.getters[i]
            find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
            column = self.columns[i]
            if type(column) is list:
                (<list>column).append(value_of(getter, data, length))
            else:
                memcpy((<array.array>column).data.as_chars + n * length, data, length)
        self.rows += 1
        return 0

    cdef dict result(self):
        cdef Py_ssize_t i
        self.resize(self.rows)
        found = dict(zip(OWN, (self.time, self.cpu, self.pid, self.tid, self.comm)))
        names = column_names(self.event.names, OWN)
        for i, name in enumerate(self.event.names):
            found[names[name]] = self.columns[i]
        return found


def columns_of(Records records not None) -> dict[str, dict[str, array[Any] | list[str] | list[bytes]]]:
    """`SYSTEM:NAME` to name to column, of all events with records, in the order of their first ones.

    time_ns, cpu, pid and tid are array.array, comm is a list of str, a field one or the other; a field with
    one of these names gets the prefix `field_`. Records that are shorter than their event's fields are left
    out.
    """
    cdef Raw raw
    cdef EventDecoder event
    cdef EventDecoder before = None
    cdef _Table table = None
    cdef int tid = 0
    cdef str comm = None
    cdef dict tables = {}
    while (event := records.next(&raw)) is not None:
        if event is not before:
            table = tables.get(event)
            if table is None:
                table = tables[event] = _Table(event)
            before = event
        if comm is None or raw.tid != tid:
            tid = raw.tid
            comm = records.comm(tid)
        table.add(&raw, comm)
    return {
        f"{one.event.system}:{one.event.name}": one.result() for one in <list[_Table]>list(tables.values())
    }
