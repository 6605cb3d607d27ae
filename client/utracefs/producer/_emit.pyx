"""Event.emit, which runs once per record.

It converts its arguments to C values. Only when all are valid it reserves space in the data ring, packs them
there and commits. A value that does not fit is refused: instead of the record a refusal is written to the
ring (data_ring.h), the daemon counts it, and the program gets one warning per field. So all that can fail,
and all Python code, precedes the reservation.
"""

from _warnings import warn
import sys

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport isinf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport getenv
from libc.string cimport memcpy, memset, strcmp

from utracefs_protocol.pages.data_ring cimport DR_MAX_WHY, DR_REFUSED
from utracefs.producer._binding cimport (
    PENDING,
    ut_duration_ns,
    ut_moment_of,
    ut_put,
    utb_commit,
    utb_reserve,
    utb_reserved,
    utb_standard_error,
)
from utracefs.producer._event cimport (
    CHAR_ARRAY,
    DATA_LOC,
    FLOAT,
    INTEGER,
    MAX_FIELDS,
    REL_LOC,
    STRUCT,
    Event,
    Step,
    status_of,
)
#: from contextvars import ContextVar

cdef extern from "Python.h":
    int PyLong_Check(PyObject *o)
    int PyIndex_Check(PyObject *o)
    int PyFloat_CheckExact(PyObject *o)
    double PyFloat_AS_DOUBLE(PyObject *o)
    double PyFloat_AsDouble(object o) except? -1.0
    int PyBytes_Check(PyObject *o)
    const char *PyBytes_AS_STRING(PyObject *o)
    Py_ssize_t PyBytes_GET_SIZE(PyObject *o)
    void PyErr_Clear()
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size)
    object PyNumber_Index(object o)
    bint PySequence_Check(object o)
    object PyBytes_FromStringAndSize(const char *text, Py_ssize_t size)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i)
    PyObject *PyList_GET_ITEM(PyObject *o, Py_ssize_t i)
    ctypedef struct PyTypeObject:
        const char *tp_name
    int PyContextVar_Get(object var, PyObject *default, PyObject **value) except -1
    PyTypeObject *Py_TYPE(PyObject *o)

cdef extern from "context_vars.h":
    const void *ut_present_context()

cdef extern from "small_int.h":
    bint ut_small_int(PyObject *given, int64_t *value)
    bint ut_large_int(PyObject *given, bint is_signed, uint64_t *value)

cdef bint wanted_strict() except -1:
    """UTRACEFS_STRICT 1 or 0, by default Python's development mode."""
    cdef const char *text = getenv("UTRACEFS_STRICT")
    if text != NULL and strcmp(text, "1") == 0:
        return True
    return sys.flags.dev_mode and (text == NULL or strcmp(text, "0") != 0)

# Raise an exception for a value that does not fit, also while the event is off: see `strict`.
is_strict = wanted_strict()

cdef union Number:
    uint64_t u
    int64_t s
    double d
    float f             # in the lowest bytes: little-endian

cdef struct Value:
    # one argument, checked and converted; `text` belongs to the argument or to `held`
    Number number
    const char *text
    size_t length

cdef enum:
    # Reasons of refusals, by event: they contain names of the program's types.
    MAX_REASONS = 64

cdef size_t MAX_LOC = 0xffff

ctypedef PyObject *(*EmitNamed)(Event, PyObject *const *, Py_ssize_t, PyObject *) noexcept
ctypedef PyObject *(*EmitValues)(Event, PyObject *const *) noexcept

cdef PyObject *emit(
    Event event, PyObject *const *args, Py_ssize_t nr_args, PyObject *keyword_names
) noexcept:
    """Event.emit, called by the vectorcall protocol: no tuple, no dict. It is small: while the event is off
    it returns at once, else it tail-calls the others. (They return NULL for an exception, as it does.)"""
    cdef bint is_off = status_of(event) == 0 and not is_strict
    if keyword_names == NULL and nr_args == event.nr_fields:
        if not is_off:
            return (<EmitValues>emit_values)(event, args)
    elif not is_off or (
        nr_args != event.known_bare
        if keyword_names == NULL
        else keyword_names != <PyObject *>event.known_names or nr_args != event.known_args
    ):
        return (<EmitNamed>emit_named)(event, args, nr_args, keyword_names)
    Py_INCREF(None)
    return <PyObject *>None


