"""Immutable data for modules that every emitting program imports.

    class Registered(Frozen):
        status_index: int
        id: int = 0

is like `@attrs.frozen class Registered`: made by position or by name, compared by value, with slots and a
repr. attrs generates and compiles the source of such methods, 0.3 ms for each class, and takes 15 ms for
itself (it imports inspect). To save a program's first event that time, the modules on its path use this
instead. It compiles only `__init__`, when a class makes its first object. All other modules, except messages,
use attrs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> object:
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class FrozenType(type):
    """Makes the annotated names of a class body its slots."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **named: Any) -> FrozenType:
        members = tuple(
            member
            for member, kind in body.get("__annotations__", {}).items()
            if not kind.startswith("ClassVar")
        )
        defaults = {member: body.pop(member) for member in members if member in body}
        body["__slots__"] = body["__match_args__"] = members
        made = super().__new__(cls, name, bases, body, **named)
        if bases:
            made._names = members
            made._defaults = defaults
            made._setters = tuple(made.__dict__[member].__set__ for member in members)
        return made

    def _compile_init(cls) -> None:
        scope: dict[str, Any] = {
            f"set_{name}": store for name, store in zip(cls._names, cls._setters, strict=True)
        }
        scope |= {f"default_{name}": value for name, value in cls._defaults.items()}
        wanted = [f"{name}=default_{name}" if name in cls._defaults else name for name in cls._names]
        stores = [f"set_{name}(self, {name})" for name in cls._names]
        source = f"def __init__({', '.join(['self', *wanted])}): {'; '.join(stores) or 'pass'}"
        exec(source, scope)  # noqa: S102 - from the names of a class here
        cls.__init__ = scope["__init__"]  # type: ignore[misc]

    if TYPE_CHECKING:
        _names: tuple[str, ...]
        _defaults: dict[str, Any]
        _setters: tuple[Callable[[object, Any], None], ...]


class Frozen(metaclass=FrozenType):
    """Base of such a class. Its module needs `from __future__ import annotations`; names that are no members
    are ClassVars. A class has only its own members: bases have none."""

    if TYPE_CHECKING:
        __match_args__: ClassVar[tuple[str, ...]]

    def __init__(self, *values: Any, **named: Any) -> None:
        """Called for the first object of a class: compiles the class's own `__init__`."""
        type(self)._compile_init()
        self.__init__(*values, **named)  # type: ignore[misc]

    def evolve(self, **changed: Any) -> Self:
        """A copy with these members changed, like `attrs.evolve`."""
        return type(self)(**dict(zip(self.__match_args__, self._values(), strict=True)) | changed)

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} does not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} does not change")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        values = zip(self.__match_args__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"
