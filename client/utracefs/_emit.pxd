"""Emitting for the module of spans."""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from utracefs._event cimport Event

cdef bint is_strict

cdef bint is_of_context(name) except -1

cdef object context_value(Event event, Py_ssize_t i)

cdef object emit_behind(Event event, const uint64_t *numbers, Py_ssize_t nr_numbers, PyObject *const *given)
