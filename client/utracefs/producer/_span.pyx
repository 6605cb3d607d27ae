"""Spans; `with order_span(7):` runs here.

    Span       the result of `utracefs.span`: two events, and the values given with it
    Running    one use of it while it is on, from its begin to its end
    Off        its use while it is off

While one of its events is on, a use of a span gets an id, writes a record of NAME_begin, and makes itself the
parent of the spans that begin meanwhile, by a context variable. At its end it writes a record of NAME_end. A
record is written if its event is on at that moment:

| switched | records |
|---|---|
| on in the middle of a span | none: it has no id and no time |
| off in the middle | no end; readers see a span that did not end |
| off and on again in the middle | both |

So an end always belongs to a span that began while tracing. If the record of the begin is missing (only
NAME_end is on, or it was overwritten), the time of the begin is that of the end less the duration.

At the end the variable is set to its previous value, not reset by its token, because a generator may be
closed in another context. (Often all variables of the begin are restored at once: see context_vars.h.) If the
context is another one by then (asyncio closes an async generator), or holds another span, the ended span is
`misplaced`: its own context still holds it, and new spans there skip it. A span that ended regularly remains
the parent in contexts that were copied from it (tasks).
"""

#: from types import TracebackType
#: from typing_extensions import ParamSpec
#: _Function = TypeVar("_Function", bound=Callable[..., Any])
#: _Begin = ParamSpec("_Begin", default=...)
#: _End = ParamSpec("_End", default=...)

from functools import cached_property, partial, partialmethod
from types import AsyncGeneratorType, CoroutineType, GeneratorType

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from utracefs.producer._binding cimport PENDING, ut_now_ns, utracefs_new_span_id
from utracefs.producer._emit cimport (
    BEGIN_NUMBERS,
    END_NUMBERS,
    METH_FASTCALL,
    METH_NOARGS,
    METH_O,
    PyCFunction,
    PyMethodDef,
    SpanHead,
    emit_behind,
    is_optional,
    missing_value,
    tell_missing,
    ut_add_method,
)
from utracefs.producer._emit cimport is_strict as emits_strictly
from utracefs.producer._event cimport MAX_FIELDS, Event, status_of

cdef extern from "context_vars.h":
    const void *ut_present_context()
    PyObject *ut_context_vars()
    void ut_restore_context_vars(PyObject *own, PyObject *before)

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
    void PyType_Modified(PyTypeObject *type)
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i)
    object PyContextVar_New(const char *name, PyObject *default)
    int PyContextVar_Get(object var, PyObject *default, PyObject **value) except -1
    object PyContextVar_Set(object var, object value)
    void Py_XDECREF(PyObject *o)
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

cdef extern from "type_slots.h":
    void ut_use_vectorcall(object made, Py_ssize_t offset, unsigned long flags)
    void ut_use_iteration(object made, void *next)
    bint ut_binds_as_method(object made)

ctypedef object (*Vectorcall)(object, PyObject *const *, size_t, PyObject *)

cdef enum State:
    IDLE
    BEGUN
    ENDED
    MISPLACED

cdef object context_variable = PyContextVar_New("utracefs.span", NULL)
cdef object MISSING = object()      # a value that is not given yet
cdef bytes NO_ERROR = b""

BEGIN_FIELDS = "u64 span_id; u64 parent_id"  #: Final[str]
END_FIELDS = "u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error"  #: Final[str]
cdef enum:
    END_VALUES = END_NUMBERS + 1    # `error` is the last


cdef Running present():
    """The span that is the parent of one that begins now; or None."""
    return in_place(value_of_variable())


cdef inline Running value_of_variable():
    cdef PyObject *found = NULL
    PyContextVar_Get(context_variable, NULL, &found)
    if found == NULL:
        return None
    held = <object>found
    Py_XDECREF(found)
    return <Running>held


cdef inline Running in_place(Running running):
    while running is not None and running.state == MISPLACED:
        running = running.parent
    return running


