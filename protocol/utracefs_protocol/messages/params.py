"""The params of a method: some values in order, or one map that stands for a C struct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from utracefs_protocol.messages.rows import Message
from utracefs_protocol.messages.values import WireMap, params_of, refuse_unknown, wire_map


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
    """Params that are one map of the members. An absent member is zero, and an unknown one E2BIG unless it is
    zero: copy_struct_from_user()."""

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
