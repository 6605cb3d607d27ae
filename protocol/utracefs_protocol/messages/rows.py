"""A message is a table with a row for each member, from which the code to read and to write it is generated.

    class Seek(Params, method="seek"):
        handle: int = member(NUMBER)
        offset: int = member(NUMBER)

A row has the member's kind, the limits of its value, its name on the wire if that is another, and its
default. A member with a default may be absent on the wire, and is not sent while it has that value; with
`always` it is sent and required. An absent member, or nil, has the default value. If that is zero or false,
any false value means it, too.

The code is compiled at its first use: reading by a loop over the rows took twice the time of hand-written
checks, this takes 0.9 of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, dataclass_transform

from utracefs_protocol.frozen import Frozen, FrozenType
from utracefs_protocol.messages.values import Kind, WireMap, params_of, refuse_unknown, wire_map

WHOLE: Final = "*"
"""In place of the name on the wire: the member is read from the whole map, and written as several members."""

_REQUIRED: Final[Any] = object()


class Row:
    __slots__ = ("attribute", "default", "is_required", "is_zero", "kind", "limits", "name")

    def __init__(self, kind: Kind, limits: tuple[int, ...], name: str, default: Any, always: bool) -> None:
        self.kind = kind
        self.limits = limits
        self.name = name
        self.attribute = name
        self.default = default
        self.is_required = always or default is _REQUIRED
        self.is_zero = not self.is_required and isinstance(default, int) and not default
        """Whether any false value means the default."""

    def reads(self, value: str, given: str) -> str:
        """A statement: set the member from the expression `value`, unless `given` is false."""
        read = f"read_{self.attribute}({', '.join([value, repr(self.name), *map(repr, self.limits)])})"
        if not self.is_required:
            read += f" if {given} else default_{self.attribute}"
        return f"set_{self.attribute}(made, {read})"

    @property
    def written(self) -> str:
        """An expression: the value on the wire."""
        return (
            f"write_{self.attribute}(given.{self.attribute})"
            if self.kind.write
            else f"given.{self.attribute}"
        )

    @property
    def is_sent(self) -> str:
        """An expression: whether the value is not the default."""
        return f"given.{self.attribute}" + ("" if self.is_zero else f" != default_{self.attribute}")


def member(kind: Kind, *limits: int, name: str = "", default: Any = _REQUIRED, always: bool = False) -> Any:
    """A row, in the body of a class. `kind.read` gets the limits after the value and the name."""
    return Row(kind, limits, name, default, always)


def _array_reader(rows: list[Row]) -> list[str]:
    lines = [row.reads(f"given[{place}]", f"len(given) > {place}") for place, row in enumerate(rows)]
    return ["made = new(cls)", *lines, "return made"]


def _map_reader(rows: list[Row]) -> list[str]:
    lines = ["made = new(cls)", "get = given.get"]
    for row in sorted(rows, key=lambda row: row.is_required):
        if row.name == WHOLE:
            lines.append(row.reads("given", "True"))
            continue
        lines += [
            f"value = get({row.name!r})",
            row.reads("value", "value" if row.is_zero else "value is not None"),
        ]
    return [*lines, "return made"]


def _array_writer(rows: list[Row]) -> list[str]:
    lines = [f"values = [{', '.join(row.written for row in rows)}]"]
    for row in reversed(rows):
        if not row.is_required:
            lines += [f"if {row.is_sent}: return values", "values.pop()"]
    return [*lines, "return values"]


def _map_writer(rows: list[Row]) -> list[str]:
    into = {row: "members |=" if row.name == WHOLE else f"members[{row.name!r}] =" for row in rows}
    lines = [f"{target} {row.written}" for row, target in into.items()]
    sent = [
        line if row.is_required else f"if {row.is_sent}: {line}"
        for row, line in zip(rows, lines, strict=True)
    ]
    return ["members = {}", *sent, "return members"]


@dataclass_transform(frozen_default=True, field_specifiers=(member,))
class _MessageType(FrozenType):
    """Removes the rows from a class body."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **named: Any) -> FrozenType:
        rows = {attribute: row for attribute, row in body.items() if isinstance(row, Row)}
        for attribute, row in rows.items():
            row.attribute, row.name = attribute, row.name or attribute
            if row.default is _REQUIRED:
                del body[attribute]
            else:
                body[attribute] = row.default
        body["ROWS"] = rows
        names = {row.name for row in rows.values()} - {WHOLE}
        body["KNOWN"] = body.get("NOT_KEPT", frozenset()) | names
        body["LEAST"] = len([row for row in rows.values() if row.is_required])
        return super().__new__(cls, name, bases, body, **named)