cdef object emit_named(Event event, PyObject *const *args, Py_ssize_t nr_args, PyObject *keyword_names):
    """Values by name; or a wrong number of values."""
    cdef PyObject *ordered[MAX_FIELDS]
    cdef list held = []
    if keyword_names == NULL and (
        nr_args > event.nr_fields or (context_variable is None and event.defaults is None)
    ):
        raise wrong_number(event, nr_args)
    sort_arguments(event, ordered, args, nr_args, keyword_names, held)
    return emit_values(event, ordered)


cdef object wrong_number(Event event, Py_ssize_t nr_args):
    return TypeError(
        f"{event.name}: {nr_args} values for {event.nr_fields} fields ({', '.join(event.keywords)})"
    )


cdef object emit_values(Event event, PyObject *const *given):
    """given: a value for each field."""
    return emit_behind(event, NULL, given)


cdef object emit_behind(Event event, SpanHead *head, PyObject *const *given):
    """Write a record of a span. given: a value for each field; `head`, if present, replaces the first ones.
    The record's time is stored as the time of a begin, or gives the duration of an end."""
    cdef unsigned char byte = status_of(event)
    cdef Value values[MAX_FIELDS]
    cdef utb_reserved reserved
    cdef unsigned char *payload
    cdef Step *steps = event.steps
    cdef Step *step
    cdef Value *value
    cdef size_t size
    cdef Py_ssize_t i, nr_numbers
    cdef list held = None
    # Off: values are checked all the same when mistakes are to be raised.
    if byte == 0 or (byte == PENDING and not event.may_emit()):
        if not is_strict:
            return None
        byte = 0
    # All values are checked and converted before space is reserved: converting may run Python code, and
    # a reserved record holds back all later ones in the ring.
    size = event.min_size
    nr_numbers = put_ids(head, values) if head != NULL else 0
    for i in range(nr_numbers, event.nr_fields):
        step = &steps[i]
        value = &values[i]
        if step.kind == INTEGER:
            # A small int, else a large one, else an object with __index__.
            if not ut_small_int(given[i], &value.number.s):
                if not PyLong_Check(given[i]):
                    if not convert_index(event, i, value, given[i]):
                        return None
                elif not ut_large_int(given[i], step.is_signed, &value.number.u):
                    return refuse_number(event, i, <object>given[i])
            elif value.number.s < 0 and not step.is_signed:
                return refuse_number(event, i, value.number.s)
            # Out of range is a refusal: a truncated number would be a wrong one.
            if step.bits < 64:
                if step.is_signed:
                    if value.number.s != sign_extended(value.number.s, step.size):
                        return refuse_number(event, i, value.number.s)
                elif value.number.u >> step.bits:
                    return refuse_number(event, i, value.number.u)
            continue
        if step.kind == FLOAT:
            if PyFloat_CheckExact(given[i]):
                value.number.d = PyFloat_AS_DOUBLE(given[i])
            elif not convert_float(event, i, value, given[i]):
                return None
            if step.size == 4 and not shorten(value):
                return refuse_float(event, i)
            continue
        # A text is not copied: its bytes belong to the argument, or to `held`, until the record is filled.
        if PyBytes_Check(given[i]):
            value.text = PyBytes_AS_STRING(given[i])
            value.length = PyBytes_GET_SIZE(given[i])
        else:
            copy = convert_text(event, i, value, <object>given[i])
            if value.text == NULL:
                return None
            if copy is not None:
                if held is None:
                    held = []
                held.append(copy)
        # Only dynamic fields make the record larger; a location word has 16 bits for each number.
        if step.kind == DATA_LOC or step.kind == REL_LOC:
            if value.length + step.is_string > MAX_LOC or <int64_t>size + step.loc_base > <int64_t>MAX_LOC:
                return refuse_length(event, i, value.length, size)
            size += value.length + step.is_string
            if size > event.max_size:
                return refuse_size(event, i, size)
        elif step.kind == CHAR_ARRAY:
            if value.length > step.size:
                return refuse_length(event, i, value.length, size)
        elif value.length != step.size:
            return refuse_length(event, i, value.length, size)
    if size > event.max_size:
        return refuse_size(event, event.nr_fields - 1, size)
    if byte == 0:
        return None
    payload = reserve(event, 0, size, &reserved)
    # From here on no Python code runs until the record is committed.
    if payload != NULL:
        if head != NULL:
            put_time(head, values, &reserved)
        fill(event, values, payload)
        utb_commit(&reserved)
    return None


