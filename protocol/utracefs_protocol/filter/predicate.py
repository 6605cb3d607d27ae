"""One comparison of a filter, as its parser hands it to what runs it."""

import enum

import attrs

from utracefs_protocol.declaration import Field

__all__ = ["How", "Predicate", "Subject"]


class Subject(enum.Enum):
    """What is compared."""

    NOTHING = enum.auto()
    """Nothing: the predicate is false, whatever the record."""

    COMMON = enum.auto()
    """A number in the common fields."""

    NUMBER = enum.auto()
    """A number in the payload."""

    CPU = enum.auto()
    """The cpu on which the record was written."""

    ARRAY = enum.auto()
    """Text in a field of fixed size."""

    DATA_LOC = enum.auto()
    """Text that a location word names, counted from the beginning of the entry."""

    REL_LOC = enum.auto()
    """The same, counted from the end of the word."""

    COMM = enum.auto()
    """The name of the thread that wrote the record."""


class How(enum.Enum):
    """How it is compared."""

    EQUAL = "=="
    UNEQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    COMMON_BITS = "&"

    IN_CPUS = "CPUS"
    """A number is one of several."""

    FULL = "full"
    """The rest is for texts: a pattern without wildcards, `abc*`, `*abc`, `*abc*`, any other pattern."""
    FRONT = "front"
    END = "end"
    MIDDLE = "middle"
    GLOB = "glob"


@attrs.frozen
class Predicate:
    """One comparison."""

    subject: Subject
    """What is compared."""

    how: How = How.EQUAL
    """How."""

    value: int | bytes = 0
    """With what. IN_CPUS: a bit for each number. Texts: the pattern, for all but GLOB without its `*`."""

    field: Field | None = None
    """Which field, where the subject is one."""

    negated: bool = False
    """The outcome is turned round; texts only."""
