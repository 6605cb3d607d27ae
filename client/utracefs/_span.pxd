"""Spans, for the module of decorated functions."""

cimport cython
from cpython.object cimport PyObject
from libc.stddef cimport size_t

from utracefs._binding cimport PENDING
from utracefs._emit cimport SpanHead
from utracefs._emit cimport is_strict as emits_strictly
from utracefs._event cimport Event, status_of

cdef extern from "type_slots.h":
    void ut_use_vectorcall(object made, Py_ssize_t offset, unsigned long flags)

ctypedef object (*Vectorcall)(object, PyObject *const *, size_t, PyObject *)

cdef enum State:
    IDLE
    BEGUN
    ENDED
    MISPLACED

@cython.final
cdef class Span:
    cdef Vectorcall call
    cdef readonly Event begin
    cdef readonly Event end
    cdef readonly str name
    cdef readonly tuple fields
    cdef readonly tuple values
    cdef Py_ssize_t nr_fields
    cdef Py_ssize_t nr_begin    # the first ones of them, which the begin has, too
    cdef Off off
    cdef Running entered
    cdef Py_ssize_t nr_on       # `with span:` that began, and has not ended
    cdef Py_ssize_t nr_off      # that did not begin, as it was off

@cython.final
cdef class Off:
    cdef Vectorcall call
    cdef Span span

@cython.final
cdef class Running:
    cdef Vectorcall call
    cdef Span span
    cdef Running parent
    cdef object vars_before # of the context, and those with this span: see context_vars.h
    cdef object vars_own
    cdef const void *context    # where it began
    cdef SpanHead head
    cdef tuple values
    cdef State state
    cdef bint by_span       # entered by `with span:`
    cdef bint has_parent_id # given, not that of the context
    cdef int depth          # `with running:` inside of itself

    cdef int begin(self) except -1
    cdef int finish(self, kind) except -1
    cdef int emit(self, Event event, Py_ssize_t first, Py_ssize_t nr, error) except -1

cdef inline bint is_on(Span span) except -1:
    if not (status_of(span.begin) | status_of(span.end)) and not emits_strictly:
        return False
    return emits_strictly or looks_on(span)

cdef bint looks_on(Span span) except -1

cdef object context_variable

cdef Running present()

cdef Running new_running(Span span, tuple values)