cdef inline Py_ssize_t put_ids(SpanHead *head, Value *values) noexcept:
    """Returns the number of fields that `head` has."""
    values[0].number.u = head.id
    values[1].number.u = head.parent_id
    return END_NUMBERS if head.has_ended else BEGIN_NUMBERS


cdef inline void put_time(SpanHead *head, Value *values, const utb_reserved *reserved) noexcept:
    if head.has_ended:
        values[2].number.u = ut_duration_ns(head.begin, reserved.record)
    else:
        head.begin = ut_moment_of(reserved.header, reserved.record)


cdef inline unsigned char *reserve(
    Event event, uint32_t flag, size_t size, utb_reserved *reserved
) except? NULL:
    """Reserve space for a record, or with DR_REFUSED a refusal, of `size` bytes. NULL: none, and counted as
    lost; or the event is off now."""
    cdef unsigned char *payload = utb_reserve(&event.own, flag, <uint32_t>size, reserved)
    if payload == NULL and reserved.needs_place:
        return reserve_later(event, flag, size, reserved)
    event.counted += 1
    return payload


cdef unsigned char *reserve_later(
    Event event, uint32_t flag, size_t size, utb_reserved *reserved
) except? NULL:
    """There is no ring yet, as in a forked child; or no longer; or it is full, and a lossless reader lets us
    wait."""
    cdef unsigned char *payload
    cdef bint is_full, has_place
    cdef uint64_t until = 0
    while True:
        is_full = reserved.half
        has_place = event.find_place(<uint32_t>size, &until)
        payload = utb_reserve(&event.own, flag, <uint32_t>size, reserved)
        if payload != NULL or not reserved.needs_place or not (is_full or has_place):
            break
    if payload != NULL or not reserved.needs_place:
        event.counted += 1
    return payload


cdef int sort_arguments(Event event, PyObject **ordered, PyObject *const *args, Py_ssize_t nr_args,
                        PyObject *keyword_names, list held) except -1:
    """Sort positional and keyword arguments into the order of the fields; missing ones get the value of the
    context or the default, which is appended to `held`. TypeError as for a Python function."""
    cdef Py_ssize_t i, at, nr_keywords = 0 if keyword_names == NULL else PyTuple_GET_SIZE(keyword_names)
    cdef PyObject *name
    if nr_args > event.nr_fields:
        raise TypeError(f"{event.name}: {nr_args} values for {event.nr_fields} fields")
    for i in range(event.nr_fields):
        ordered[i] = args[i] if i < nr_args else NULL
    for i in range(nr_keywords):
        name = PyTuple_GET_ITEM(keyword_names, i)
        at = find_keyword(event.keywords, name)
        if event.ambiguous and event.keywords.count(<object>name) > 1:
            raise TypeError(
                f"{event.name}: several fields are called {<object>name!r}; give them by position"
            )
        if at < 0:
            raise TypeError(f"{event.name}: no field {<object>name!r}; there are {', '.join(event.keywords)}")
        if ordered[at] != NULL:
            raise TypeError(f"{event.name}: two values for the field {<object>name!r}")
        ordered[at] = args[nr_args + i]
    for i in range(event.nr_fields):
        if ordered[i] == NULL:
            if not is_optional(event, i):
                if keyword_names == NULL:
                    raise wrong_number(event, nr_args)
                raise TypeError(f"{event.name}: no value for the field {event.keywords[i]!r}")
            value = missing_value(event, i)
            held.append(value)
            ordered[i] = <PyObject *>value
    if keyword_names == NULL:
        event.known_bare = nr_args
        return 0
    if <PyObject *>event.known_names != keyword_names:
        event.known_names = <tuple>keyword_names
    event.known_args = nr_args
    return 0


