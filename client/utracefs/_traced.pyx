"""Decorated functions: `@span`.

A decorated function changes nothing for its callers: each attribute is the function's. A generator or a
coroutine that it makes while the span is on is handed out behind a Stepwise, which has the attributes and the
`__class__` of it, passes each call on to it, and only makes the generator's own innermost span present
meanwhile. All this is in C functions: exceptions get no further line in their traceback, and recursion needs
no further frames.
"""

from functools import cached_property, partial, partialmethod
from types import AsyncGeneratorType, CoroutineType, GeneratorType

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t

from utracefs._span cimport (
    BEGUN,
    ENDED,
    IDLE,
    Running,
    Span,
    Vectorcall,
    context_variable,
    is_on,
    new_running,
    present,
    ut_use_vectorcall,
)

from utracefs._span import decorate_by

cdef extern from "type_slots.h":
    void ut_use_iteration(object made, void *next)
    int ut_add_method(object made, PyMethodDef *method) except -1
    bint ut_binds_as_method(object made)

cdef extern from "Python.h":
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    int METH_O, METH_NOARGS, METH_FASTCALL
    unsigned long Py_TPFLAGS_METHOD_DESCRIPTOR
    PyObject *call_function "PyObject_Vectorcall"(PyObject *, PyObject *const *, size_t nargsf, PyObject *)
    PyObject *PyObject_VectorcallMethod(PyObject *name, PyObject *const *args, size_t nargsf, PyObject *names)
    PyObject *PyObject_CallOneArg(PyObject *callable, PyObject *arg)
    PyObject *PyObject_SelfIter(PyObject *o)
    int PYGEN_NEXT, PYGEN_RETURN
    int PyIter_Send(PyObject *iterator, PyObject *value, PyObject **result)
    void PyErr_Fetch(PyObject **kind, PyObject **value, PyObject **traceback)
    void PyErr_Restore(PyObject *kind, PyObject *value, PyObject *traceback)
    void PyErr_SetObject(PyObject *kind, PyObject *value)
    object PyMethod_New(object function, object self)
    object PyContextVar_Set(object var, object value)
    void Py_XDECREF(PyObject *o)

cdef struct Error:
    PyObject *kind          # NULL: none
    PyObject *value
    PyObject *traceback


cdef class Traced:
    """A decorated function: each call has a span. Its attributes are those of the function."""

    cdef Vectorcall call
    cdef object function
    cdef Span span
    cdef type made          # a kind of Stepwise; None: a plain function
    cdef object __weakref__

    def __getattribute__(self, name):
        if name in OWN_ATTRIBUTES:
            return object.__getattribute__(self, name)
        return getattr(self.function, name)

    def __setattr__(self, name, value):
        setattr(self.function, name, value)

    def __delattr__(self, name):
        delattr(self.function, name)

    @property
    def __wrapped__(self):
        return self.function

    def __get__(self, instance, owner):
        """As the object that was decorated, which is no function, is bound; or not."""
        get = getattr(type(self.function), "__get__", None)
        bound = self.function if get is None else get(self.function, instance, owner)
        return self if bound is self.function else decorated(self.span, bound)

    def __set_name__(self, owner, name):
        """A class makes class methods and static methods of functions of these names."""
        if name in ("__init_subclass__", "__class_getitem__"):
            setattr(owner, name, classmethod(self))
        elif name == "__new__":
            setattr(owner, name, staticmethod(self))
        elif hasattr(type(self.function), "__set_name__"):
            type(self.function).__set_name__(self.function, owner, name)

    def __repr__(self):
        return f"<{self.function!r} with the span {self.span.name!r}>"

    def __reduce__(self):
        return self.function.__qualname__


@cython.final
cdef class TracedMethod(Traced):
    """A decorated function, which an instance binds as a method."""

    def __get__(self, instance, owner):
        return self if instance is None else PyMethod_New(self, instance)


OWN_ATTRIBUTES = frozenset(
    ("__call__", "__get__", "__reduce__", "__reduce_ex__", "__repr__", "__set_name__", "__wrapped__")
)




