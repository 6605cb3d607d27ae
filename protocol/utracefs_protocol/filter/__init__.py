"""Filters: which records an event's consumer takes, by what is in them.

errors       why a text is refused
literals     numbers, patterns, lists of cpus
predicate    one comparison: of what, how, with what
parse        the text of a filter becomes a Filter, or a FilterError that says what is wrong and where
_program     runs it for each record (compiled)
"""

from utracefs_protocol.filter._program import Filter, Names
from utracefs_protocol.filter.errors import FilterError
from utracefs_protocol.filter.parse import parse_filter

__all__ = ["Filter", "FilterError", "Names", "parse_filter"]