cdef Py_ssize_t find_keyword(tuple keywords, PyObject *name) except -2:
    """Names in a call are nearly always interned, like these: compare the addresses first."""
    cdef Py_ssize_t i
    for i in range(len(keywords)):
        if PyTuple_GET_ITEM(<PyObject *>keywords, i) == name:
            return i
    for i in range(len(keywords)):
        if keywords[i] == <object>name:
            return i
    return -1


cdef object context_variable = None
cdef object context_names = None


def use_context(variable: ContextVar[Mapping[str, Any]], names: Set[str]) -> None:
    """Take missing values from a context. variable: a ContextVar of a mapping. names: of fields that may be
    left out in a call; a set, which may grow."""
    global context_variable, context_names
    context_names = names
    context_variable = variable


def present_context() -> int:
    """A number for the thread's contextvars.Context, to be compared; another one may have it later."""
    return <size_t>ut_present_context()


cdef bint is_optional(Event event, Py_ssize_t i) except -1:
    """Whether a call may leave out field `i`."""
    name = event.keywords[i]
    return (context_variable is not None and name in context_names) or (
        event.defaults is not None and name in event.defaults
    )


cdef object missing_value(Event event, Py_ssize_t i):
    """The value of field `i` in this context, else its default, else 0 or empty."""
    cdef PyObject *found = NULL
    if context_variable is not None:
        PyContextVar_Get(context_variable, NULL, &found)
    if found != NULL:
        values = <object>found
        Py_DECREF(values)
        value = values.get(event.keywords[i])
        if value is not None:
            return value
    return default_value(event, i)


cdef object default_value(Event event, Py_ssize_t i):
    cdef Step *step = &event.steps[i]
    if event.defaults is not None:
        value = event.defaults.get(event.keywords[i])
        if value is not None:
            return value
    if step.kind == INTEGER or step.kind == FLOAT:
        return 0
    return bytes(step.size) if step.kind == STRUCT else b""


cdef inline int64_t sign_extended(int64_t number, unsigned size) noexcept:
    """`number` after being stored in `size` bytes (1, 2 or 4)."""
    if size == 1:
        return <int8_t>number
    if size == 2:
        return <int16_t>number
    return <int32_t>number


cdef bint convert_index(Event event, Py_ssize_t i, Value *value, PyObject *given) except -1:
    """Convert an object with `__index__`, which may be the program's; for a bool also numpy's, which has
    none. False: refused."""
    cdef bint is_bool = event.steps[i].bits == 1
    cdef bint is_index = PyIndex_Check(given)
    if not is_index and not (is_bool and type_name(given) in ("numpy.bool", "numpy.bool_")):
        refuse_type(event, i, given, "True or False" if is_bool else "an integer")
        return False
    try:
        number = PyNumber_Index(<object>given) if is_index else int(bool(<object>given))
    except Exception as error:
        refuse_error(event, i, error)
        return False
    if not ut_large_int(<PyObject *>number, event.steps[i].is_signed, &value.number.u):
        refuse_number(event, i, number)
        return False
    return True


cdef bint convert_float(Event event, Py_ssize_t i, Value *value, PyObject *given) except -1:
    """Convert an int, or an object with `__float__`, which may be the program's. False: refused."""
    try:
        value.number.d = PyFloat_AsDouble(<object>given)
    except TypeError:
        refuse_type(event, i, given, "a number")
        return False
    except OverflowError:
        refuse_float(event, i)
        return False
    except Exception as error:
        refuse_error(event, i, error)
        return False
    return True


cdef inline bint shorten(Value *value) noexcept:
    """Round to a C float. False: it is too large for one."""
    cdef double exact = value.number.d
    value.number.f = <float>exact
    return isinf(exact) or not isinf(value.number.f)


