"""Filters: which records an event's consumer takes, by what is in them.

errors       why a text is refused
literals     numbers, patterns, lists of cpus
predicate    one comparison: of what, how, with what
parse        the text of a filter becomes a Filter, or a FilterError that says what is wrong and where
_program     runs it for each record (compiled)
_names       names of the threads that write (compiled)
"""

from utracefsd.consumers.ftrace.filter._names import WriterNames
from utracefsd.consumers.ftrace.filter._program import Filter
from utracefsd.consumers.ftrace.filter.errors import FilterError
from utracefsd.consumers.ftrace.filter.parse import parse_filter

__all__ = ["Filter", "FilterError", "WriterNames", "parse_filter"]