cdef object decorated(Span span, function):
    """The same kind of object, which makes spans."""
    cdef Traced traced
    if isinstance(function, (staticmethod, classmethod)):
        outer = type(function)(decorated(span, function.__func__))
        outer.__dict__.update(function.__dict__)
        return outer
    if isinstance(function, property):
        accessors = [one and decorated(span, one) for one in (function.fget, function.fset, function.fdel)]
        return type(function)(*accessors, function.__doc__)
    if isinstance(function, cached_property):
        return type(function)(decorated(span, function.func))
    if isinstance(function, (partial, partialmethod)):
        # (inspect finds the function of a partial only by its type.)
        outer = type(function)(decorated(span, function.func), *function.args, **function.keywords)
        if isinstance(function, partial):
            outer.__dict__.update(function.__dict__)
        return outer
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"{span.name}: decorates functions, not {type(function).__name__} objects")
    traced = (TracedMethod if ut_binds_as_method(function) else Traced).__new__(
        TracedMethod if ut_binds_as_method(function) else Traced
    )
    traced.call = <Vectorcall>call_traced
    traced.function = function
    traced.span = span
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    for flag, made in KINDS.items():
        if flags & flag:
            traced.made = made
    return traced


ctypedef int (*Looking)(Span) noexcept
ctypedef PyObject *(*Wrapping)(Traced, PyObject *) noexcept
ctypedef int (*Beginning)(Running) noexcept
ctypedef int (*Finishing)(Running, PyObject *) noexcept
ctypedef int (*Entering)(Stepwise, bint, PyObject **) noexcept
ctypedef int (*Leaving)(Stepwise, PyObject *, PyObject *, bint) noexcept


# Functions that return NULL for an exception, as in _emit: Cython's would add lines to its traceback.

cdef PyObject *call_traced(Traced self, PyObject *const *args, size_t nargsf, PyObject *names) noexcept:
    cdef Running running
    cdef PyObject *result
    cdef Error error
    cdef int on = (<Looking>is_on)(self.span)
    if on < 0:
        return NULL
    if not on or self.made is not None:
        result = call_function(<PyObject *>self.function, args, nargsf, names)
        return (<Wrapping>stepwise)(self, result) if on and result != NULL else result
    running = new_running(self.span, self.span.values)
    if (<Beginning>begin_of)(running) < 0:
        return NULL
    result = call_function(<PyObject *>self.function, args, nargsf, names)
    PyErr_Fetch(&error.kind, &error.value, &error.traceback)
    return outcome(result, &error, (<Finishing>finish_of)(running, error.kind))


cdef PyObject *outcome(PyObject *result, Error *error, int done) noexcept:
    """The result or the exception of a call; or, if done is -1, the exception that is set."""
    if done == 0:
        PyErr_Restore(error.kind, error.value, error.traceback)
        return result
    Py_XDECREF(error.kind)
    Py_XDECREF(error.value)
    Py_XDECREF(error.traceback)
    Py_XDECREF(result)
    return NULL


cdef int begin_of(Running running) except -1:
    return running.begin()


cdef int finish_of(Running running, PyObject *kind) except -1:
    return running.finish(None if kind == NULL else <object>kind)


# ------------------------------------------------------------------------------- generators and coroutines

cdef class Stepwise:
    """A generator, a coroutine or an async generator that a decorated function made while its span was on.

    The span begins with the first step, not with the call, and ends with the last one. Within a step the
    present span is the generator's innermost one, between two steps that of its caller.
    """

    cdef object inner
    cdef Stepwise of        # the async generator whose step this is; else None
    cdef Running running
    cdef Running own        # the innermost span, between two steps
    cdef str frame          # attribute of `inner`: None at its end. None: each exception is the end
    cdef bint starts        # by asend: it may be the first step
    cdef object __weakref__

    @property
    def __class__(self):
        return self.inner.__class__

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)

    def __repr__(self):
        return repr(self.inner)

    def __reduce_ex__(self, protocol):
        return self.inner.__reduce_ex__(protocol)

    def __del__(self):
        """As a generator is closed that nobody needs any more."""
        if self.of is None and self.running is not None and self.running.state == BEGUN:
            callers = present()
            PyContextVar_Set(context_variable, self.own)
            self.inner = None
            try:
                self.running.finish(GeneratorExit)
            finally:
                PyContextVar_Set(context_variable, callers)