@cython.final
cdef class Span:  #: Generic[_Begin, _End]
    """`with span:`, `with span(VALUE...) as running:`, `@span`. Made by `utracefs.span`.

    True while one of its events is on. `begin` and `end` are these events.
    """

    cdef Vectorcall call
    cdef readonly Event begin
    cdef readonly Event end
    cdef readonly str name
    cdef readonly tuple fields  #: tuple[str, ...]
    cdef readonly tuple values  #: tuple[Any, ...] | None
    cdef Py_ssize_t nr_fields
    cdef Py_ssize_t nr_begin    # the first ones of them, which the begin has, too
    cdef Off off
    cdef Running entered
    cdef Py_ssize_t nr_on       # `with span:` that began, and has not ended
    cdef Py_ssize_t nr_off      # that did not begin, as it was off

    #: @overload
    #: def __call__(self, function: _Function, /) -> _Function: ...  # type: ignore[overload-overlap]
    #: @overload
    #: def __call__(self, *args: _Begin.args, **kwargs: _Begin.kwargs) -> Running[_End]: ...
    #: @overload
    #: def __call__(self, *values: Any, parent_id: int | None, **named: Any) -> Running[_End]: ...

    def __cinit__(self, str name, Event begin, Event end, tuple fields: tuple[str, ...],
                  tuple values: tuple[Any, ...]=None):
        """fields: names of its own, first the begin's. values: of the begin's fields; None: given at each
        use, if there are any."""
        if len(fields) + END_VALUES > MAX_FIELDS:
            raise ValueError(f"{name}: too many fields")
        self.call = <Vectorcall>call_span
        self.begin = begin
        self.end = end
        self.name = name
        self.fields = fields
        self.nr_fields = len(fields)
        self.nr_begin = 0 if begin is None else begin.nr_fields - BEGIN_NUMBERS
        if values is None and self.nr_begin == 0:
            values = ()
        self.values = None if values is None else values + (MISSING,) * (self.nr_fields - len(values))
        self.off = Off.__new__(Off)
        self.off.span = self
        self.off.call = <Vectorcall>call_off

    def having(self, tuple values: tuple[Any, ...] | None) -> Self:
        """A copy of this span that has these values of the fields."""
        return Span(self.name, self.begin, self.end, self.fields, values)

    def __bool__(self):
        return is_on(self)

    def __enter__(self) -> Running[_End]:
        cdef Running running
        if self.values is None:
            raise TypeError(f"{self.name}: no values for {', '.join(self.fields)}: with span(...):")
        if not is_on(self):
            running = innermost(self) if self.nr_on else None
            if running is None:
                self.nr_off += 1
            else:
                running.depth += 1
            return self.off
        running = new_running(self, self.values)
        running.by_span = True
        running.begin()
        if self.entered is None:
            self.entered = running
        return running

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """End the innermost use of this span in the context; if there is none, one that was off, or one of
        another context."""
        cdef Running running
        running = innermost(self)
        if running is None:
            if self.nr_off:
                self.nr_off -= 1
                return
            running = self.entered
        if running is self.entered:
            self.entered = None
        if running is not None:
            running.finish(kind)

    def __repr__(self):
        return f"<utracefs.Span {self.name!r}, {'on' if self else 'off'}>"

    def __reduce__(self):
        values = None if self.values is None else self.values[:self.nr_begin]
        return Span, (self.name, self.begin, self.end, self.fields, values)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


cdef inline Running innermost(Span span):
    """The innermost `with span:` of this context, or None."""
    cdef Running running = present()
    while running is not None and not (
        running.by_span and running.span is span and running.state == BEGUN
    ):
        running = running.parent
    return running


cdef inline bint is_on(Span span) except -1:
    cdef unsigned char bytes_of_both = status_of(span.begin) | status_of(span.end)
    if bytes_of_both == 0 or emits_strictly:
        return emits_strictly
    return not bytes_of_both & PENDING or bool(span.begin) or bool(span.end)


