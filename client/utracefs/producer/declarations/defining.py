"""Events whose fields are annotations, which type checkers know.

    @utracefs.define
    def http_request(status: utracefs.u16, usec: float, path: str) -> None:
        '''One request, answered.'''

    if http_request:
        http_request.emit(200, 18.34, path)

`http_request` is then the Event of this command string, and costs what it costs:

    http_request u16 status; struct double usec 8; __rel_loc char[] path

| annotation | type of the field |
|---|---|
| `utracefs.u8` to `u64`, `s8` to `s64` | the same |
| `int` | s64 |
| `float`, `utracefs.f32` | `struct double`, 8 bytes; `struct float`, 4 bytes |
| `bool` | `struct bool`, 1 byte |
| `str`, `bytes` | `__rel_loc char[]`, `__rel_loc u8[]` |
| `Annotated[str, N]`, `Annotated[bytes, N]` | `char[N]`, `unsigned char[N]` |
| `Annotated[Sequence[T], N]`, also of list, tuple[T, ...] | array of N numbers: `struct u32_4`, 16 bytes |

A default makes a field optional: `request_id: str = ""`. Without a value the record has that of the context
of this name (`utracefs.context`), else the default.

T is one of the annotations of numbers above. `emit` takes a sequence of exactly N, also an array of array or
numpy, or their bytes.

A class gives the same: its annotations are the fields. Only for a function do mypy and pyright check the
arguments of `emit` and accept `if http_request:`: mypy ignores the result of a class decorator. They do, too,
for `request = utracefs.define(HttpRequest)`, where HttpRequest is a NamedTuple or a dataclass.
"""

from __future__ import annotations

import sys

from utracefs.producer import _emit
from utracefs.producer.declarations.checking import check_declaration, command_bytes
from utracefs.producer.declarations.declaring import make_event
from utracefs.producer.process_session import process_session
from utracefs_protocol.events.declaration import INTEGERS

_SIZES = {name.decode(): size for name, size in INTEGERS.items() if name[1:].isdigit()}
"""Annotations of integers, and their bytes."""

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Generic, ParamSpec, overload

    from utracefs.producer._event import Event
    from utracefs.producer.session import Session

    P = ParamSpec("P")

    class Declared(Event, Generic[P]):
        """An Event with known arguments: the view of type checkers."""

        def emit(self, *args: P.args, **kwargs: P.kwargs) -> None: ...  # type: ignore[override]

    u8 = int
    u16 = int
    u32 = int
    u64 = int
    s8 = int
    s16 = int
    s32 = int
    s64 = int
    f32 = float

else:
    # u8 to u64, s8 to s64
    for _name in _SIZES:
        _members = {"__module__": "utracefs", "__doc__": f"Annotation of a field of type {_name}."}
        globals()[_name] = type(_name, (int,), _members)
    f32 = type("f32", (float,), {"__module__": "utracefs", "__doc__": "Annotation of a float of 4 bytes."})

    def overload(function):
        return function  # without typing


_NUMBERS: dict[object, tuple[str, int]] = {
    bool: ("bool", 1),
    int: ("s64", 8),
    float: ("double", 8),
    f32: ("float", 4),
    **{globals()[name]: (name, size) for name, size in _SIZES.items()},
}
"""Name and bytes; also of the elements of arrays."""
FIELDS: dict[object, str] = {
    **{
        one: f"{name} {{}}" if name[1:].isdigit() else f"struct {name} {{}} {size}"
        for one, (name, size) in _NUMBERS.items()
    },
    str: "__rel_loc char[] {}",
    bytes: "__rel_loc u8[] {}",
}
_ARRAYS: dict[object, str] = {str: "char[{}] {}", bytes: "unsigned char[{}] {}"}
_KNOWN = (
    "utracefs.u8 to u64, s8 to s64, int, float, utracefs.f32, bool, str, bytes, Annotated[str, N], "
    "Annotated[Sequence[utracefs.u8], N]"
)
_VALUES = (int, float, str, bytes, bytearray, tuple, list)
_VARIADIC = 0x04 | 0x08
"""CO_VARARGS, CO_VARKEYWORDS."""


@overload
def define(
    fields: Callable[P, object],
    *,
    name: str | None = None,
    persist: bool = False,
    multi_format: bool = False,
    session: Session | None = None,
) -> Declared[P]: ...
@overload
def define(  # noqa: F811 - `overload` is typing's for type checkers only
    *,
    name: str | None = None,
    persist: bool = False,
    multi_format: bool = False,
    session: Session | None = None,
) -> Callable[[Callable[P, object]], Declared[P]]: ...
def define(  # noqa: F811
    fields: Any = None, *, name: str | None = None, session: Session | None = None, **flags: bool
) -> Any:
    """Declare an event by annotations: a decorator of a function, which is never called, or a class.

    name: of the event; None: the function's or class's in snake_case. persist, multi_format: as
    `utracefs.event`. session: None is the default session.

    ValueError: an annotation is not the type of a field, a default does not fit its field, or the command
    string is wrong.
    """
    scope = sys._getframe(1).f_locals

    def declare(fields: Any) -> Event:
        text = command_string(fields, scope, name)
        check_defaults(text, defaults := defaults_of(fields))
        event = (process_session() if session is None else session).event(text, **flags)
        event.defaults = defaults or event.defaults
        return event

    return declare if fields is None else declare(fields)


