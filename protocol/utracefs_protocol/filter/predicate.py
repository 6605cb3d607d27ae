"""One comparison of a filter: the parser's output and the program's input."""

import enum

import attrs

from utracefs_protocol.events.declaration import Field


class Subject(enum.Enum):
    """The left side of a comparison."""

    NOTHING = enum.auto()
    """The predicate is false for every record."""
    COMMON = enum.auto()
    """A number in the common fields."""
    NUMBER = enum.auto()
    """A number in the payload."""
    CPU = enum.auto()
    """The cpu of the record."""
    ARRAY = enum.auto()
    """Text in a field of fixed size."""
    DATA_LOC = enum.auto()
    """Text at a location word's offset from the beginning of the entry."""
    REL_LOC = enum.auto()
    """Text at a location word's offset from the end of the word."""
    COMM = enum.auto()
    """The name of the thread that wrote the record."""


class How(enum.Enum):
    EQUAL = "=="
    UNEQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    COMMON_BITS = "&"

    IN_CPUS = "CPUS"
    """The number is in a set."""
    FULL = "full"
    """From here on for texts: a pattern without wildcards, `abc*`, `*abc`, `*abc*`, any other pattern."""
    FRONT = "front"
    END = "end"
    MIDDLE = "middle"
    GLOB = "glob"


@attrs.frozen
class Predicate:
    subject: Subject
    how: How = How.EQUAL
    value: int | float | bytes = 0
    """Right side. IN_CPUS: a bit for each number. Floats: a float. Texts: the pattern, without its `*` except
    for GLOB."""
    field: Field | None = None
    """The field, if the subject is one."""
    negated: bool = False
    """The result is negated; texts only."""