class _Compiled:
    """A function that is compiled for a class at its first use."""

    def __init__(self, lines_of: Callable[[list[Row]], list[str]]) -> None:
        self._lines_of = lines_of

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, message: Message | None, kind: type[Message]) -> Callable[..., Any]:
        scope: dict[str, Any] = {"cls": kind, "new": object.__new__}
        for attribute, row in kind.ROWS.items():
            scope[f"read_{attribute}"] = row.kind.read
            scope[f"write_{attribute}"] = row.kind.write
            scope[f"set_{attribute}"] = getattr(kind, attribute).__set__
            scope[f"default_{attribute}"] = row.default
        lines = self._lines_of(list(kind.ROWS.values()))
        exec("\n ".join(["def made(given):", *lines]), scope)  # noqa: S102 - from the rows
        is_method = self._name.lstrip("_").startswith("to_")
        setattr(kind, self._name, scope["made"] if is_method else staticmethod(scope["made"]))
        function: Callable[..., Any] = getattr(kind if message is None else message, self._name)
        return function


class Message(Frozen, metaclass=_MessageType):
    """Base class: members as an array, or as a map."""

    ROWS: ClassVar[dict[str, Row]]
    """By the member's name in the class, in the order of the array."""
    NOT_KEPT: ClassVar[frozenset[str]]
    """Members on the wire without a row."""
    KNOWN: ClassVar[frozenset[str]]
    """All members on the wire."""
    LEAST: ClassVar[int]
    """Minimum number of members of an array."""
    from_array = _Compiled(_array_reader)
    """Read the values in the order of the rows; their number is checked already."""
    to_array = _Compiled(_array_writer)
    """Write the values, without the last ones that have their default."""
    _from_map = _Compiled(_map_reader)
    _to_map = _Compiled(_map_writer)

    @classmethod
    def from_map(cls, members: WireMap) -> Self:
        """The first invalid member decides: in the order of the rows, required ones last."""
        made: Self = cls._from_map(members)
        return made

    def to_map(self) -> dict[str, Any]:
        members: dict[str, Any] = self._to_map()
        return members


class Result(Message):
    """A result that is a map. Unknown members are from a later daemon."""

    METHOD: ClassVar[str]

    def __init_subclass__(cls, *, of: str) -> None:
        cls.METHOD = of

    @classmethod
    def from_wire(cls, result: object) -> Self:
        """EINVAL."""
        return cls.from_map(wire_map(result, f"result of {cls.METHOD}"))

    def to_wire(self) -> dict[str, Any]:
        return self.to_map()


class Params(Message):
    """Params with the members in the order of the rows."""

    METHOD: ClassVar[str] = ""
    """The method's name on the wire."""
    TAKES: ClassVar[tuple[str, ...]] = ()
    """The names of the params, for errors."""

    def __init_subclass__(cls, *, method: str = "", takes: str = "") -> None:
        cls.METHOD = method
        cls.TAKES = (takes,) if takes else tuple(row.name for row in cls.ROWS.values())

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        """Read and check; TraceError for invalid values."""
        if not cls.LEAST <= len(params) <= len(cls.ROWS):
            params_of(cls.METHOD, params, *cls.TAKES)
        read: Self = cls.from_array(params)
        return read

    def to_params(self) -> list[Any]:
        params: list[Any] = self.to_array()
        return params


class MapParams(Params):
    """Params that are one map of the members (copy_struct_from_user(), see the head of this package)."""

    MAP: ClassVar[str]
    """The map's name, for errors."""

    def __init_subclass__(cls, *, method: str = "", takes: str = "") -> None:
        super().__init_subclass__(method=method, takes=takes or "map")
        if takes or method:
            cls.MAP = takes or method

    @classmethod
    def as_map(cls, value: object) -> WireMap:
        return wire_map(value, cls.MAP)

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        if len(params) != 1:
            params_of(cls.METHOD, params, *cls.TAKES)
        members = cls.as_map(params[0])
        if not members.keys() <= cls.KNOWN:
            refuse_unknown(members, cls.KNOWN, cls.MAP)
        return cls.from_map(members)

    def to_params(self) -> list[Any]:
        return [self.to_map()]


def methods_in(names: Mapping[str, object]) -> dict[str, type[Params]]:
    """The classes for the methods of a socket, by the method's name, from a module's names."""
    kinds = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, Params)]
    return {kind.METHOD: kind for kind in kinds if kind.METHOD}