cdef class Generator(Stepwise):
    pass


@cython.final
cdef class IterableCoroutine(Generator):
    """By types.coroutine."""

    def __await__(self):
        return self


@cython.final
cdef class Coroutine(Stepwise):

    def __await__(self):
        if getattr(self.inner, "cr_await", None) is not None:
            raise RuntimeError("coroutine is being awaited already")
        return self


@cython.final
cdef class AsyncGenerator(Stepwise):

    def __aiter__(self):
        return self

    def __anext__(self):
        return awaitable(self, self.inner.__anext__(), True)

    def asend(self, value, /):
        return awaitable(self, self.inner.asend(value), True)

    def athrow(self, *args):
        return awaitable(self, self.inner.athrow(*args), False)

    def aclose(self):
        return awaitable(self, self.inner.aclose(), False)


@cython.final
cdef class Awaitable(Generator):
    """A step of an async generator."""

    def __await__(self):
        return self


cdef object awaitable(AsyncGenerator of, inner, bint starts):
    cdef Awaitable step = Awaitable.__new__(Awaitable)
    step.inner = inner
    step.of = of
    step.starts = starts
    return step


KINDS = {0x80: Coroutine, 0x20: Generator, 0x200: AsyncGenerator, 0x100: IterableCoroutine}
"""By the flag of their code (inspect.CO_COROUTINE, ...). A generator of types.coroutine has 0x100, too."""

FRAMES = {CoroutineType: "cr_frame", GeneratorType: "gi_frame", AsyncGeneratorType: "ag_frame"}


cdef object stepwise(Traced self, PyObject *made):
    """made: a reference that this takes over."""
    cdef Stepwise outer = self.made.__new__(self.made)
    outer.inner = <object>made
    Py_XDECREF(made)
    outer.frame = FRAMES.get(outer.inner.__class__)
    if outer.frame is None and not (hasattr(outer.inner, "throw") or hasattr(outer.inner, "athrow")):
        return outer.inner  # of an object that only has the attributes of a generator's function
    outer.running = new_running(self.span, self.span.values)
    return outer


cdef PyObject *send(Stepwise self, PyObject *value, bint by_name) noexcept:
    """by_name: the end is a StopIteration also without a value."""
    cdef PyObject *callers = NULL
    cdef PyObject *result = NULL
    cdef PyObject *stop
    cdef int status
    if self.of is not None:     # (PyIter_Send makes the StopIteration anew)
        return call_inner(self, <PyObject *>SEND, &value, 1, NULL)
    if (<Entering>enter)(self, True, &callers) < 0:
        return NULL
    status = PyIter_Send(<PyObject *>self.inner, value, &result)
    if callers != NULL:
        result = leave_by(self, callers, result, NULL, status != PYGEN_NEXT)
    if status != PYGEN_RETURN or result == NULL:
        return result
    if result == <PyObject *>None:
        if by_name:
            PyErr_SetObject(<PyObject *>StopIteration, NULL)
    else:   # (of a tuple this class would take the members for its arguments)
        stop = PyObject_CallOneArg(<PyObject *>StopIteration, result)
        if stop != NULL:
            PyErr_SetObject(<PyObject *>StopIteration, stop)
            Py_XDECREF(stop)
    Py_XDECREF(result)
    return NULL


cdef PyObject *call_inner(
    Stepwise self, PyObject *name, PyObject *const *args, Py_ssize_t nr_args, PyObject *kind
) noexcept:
    """kind: the span's error, if this ends the generator."""
    cdef PyObject *given[5]     # one more than any of the methods takes
    cdef PyObject *callers = NULL
    cdef PyObject *result
    cdef Py_ssize_t i, nr = min(nr_args, 4)
    given[0] = <PyObject *>self.inner
    for i in range(nr):
        given[1 + i] = args[i]
    if (<Entering>enter)(self, self.starts and name == <PyObject *>SEND, &callers) < 0:
        return NULL
    result = PyObject_VectorcallMethod(name, given, 1 + nr, NULL)
    return result if callers == NULL else leave_by(self, callers, result, kind, kind != NULL)