cdef object call_span(Span span, PyObject *const *args, size_t nargsf, PyObject *names):
    """`span(...)`: a use of the span, or the decoration of a function."""
    cdef Py_ssize_t nr = PyVectorcall_NARGS(nargsf)
    cdef Running running
    cdef uint64_t parent_id = 0
    cdef tuple values
    if span.values is not None and nr == 1 and names == NULL and (
        callable(<object>args[0]) or hasattr(type(<object>args[0]), "__get__")
    ):
        return decorated(span, <object>args[0])
    if names == NULL and nr == 0 and span.values is not None:
        if not is_on(span):
            return span.off
        values = span.values
    elif names == NULL and nr == span.nr_begin and span.values is None and not callable(<object>args[0]):
        if not is_on(span):
            return span.off
        values = tuple_of(args, nr, span.nr_fields)
    else:
        values, parent_id = sorted_values(span, args, nr, names)
        if not is_on(span):
            return span.off
    running = new_running(span, values)
    running.head.parent_id = parent_id
    running.has_parent_id = parent_id != 0
    return running


cdef tuple tuple_of(PyObject *const *args, Py_ssize_t nr, Py_ssize_t size):
    cdef tuple values = PyTuple_New(size)
    cdef Py_ssize_t i
    for i in range(size):
        value = <object>args[i] if i < nr else MISSING
        Py_INCREF(value)
        PyTuple_SET_ITEM(values, i, value)
    return values


cdef tuple sorted_values(Span span, PyObject *const *args, Py_ssize_t nr, PyObject *names):
    """The values in the order of the fields, and parent_id. TypeError like a call of a function."""
    cdef Py_ssize_t i
    parent_id = 0
    given = dict(zip(span.fields, tuple_of(args, nr, nr)))
    if nr > span.nr_fields:
        raise TypeError(f"{span.name}: {nr} values for {span.nr_fields} fields")
    if nr == 1 and names == NULL and callable(<object>args[0]):
        raise TypeError(
            f"{span.name}: a function needs the values of its spans: @utracefs.span(..., NAME=VALUE)"
        )
    if names != NULL:
        for i in range(PyTuple_GET_SIZE(names)):
            name = <object>PyTuple_GET_ITEM(names, i)
            if name == "parent_id":
                parent_id = <object>args[nr + i]
                if parent_id is None:
                    parent_id = 0
            elif name in given:
                raise TypeError(f"{span.name}: two values for the field {name!r}")
            else:
                given[name] = <object>args[nr + i]
    check_names(span, given)
    if len(given) < span.nr_fields:
        if span.values is not None:
            given = dict(zip(span.fields, span.values)) | given
        for i in range(span.nr_fields):
            if span.fields[i] not in given:
                is_known = is_optional(span.end, END_VALUES + i)
                given[span.fields[i]] = missing_value(span.end, END_VALUES + i) if is_known else MISSING
    return tuple([given[name] for name in span.fields]), parent_id


cdef int check_names(Span span, names, tuple unnamed=()) except -1:
    if unnamed:
        raise TypeError(f"{span.name}: set takes values by the names of their fields")
    for name in names:
        if name not in span.fields:
            raise TypeError(
                f"{span.name}: no field {name!r}; there are {', '.join(span.fields) or 'none'}"
            )
    return 0


@cython.final
cdef class Off:  #: Generic[_End]
    """A use of a span that is off. As Running, without effect."""

    cdef Vectorcall call
    cdef Span span

    @property
    def span_id(self) -> int:
        return 0

    @property
    def parent_id(self) -> int:
        return 0

    def set(self, *args: _End.args, **kwargs: _End.kwargs) -> None:
        check_names(self.span, kwargs, args)

    def __bool__(self):
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        return None

    def __reduce__(self):
        return "a use of a span"    # a copy is the use itself; pickle finds no such name


