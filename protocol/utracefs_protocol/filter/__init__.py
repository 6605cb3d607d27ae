"""Filters: expressions over a record's fields that select the records of a consumer.

parse        parses a filter's text into a Filter; FilterError says what is wrong, where, and how to mend it
_program     evaluates it for each record (compiled)
"""

from utracefs_protocol.filter._program import Filter, Names
from utracefs_protocol.filter.parse import FilterError, parse_filter

__all__ = ["Filter", "FilterError", "Names", "parse_filter"]
