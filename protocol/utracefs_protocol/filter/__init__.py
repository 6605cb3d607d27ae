"""Filters: expressions over a record's fields that select the records of a consumer.

errors       errors of a filter's text
literals     numbers, patterns, lists of cpus
parse        parses a filter's text into a Filter; FilterError says what is wrong and where
_program     evaluates it for each record (compiled)
"""

from utracefs_protocol.filter._program import Filter, Names
from utracefs_protocol.filter.errors import FilterError
from utracefs_protocol.filter.parse import parse_filter

__all__ = ["Filter", "FilterError", "Names", "parse_filter"]