cdef object convert_text(Event event, Py_ssize_t i, Value *value, object given):
    """Convert str, bytearray, memoryview, or a sequence of numbers. Returns the object to hold until the
    record is written. `value.text` NULL: refused."""
    cdef Step *step = &event.steps[i]
    cdef Py_ssize_t length
    cdef bint is_text = isinstance(given, str) and step.kind != STRUCT
    value.text = NULL
    if step.element:
        return convert_array(event, i, value, given)
    if is_text:
        value.text = PyUnicode_AsUTF8AndSize(given, &length)
        if value.text != NULL:
            value.length = length
            return None  # the str keeps these bytes
        PyErr_Clear()
    try:
        if is_text:
            copy = str.encode(given, "utf-8", "surrogateescape")
        elif isinstance(given, (bytearray, memoryview)):
            # A copy: the other arguments' conversion might resize or rewrite it.
            copy = bytes(given)
        else:
            refuse_type(event, i, <PyObject *>given, "bytes" if step.kind == STRUCT else "str or bytes")
            return None
    except Exception as error:
        refuse_error(event, i, error)
        return None
    value.text = PyBytes_AS_STRING(<PyObject *>copy)
    value.length = PyBytes_GET_SIZE(<PyObject *>copy)
    return copy


cdef bytes convert_array(Event event, Py_ssize_t i, Value *value, object given):
    """Pack a sequence of numbers. Returns the bytes, to hold until the record is written; `value.text` NULL:
    refused."""
    cdef Step *step = &event.steps[i]
    cdef Value number
    cdef bytes packed
    cdef list numbers = []
    cdef char *to
    cdef Py_ssize_t at = 0, count = step.size // step.element
    value.text = NULL
    try:
        if isinstance(given, bytearray) or (isinstance(given, memoryview) and given.itemsize == 1):
            packed = bytes(given)
            value.text = PyBytes_AS_STRING(<PyObject *>packed)
            value.length = PyBytes_GET_SIZE(<PyObject *>packed)
            return packed
        if isinstance(given, str) or not PySequence_Check(given):
            refuse_type(event, i, <PyObject *>given, f"a sequence of {count} numbers")
            return None
        # A copy: conversions may change a list. The program's own sequences may be longer than they say.
        found = len(given)
        if found == count:
            for one in given:
                numbers.append(one)
                if len(numbers) > count:
                    break
            found = len(numbers)
        if found != count:
            refuse_count(event, i, count, found)
            return None
    except Exception as error:
        refuse_error(event, i, error)
        return None
    packed = PyBytes_FromStringAndSize(NULL, step.size)
    to = <char *>PyBytes_AS_STRING(<PyObject *>packed)
    for one in numbers:
        if not convert_element(event, i, &number, <PyObject *>one):
            return None
        memcpy(to + at, &number, step.element)
        at += step.element
    value.text = to
    value.length = step.size
    return packed


cdef bint convert_element(Event event, Py_ssize_t i, Value *value, PyObject *given) except -1:
    """False: refused."""
    cdef Step *step = &event.steps[i]
    if step.of_floats:
        if not convert_float(event, i, value, given):
            return False
        if step.element == 4 and not shorten(value):
            refuse_float(event, i)
            return False
        return True
    if not convert_index(event, i, value, given):
        return False
    if step.bits < 64 and (
        value.number.s != sign_extended(value.number.s, step.element)
        if step.is_signed
        else value.number.u >> step.bits
    ):
        refuse_number(event, i, value.number.s if step.is_signed else value.number.u)
        return False
    return True


cdef void fill(Event event, const Value *values, unsigned char *payload) noexcept:
    """Write the payload; dynamic data follow the fixed part, in the order of their fields."""
    cdef size_t end = event.min_size
    cdef size_t length
    cdef Py_ssize_t i
    cdef const Step *step
    cdef const Value *value
    for i in range(event.nr_fields):
        step = &event.steps[i]
        value = &values[i]
        if step.kind == INTEGER or step.kind == FLOAT:
            ut_put(payload + step.offset, value.number.u, step.size)
        elif step.kind == CHAR_ARRAY or step.kind == STRUCT:
            memcpy(payload + step.offset, value.text, value.length)
            memset(payload + step.offset + value.length, 0, step.size - value.length)
        else:
            memcpy(payload + end, value.text, value.length)
            length = value.length
            if step.is_string:
                payload[end + length] = 0
                length += 1
            ut_put(payload + step.offset, length << 16 | (end + step.loc_base), 4)
            end += length


