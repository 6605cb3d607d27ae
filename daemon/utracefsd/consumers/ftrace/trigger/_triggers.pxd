from utracefsd.consumers.ftrace.event._sink cimport FtraceSink
from utracefsd.consumers.ftrace.hist._hist cimport Hist
from utracefsd.consumers.ftrace.event._trigger cimport Trigger

cdef class HistTrigger(Trigger):
    cdef readonly Hist hist
    cdef readonly FtraceSink sink
    cdef bint uses_timestamp

    cdef bint has_counted(self) noexcept
    cdef void take_snapshot(self) noexcept
    cdef void switch(self, bint on) noexcept