def command_string(fields: Any, scope: Mapping[str, Any], name: str | None = None) -> str:
    """The command string of an annotated function or class. scope: names that annotations in quotes may use,
    besides those of its module."""
    declared = [
        _field(f"{fields.__qualname__}: {field}", field, annotation, names, scope)
        for field, annotation, names in (_of_class if isinstance(fields, type) else _of_function)(fields)
    ]
    return f"{_snake_case(fields.__name__) if name is None else name} {'; '.join(declared)}".rstrip()


def _of_function(function: Any) -> list[tuple[str, object, dict[str, Any]]]:
    """(name, annotation, names of the module) of each parameter."""
    code = getattr(function, "__code__", None)
    if code is None:
        raise TypeError(f"an event is defined by a function or a class, not {function!r}")
    where = function.__qualname__
    if code.co_flags & _VARIADIC:
        raise ValueError(f"{where}: an event has no *args and **kwargs; write each field")
    annotations = function.__annotations__
    return [
        (field, annotations.get(field), function.__globals__)
        for field in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ]


def _of_class(cls: Any) -> list[tuple[str, object, dict[str, Any]]]:
    """(name, annotation, names of the module) of each annotation, those of base classes first."""
    found = {}
    for base in reversed(cls.__mro__):
        names = getattr(sys.modules.get(base.__module__), "__dict__", {})
        for field, annotation in getattr(base, "__annotations__", {}).items():
            found[field] = (field, annotation, names)
    return list(found.values())


def defaults_of(fields: Any) -> dict[str, Any]:
    """By names of fields. ValueError: such a default is no value of a field."""
    found: dict[str, Any] = {}
    functions = [fields]
    if isinstance(fields, type):
        cls: Any = fields
        for base in reversed(cls.__mro__):
            names = getattr(base, "__annotations__", {})
            # (Slots, and the members of a NamedTuple, have __get__.)
            found.update({n: v for n, v in vars(base).items() if n in names and not hasattr(v, "__get__")})
        functions = [cls.__new__, cls.__init__]  # of a NamedTuple, of a dataclass
    for function in functions:
        if (code := getattr(function, "__code__", None)) is not None:
            values = function.__defaults__ or ()
            found.update(zip(code.co_varnames[code.co_argcount - len(values) :], values, strict=False))
            found.update(function.__kwdefaults__ or {})
    for field, value in found.items():
        if value is not None and not isinstance(value, _VALUES):
            raise ValueError(f"{fields.__qualname__}: {field}: {value!r} cannot be the default of a field")
    return found


def check_defaults(text: str, defaults: dict[str, Any]) -> None:
    """ValueError: one does not fit its field. text: a command string."""
    if defaults:
        event = make_event(None, check_declaration(command_bytes(text)), 0)
        event.defaults = defaults
        try:
            _emit.check_defaults(event)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"a default: {error}") from None


def _field(
    where: str, field: str, annotation: object, names: dict[str, Any], scope: Mapping[str, Any]
) -> str:
    if annotation is None:
        raise ValueError(f"{where} has no annotation; use {_KNOWN}")
    found: Any = annotation
    # (A NamedTuple has typing.ForwardRef for annotations in quotes.)
    while isinstance(found := getattr(found, "__forward_arg__", found), str):
        try:
            found = eval(found, names, scope)
        except Exception as error:
            raise ValueError(f"{where}: the annotation {annotation!r} is unknown: {error}") from error
    if isinstance(found, type) and found in FIELDS:
        return FIELDS[found].format(field)
    # (typing.Annotated, without its import)
    length, origin = getattr(found, "__metadata__", None), getattr(found, "__origin__", None)
    if length and isinstance(length[0], int) and origin in _ARRAYS:
        return _ARRAYS[origin].format(length[0], field)
    arguments = getattr(origin, "__args__", ())
    if length and isinstance(length[0], int) and arguments and arguments[0] in _NUMBERS:
        if length[0] < 1 or arguments[1:] not in ((), (...,)):
            raise ValueError(
                f"{where}: an array has 1 number or more, of one type: Annotated[Sequence[T], N]"
            )
        name, size = _NUMBERS[arguments[0]]
        return f"struct {name}_{length[0]} {field} {length[0] * size}"
    shown = found.__name__ if isinstance(found, type) else repr(found)
    raise ValueError(f"{where}: {shown} is not the type of a field; use {_KNOWN}")


def _snake_case(name: str) -> str:
    """HttpRequest to http_request, HTTPRequest2 to http_request2."""
    text = ""
    for before, letter, behind in zip(f"_{name}", name, f"{name[1:]}_", strict=False):
        starts = letter.isupper() and before != "_" and (not before.isupper() or behind.islower())
        text += f"_{letter}" if starts else letter
    return text.lower()