# -------------------------------------------------------------------------------------------------- refusing

def strict(on: bool = True) -> bool:
    """Set whether `emit` raises for a value that does not fit, also while the event is off. Returns the
    previous setting."""
    global is_strict
    before = is_strict
    is_strict = on
    return before


def check_defaults(Event event not None) -> None:
    """Raise an exception for a default that does not fit. event: not registered, so nothing is written."""
    global is_strict
    cdef PyObject *values[MAX_FIELDS]
    cdef Py_ssize_t i
    cdef bint before = is_strict
    held = [default_value(event, i) for i in range(event.nr_fields)]
    for i in range(event.nr_fields):
        values[i] = PyList_GET_ITEM(<PyObject *>held, i)
    is_strict = True  # until the next bytecode: conversions of these types run none
    try:
        emit_values(event, values)
    finally:
        is_strict = before


cdef object refuse(Event event, Py_ssize_t i, type error, str reason, str text):
    """The value of field `i` does not fit: raise, or count a refusal instead of the record. reason: a few
    words that follow the field's name."""
    if is_strict:
        raise error(f"{event.name}: {text}")
    count_refusal(event, i, reason, text)


cdef int count_refusal(Event event, Py_ssize_t i, str reason, str text) except -1:
    cdef utb_reserved reserved
    cdef unsigned char *payload
    cdef bytes why
    reason = f"{event.keywords[i]} {reason}"
    if len(event.refusals) >= MAX_REASONS and reason not in event.refusals:
        reason = "other reasons"
    why = reason.encode("utf-8", "surrogateescape")[:DR_MAX_WHY]
    count = event.refusals.get(reason, 0) + 1
    payload = reserve(event, DR_REFUSED, len(why), &reserved)
    if payload != NULL:
        memcpy(payload, <const char *>why, len(why))
        utb_commit(&reserved)
        event.refusals[reason] = count
    if not event.steps[i].was_warned:
        event.steps[i].was_warned = True
        tell(event, f"{event.name}: {text}: such a record is refused and counted")
    return 0


cdef object tell(Event event, str text):
    """Warn for the line that called `emit`; if the program makes warnings exceptions, log instead: `emit`
    must not fail because an event was enabled. Nothing if standard error would block. If the descriptor of
    sys.stderr is a file that the program opened for something else, the warning is logged, too."""
    cdef int ready = utb_standard_error()
    if ready == 0:
        return
    try:
        if ready > 0 or not prints_to_descriptor():
            warn(text, RuntimeWarning)
            return
    except Exception:
        pass
    try:
        event.session._log_for_caller(text)
    except Exception:
        pass  # a call too many for the stack; it is counted in any case


cdef bint prints_to_descriptor():
    """Whether sys.stderr writes to descriptor 2, and is not replaced."""
    try:
        return sys.stderr.fileno() == 2
    except Exception:  # it is None, closed, or has no descriptor
        return False


cdef int tell_missing(Event event, Py_ssize_t i) except -1:
    """Warn once that field `i` of a span got no value."""
    if not event.steps[i].was_warned:
        event.steps[i].was_warned = True
        tell(event, f"{event.name}: field {quoted(event, i)} got no value until the end: it is 0 or empty")
    return 0


cdef object refuse_error(Event event, Py_ssize_t i, object error):
    """Refuse because of an exception of the value, or of its conversion. Called while it is handled."""
    if is_strict:
        raise error
    if isinstance(error, UnicodeEncodeError):
        reason = "was not UTF-8"
    else:
        reason = f"raised {type_name(<PyObject *>error)}"
    count_refusal(event, i, reason, f"field {quoted(event, i)} {reason}")


