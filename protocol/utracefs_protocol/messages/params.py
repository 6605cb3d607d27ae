"""What the classes for the params of a method have in common: for those who serve them or check types."""

from typing import Any, ClassVar, Protocol, Self

__all__ = ["Params"]


class Params(Protocol):
    """What every class for the params of a method has."""

    METHOD: ClassVar[str]
    """The method's name on the wire."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        """Read and check; TraceError for what does not fit."""

    def to_params(self) -> list[Any]:
        """As they go on the wire."""