cdef int enter(Stepwise self, bint starts, PyObject **callers) except -1:
    """Before a step. callers: set to a new reference of the caller's span, if the step is part of the
    generator's."""
    cdef Stepwise whole = self if self.of is None else self.of
    before = present()
    if whole.running is None:   # by a program that found its class
        return 0
    if whole.running.state == IDLE and starts:
        whole.running.begin()
    elif whole.running.state == BEGUN:
        PyContextVar_Set(context_variable, whole.own)
    else:
        whole.running.state = ENDED     # closed before its first step
        return 0
    Py_INCREF(before)
    callers[0] = <PyObject *>before
    return 0


cdef PyObject *leave_by(
    Stepwise self, PyObject *callers, PyObject *result, PyObject *kind, bint may_be_over
) noexcept:
    cdef Error error
    PyErr_Fetch(&error.kind, &error.value, &error.traceback)
    if error.kind != NULL:
        kind = error.kind
    return outcome(result, &error, (<Leaving>leave)(self, callers, kind, may_be_over or result == NULL))


cdef int leave(Stepwise self, PyObject *callers, PyObject *kind, bint may_be_over) except -1:
    """After a step. kind: of the exception, or NULL."""
    cdef Stepwise whole = self if self.of is None else self.of
    before = <object>callers
    Py_XDECREF(callers)
    try:
        if may_be_over and (whole.frame is None or getattr(whole.inner, whole.frame) is None):
            error = None if kind == NULL else <object>kind
            if whole is self:
                error = None if error is StopIteration else error
            elif error is StopIteration:    # of aclose
                error = GeneratorExit
            elif error is StopAsyncIteration:
                error = None
            whole.running.finish(error)
    finally:
        whole.own = present()
        PyContextVar_Set(context_variable, before)
    return 0


cdef str SEND = "send"
cdef str THROW = "throw"
cdef str CLOSE = "close"


cdef PyObject *send_method(Stepwise self, PyObject *value) noexcept:
    return send(self, value, True)


cdef PyObject *next_method(Stepwise self, PyObject *nothing) noexcept:
    return send(self, <PyObject *>None, True)


cdef PyObject *next_step(Stepwise self) noexcept:
    return send(self, <PyObject *>None, False)


cdef PyObject *throw_method(Stepwise self, PyObject *const *args, Py_ssize_t nr_args) noexcept:
    return call_inner(self, <PyObject *>THROW, args, nr_args, NULL)


cdef PyObject *close_method(Stepwise self, PyObject *nothing) noexcept:
    return call_inner(self, <PyObject *>CLOSE, NULL, 0, <PyObject *>GeneratorExit)


cdef PyObject *iter_method(PyObject *self, PyObject *nothing) noexcept:
    return PyObject_SelfIter(self)


cdef PyMethodDef methods[5]


cdef int add(PyMethodDef *method, const char *name, const char *doc, void *function, int flags) except -1:
    method.ml_name = name
    method.ml_doc = doc
    method.ml_meth = <PyCFunction>function
    method.ml_flags = flags
    for owner in (Generator,) if name[0] == b"_" else (Generator, Coroutine):
        ut_add_method(owner, method)
    return 0


add(&methods[0], b"send", b"send($self, value, /)\n--\n\n", <void *>send_method, METH_O)
add(&methods[1], b"throw", b"throw($self, /, *args)\n--\n\n", <void *>throw_method, METH_FASTCALL)
add(&methods[2], b"close", b"close($self, /)\n--\n\n", <void *>close_method, METH_NOARGS)
add(&methods[3], b"__next__", NULL, <void *>next_method, METH_NOARGS)
add(&methods[4], b"__iter__", NULL, <void *>iter_method, METH_NOARGS)
for _one in (Generator, IterableCoroutine, Awaitable, Coroutine):
    ut_use_iteration(_one, <void *>next_step)

cdef Traced a_traced = Traced.__new__(Traced)
cdef Py_ssize_t OFFSET = <char *>&a_traced.call - <char *><PyObject *>a_traced
ut_use_vectorcall(Traced, OFFSET, 0)
ut_use_vectorcall(TracedMethod, OFFSET, Py_TPFLAGS_METHOD_DESCRIPTOR)
decorate_by(decorated)
