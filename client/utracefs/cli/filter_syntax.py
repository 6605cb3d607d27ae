"""Errors in a filter that hold for every event: quotes, parentheses, operators.

The daemon checks a filter when the event exists. If a command declares it, the error would be reported while
the command runs; this module finds the errors that need no fields before it is started. The daemon refuses
the same filters for every event, and with the same message unless another error comes first (the grammar:
kernel/trace/trace_events_filter.c).
"""

import re

import attrs

from utracefs_protocol.filter import FilterError, errors
from utracefs_protocol.filter.parse import check_brackets

_SPACE = re.compile(r"[\s\xa0]*")
_NOTS = re.compile(r"(?:!(?![=~])[\s\xa0]*)*")
_NAME = re.compile(r"\w+(?:\.\w+)*")
_OPERATOR = re.compile(r"~|!=|==|<=|<|>=|>|&")
_VALUE = re.compile(
    r"""-?[0-9][\w.]*(?:(?<=[eE])[-+]\w*)?|--?\w*|"[^"]*"|'[^']*'|CPUS[\s\xa0]*(?:\{[^}]*\}?)?"""
)


@attrs.frozen
class SyntaxMistake:
    """An error: its position and text."""

    message: str
    column: int


def syntax_mistake(text: str) -> SyntaxMistake | None:
    """The first error; None: the filter may be valid for some event."""
    if text.strip() == "0":
        return None
    return _brackets(text) or _terms(text)


def _brackets(text: str) -> SyntaxMistake | None:
    try:
        check_brackets(
            text.encode("latin-1", "replace")
        )  # a byte for each character: columns count characters
    except FilterError as error:
        if error.position is not None:
            return SyntaxMistake(error.message, error.position)
    return None


def _terms(text: str) -> SyntaxMistake | None:
    """Predicates joined by && and ||; parentheses match already."""
    at = 0
    while True:
        while True:
            at = _NOTS.match(text, _skip(text, at)).end()  # type: ignore[union-attr]
            if text[at : at + 1] != "(":
                break
            at += 1
        if at >= len(text):
            return SyntaxMistake(errors.MEANINGLESS, len(text))
        for part, message in (
            (_NAME, "a field was expected"),
            (_OPERATOR, errors.INVALID_OPERATOR),
            (_VALUE, errors.INVALID_VALUE),
        ):
            at = _skip(text, at)
            found = part.match(text, at)
            if found is None:
                return SyntaxMistake(message, at)
            at = found.end()
        at = _skip(text, at)
        while text[at : at + 1] == ")":
            at = _skip(text, at + 1)
        if at >= len(text):
            return None
        if text[at : at + 2] not in ("&&", "||"):
            return SyntaxMistake(errors.TOO_MANY_TERMS, at)
        at += 2


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
