"""Emitting, and methods that are C functions, for the module of spans."""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from utracefs.producer._binding cimport ut_moment
from utracefs.producer._event cimport Event

cdef extern from "type_slots.h":
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    int METH_O, METH_NOARGS, METH_FASTCALL, METH_KEYWORDS
    int ut_add_method(object made, PyMethodDef *method) except -1

cdef enum:
    # The first fields of a span's begin, all u64: its id and its parent's. The end also has the duration.
    BEGIN_NUMBERS = 2
    END_NUMBERS = 3

cdef struct SpanHead:
    uint64_t id
    uint64_t parent_id
    ut_moment begin     # time 0: not known
    bint has_ended

cdef bint is_strict

cdef bint is_optional(Event event, Py_ssize_t i) except -1

cdef object missing_value(Event event, Py_ssize_t i)

cdef int tell_missing(Event event, Py_ssize_t i) except -1

cdef object emit_behind(Event event, SpanHead *head, PyObject *const *given)