cdef object refuse_type(Event event, Py_ssize_t i, PyObject *given, str wanted):
    name = "None" if <object>given is None else type_name(given)
    return refuse(
        event, i, TypeError, f"was {name}", f"field {quoted(event, i)} takes {wanted}, not {name}"
    )


cdef object refuse_number(Event event, Py_ssize_t i, object number):
    """number: an int, possibly of a subclass, and with more digits than str() allows."""
    cdef Step *step = &event.steps[i]
    bits = step.bits
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if step.is_signed else (0, (1 << bits) - 1)
    try:
        digits = int.bit_length(number)
        shown = int.__repr__(number) if digits <= 128 else f"a number of {digits} bits"
    except RecursionError:
        shown = "the number"
    return refuse(
        event, i, OverflowError, "was out of range",
        f"{shown} does not fit the field {quoted(event, i)} ({low} to {high})"
    )


cdef object refuse_float(Event event, Py_ssize_t i):
    size = event.steps[i].element or event.steps[i].size
    return refuse(
        event, i, OverflowError, "was out of range",
        f"field {event.keywords[i]!r}: the number is too large for a float of {size} bytes"
    )


cdef object refuse_count(Event event, Py_ssize_t i, Py_ssize_t count, Py_ssize_t given):
    text = f"field {quoted(event, i)} takes exactly {count} numbers, not {given}"
    return refuse(event, i, ValueError, "had another size", text)


cdef object refuse_length(Event event, Py_ssize_t i, size_t length, size_t before):
    cdef Step *step = &event.steps[i]
    name = quoted(event, i)
    if step.kind == STRUCT:
        numbers = f"{step.size // step.element} numbers, or " if step.element else ""
        text = f"field {name} takes exactly {numbers}{step.size} bytes, not {length}"
        return refuse(event, i, ValueError, "had another size", text)
    if step.kind == CHAR_ARRAY:
        text = f"field {name} has room for {step.size} bytes, not {length}"
    else:
        text = (
            f"field {name}: {length} bytes behind {before} others; "
            f"a location word holds at most {MAX_LOC} each"
        )
    return refuse(event, i, ValueError, "was too long", text)


cdef object refuse_size(Event event, Py_ssize_t i, size_t size):
    return refuse(
        event, i, ValueError, "was too long",
        f"a record of {size} bytes with the field {quoted(event, i)}; "
        f"at most {event.max_size} are possible"
    )


cdef str quoted(Event event, Py_ssize_t i):
    """The name of field `i`. (With no stack left repr raises an exception, but `emit` must not.)"""
    try:
        return repr(event.keywords[i])
    except RecursionError:
        return event.keywords[i]


cdef str type_name(PyObject *given):
    """Name of the type, read without attributes that the program may have replaced."""
    return (<bytes>Py_TYPE(given).tp_name).decode("utf-8", "replace")[:64]


# ------------------------------------------------------------------------------------ Event.emit as a method

cdef PyMethodDef emit_method
emit_method.ml_name = b"emit"
emit_method.ml_meth = <PyCFunction><void *>emit
emit_method.ml_flags = METH_FASTCALL | METH_KEYWORDS
emit_method.ml_doc = b"""emit($self, /, *args, **kwargs)
--

Write one record if a consumer is attached.

One value per field, by position or by name:

    integers           int, bool, or an object with `__index__`, in the range of the field
    floats             a number
    bools              True, False (also numpy's), 1, 0
    text               str or bytes
    arrays             a sequence of numbers, or their bytes
    other structs      bytes, exactly their size
    other data         bytes

All values together have at most 65,529 bytes. emit never blocks: a record for which there is no space is
counted in `lost`, unless an administrator lets programs wait for it (`utracefs record --lossless`).

TypeError: the number of values is wrong, or a name is unknown, also while the event is off. A value that does
not fit its field is no error: the record is not written but counted in `refused`, and one RuntimeWarning per
field is issued. With `utracefs.strict(True)` such a value is a TypeError, OverflowError or ValueError, also
while the event is off.
"""
# Cython's `def emit(self, *args, **kwargs)` builds a tuple and a dict per call, even to find the event off.
ut_add_method(Event, &emit_method)
