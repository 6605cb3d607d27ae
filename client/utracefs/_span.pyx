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

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint64_t

from utracefs._binding cimport ut_now_ns, utracefs_new_span_id
from utracefs._emit cimport (
    BEGIN_NUMBERS,
    END_NUMBERS,
    emit_behind,
    is_optional,
    missing_value,
    tell_missing,
)
from utracefs._event cimport MAX_FIELDS

cdef extern from "context_vars.h":
    const void *ut_present_context()
    PyObject *ut_context_vars()
    void ut_put_context_vars_back(PyObject *own, PyObject *before)

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

cdef object context_variable = PyContextVar_New("utracefs.span", NULL)
cdef object MISSING = object()      # a value that is not given yet
cdef bytes NO_ERROR = b""

BEGIN_FIELDS = "u64 span_id; u64 parent_id"
END_FIELDS = "u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error"
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
cdef class Span:
    """`with span:`, `with span(VALUE...) as running:`, `@span`. Made by `utracefs.span`.

    True while one of its events is on. `begin` and `end` are these events.
    """


    def __cinit__(self, str name, Event begin, Event end, tuple fields, tuple values=None):
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

    def having(self, tuple values):
        """A copy of this span that has these values of the fields."""
        return Span(self.name, self.begin, self.end, self.fields, values)

    def __bool__(self):
        return is_on(self)

    def __enter__(self):
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

    def __exit__(self, kind, error, traceback):
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


cdef inline Running innermost(Span span):
    """The innermost `with span:` of this context, or None."""
    cdef Running running = present()
    while running is not None and not (
        running.by_span and running.span is span and running.state == BEGUN
    ):
        running = running.parent
    return running


cdef bint looks_on(Span span) except -1:
    if status_of(span.begin) == PENDING or status_of(span.end) == PENDING:
        return bool(span.begin) or bool(span.end)
    return True


cdef object call_span(Span span, PyObject *const *args, size_t nargsf, PyObject *names):
    """`span(...)`: a use of the span, or the decoration of a function."""
    cdef Py_ssize_t nr = PyVectorcall_NARGS(nargsf)
    cdef Running running
    cdef uint64_t parent_id = 0
    cdef tuple values
    if span.values is not None and nr == 1 and names == NULL and (
        callable(<object>args[0]) or hasattr(type(<object>args[0]), "__get__")
    ):
        return decorate(span, <object>args[0])
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
cdef class Off:
    """A use of a span that is off. As Running, without effect."""

    @property
    def span_id(self):
        return 0

    @property
    def parent_id(self):
        return 0

    def set(self, *args, **kwargs):
        check_names(self.span, kwargs, args)

    def __bool__(self):
        return False

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return None


@cython.final
@cython.freelist(32)
@cython.trashcan(True)      # a chain of parents may be long
cdef class Running:
    """A use of a span, from its begin to its end."""

    @property
    def span_id(self):
        """0 before its begin."""
        return self.head.id

    @property
    def parent_id(self):
        """0: it has no parent."""
        return self.head.parent_id

    def set(self, *args, **kwargs):
        """Set values of fields by their names, for the record of the end. TypeError: no such field, on and
        off."""
        check_names(self.span, kwargs, args)
        self.values = tuple([
            kwargs.get(name, value) for name, value in zip(self.span.fields, self.values)
        ])

    def __bool__(self):
        return True

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, kind, error, traceback):
        self.finish(kind)

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
            ut_put_context_vars_back(<PyObject *>self.vars_own, <PyObject *>self.vars_before)
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


cdef object decorate = None


def decorate_by(function):
    """function(span, what) makes the decorated object; of _traced."""
    global decorate
    decorate = function


def current():
    """The span of this context, a Running; None: there is none."""
    return present()


cdef Py_ssize_t place(object made, Vectorcall *call):
    return <char *>call - <char *><PyObject *>made


cdef Span a_span = Span("", None, None, ())
cdef Off an_off = a_span.off
cdef Running a_running = Running.__new__(Running)
ut_use_vectorcall(Span, place(a_span, &a_span.call), 0)
bind_to_itself(Off, place(an_off, &an_off.call))
bind_to_itself(Running, place(a_running, &a_running.call))