@cython.final
@cython.freelist(32)
@cython.trashcan(True)      # a chain of parents may be long
cdef class Running:  #: Generic[_End]
    """A use of a span, from its begin to its end."""

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

    @property
    def span_id(self) -> int:
        """0 before its begin."""
        return self.head.id

    @property
    def parent_id(self) -> int:
        """0: it has no parent."""
        return self.head.parent_id

    def set(self, *args: _End.args, **kwargs: _End.kwargs) -> None:
        """Set values of fields by their names, for the record of the end. TypeError: no such field, on and
        off."""
        check_names(self.span, kwargs, args)
        self.values = tuple([
            kwargs.get(name, value) for name, value in zip(self.span.fields, self.values)
        ])

    def __bool__(self):
        return True

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.finish(kind)

    def __reduce__(self):
        return "a use of a span"    # as Off

    cdef int begin(self) except -1:
        cdef Span span = self.span
        cdef PyObject *vars_before = NULL
        cdef Running around
        if self.state == BEGUN:
            self.depth += 1
            return 0
        around = value_of_variable()
        self.parent = in_place(around)
        if not self.has_parent_id:
            self.head.parent_id = 0 if self.parent is None else self.parent.head.id
        if self.state != IDLE and is_above(self, self.parent):
            self.parent = None
        self.head.id = utracefs_new_span_id()
        self.head.has_ended = False
        self.head.begin.time = 0
        self.state = BEGUN
        if status_of(span.begin) or emits_strictly:
            self.emit(span.begin, BEGIN_NUMBERS, span.nr_begin, NO_ERROR)
        if self.head.begin.time == 0:
            self.head.begin.time = ut_now_ns()
            self.head.begin.rate = 0
        if self.parent is around:
            vars_before = ut_context_vars()
        if vars_before != NULL:
            self.vars_before = <object>vars_before
        PyContextVar_Set(context_variable, self)
        self.context = ut_present_context()
        if vars_before != NULL:
            self.vars_own = <object>ut_context_vars()
        self.span.nr_on += self.by_span
        return 0

    cdef int finish(self, kind) except -1:
        """kind: the exception's class, or None."""
        cdef PyObject *held = NULL
        cdef bint is_here = self.context == ut_present_context()
        if self.state != BEGUN:
            return 0
        if self.depth:
            self.depth -= 1
            return 0
        self.span.nr_on -= self.by_span
        if (
            is_here
            and self.vars_before is not None
            and <PyObject *>self.vars_own == ut_context_vars()
            and in_place(self.parent) is self.parent
        ):
            self.state = ENDED
            ut_restore_context_vars(<PyObject *>self.vars_own, <PyObject *>self.vars_before)
        else:
            PyContextVar_Get(context_variable, NULL, &held)
            self.state = ENDED if is_here and held == <PyObject *>self else MISPLACED
            if held == <PyObject *>self:
                PyContextVar_Set(context_variable, in_place(self.parent))
            Py_XDECREF(held)
        self.vars_before = self.vars_own = None
        if status_of(self.span.end) or emits_strictly:
            self.head.has_ended = True
            error = NO_ERROR if kind is None else name_of(kind)
            self.emit(self.span.end, END_VALUES, self.span.nr_fields, error)
        # Spans that ended before behind this one are skipped, too: they must not be kept as long as each span
        # begins before the previous one ends.
        self.parent = None if self.state == ENDED else in_place(self.parent)
        return 0

    cdef int emit(self, Event event, Py_ssize_t first, Py_ssize_t nr, error) except -1:
        """Write the record of a begin or an end. first: index of the first of `nr` fields behind the ids.
        error: str or bytes."""
        cdef PyObject *given[MAX_FIELDS]
        cdef Py_ssize_t i
        cdef tuple values = self.values
        cdef list held = None
        given[END_NUMBERS] = <PyObject *>error
        for i in range(nr):
            given[first + i] = PyTuple_GET_ITEM(<PyObject *>values, i)
            if given[first + i] == <PyObject *>MISSING:
                if self.head.has_ended and error is NO_ERROR and not is_optional(event, first + i):
                    tell_missing(event, first + i)
                held = held or []
                held.append(missing_value(event, first + i))
                given[first + i] = <PyObject *>held[-1]
        emit_behind(event, &self.head, given)
        return 0


cdef object call_off(Off off, PyObject *const *args, size_t nargsf, PyObject *names):
    return None if leaves(nargsf, names) else off


cdef object call_running(Running running, PyObject *const *args, size_t nargsf, PyObject *names):
    """Without arguments `__enter__`, with three `__exit__` (see Itself)."""
    if not leaves(nargsf, names):
        running.begin()
        return running
    running.finish(<object>args[0])


cdef inline bint leaves(size_t nargsf, PyObject *names) except -1:
    cdef Py_ssize_t nr = PyVectorcall_NARGS(nargsf)
    if names != NULL or (nr != 0 and nr != 3):
        raise TypeError("__enter__ takes no arguments, __exit__ takes 3")
    return nr != 0


@cython.final
cdef class Itself:
    """In place of `__enter__` and `__exit__`, which `with` gets as methods of the object: two new objects
    each time. Here it gets the object itself, and calls that: without arguments, or with those of `__exit__`.
    """

    cdef object method

    def __get__(self, instance, owner):
        return self.method if instance is None else instance


cdef int bind_to_itself(type_, Py_ssize_t offset_of_call) except -1:
    cdef Itself itself
    cdef dict names = <dict>(<PyTypeObject *>type_).tp_dict
    ut_use_vectorcall(type_, offset_of_call, 0)
    for name in ("__enter__", "__exit__"):
        itself = Itself.__new__(Itself)
        itself.method = names[name]
        names[name] = itself
    PyType_Modified(<PyTypeObject *>type_)
    return 0


cdef Running new_running(Span span, tuple values):
    cdef Running running = Running.__new__(Running)
    running.call = <Vectorcall>call_running
    running.span = span
    running.values = values
    return running


cdef bint is_above(Running one, Running other):
    """Whether `one`, which begins again, is `other` or one of its parents."""
    while other is not None and other is not one:
        other = other.parent
    return other is not None


cdef str name_of(kind):
    """Name of a class, read without attributes that the program may have replaced; of an exception, which
    some callers give to `__exit__`, that of its class."""
    if not isinstance(kind, type):
        kind = type(kind)
    return type.__dict__["__qualname__"].__get__(kind)


def current() -> Running | None:
    """The span of this context, a Running; None: there is none."""
    return present()


# ----------------------------------------------------------------------------------- decorated functions

# A decorated function changes nothing for its callers: each attribute is the function's. A generator or a
# coroutine that it makes while the span is on is handed out behind a Stepwise, which has the attributes and
# the `__class__` of it, passes each call on to it, and only makes the generator's own innermost span present
# meanwhile. All this is in C functions: exceptions get no further line in their traceback, and recursion
# needs no further frames.

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


OWN_ATTRIBUTES = frozenset(  #: Final[frozenset[str]]
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

    def __getattr__(self, name: str) -> Any:
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
    #: def send(self, value: Any, /) -> Any: ...
    #: def throw(self, *args: Any) -> Any: ...
    #: def close(self) -> Any: ...
    pass


@cython.final
cdef class IterableCoroutine(Generator):
    """By types.coroutine."""

    def __await__(self):
        return self


@cython.final
cdef class Coroutine(Stepwise):
    #: def send(self, value: Any, /) -> Any: ...
    #: def throw(self, *args: Any) -> Any: ...
    #: def close(self) -> Any: ...

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

    def asend(self, value: Any, /) -> Any:
        return awaitable(self, self.inner.asend(value), True)

    def athrow(self, *args: Any) -> Any:
        return awaitable(self, self.inner.athrow(*args), False)

    def aclose(self) -> Any:
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


KINDS = {  #: Final[dict[int, type[Stepwise]]]
    0x80: Coroutine, 0x20: Generator, 0x200: AsyncGenerator, 0x100: IterableCoroutine
}
"""By the flag of their code (inspect.CO_COROUTINE, ...). A generator of types.coroutine has 0x100, too."""

FRAMES = {  #: Final[dict[type, str]]
    CoroutineType: "cr_frame", GeneratorType: "gi_frame", AsyncGeneratorType: "ag_frame"
}


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


cdef Py_ssize_t place(object made, Vectorcall *call):
    return <char *>call - <char *><PyObject *>made


cdef Span a_span = Span("", None, None, ())
cdef Off an_off = a_span.off
cdef Running a_running = Running.__new__(Running)
ut_use_vectorcall(Span, place(a_span, &a_span.call), 0)
bind_to_itself(Off, place(an_off, &an_off.call))
bind_to_itself(Running, place(a_running, &a_running.call))

cdef Traced a_traced = Traced.__new__(Traced)
ut_use_vectorcall(Traced, place(a_traced, &a_traced.call), 0)
ut_use_vectorcall(TracedMethod, place(a_traced, &a_traced.call), Py_TPFLAGS_METHOD_DESCRIPTOR)
