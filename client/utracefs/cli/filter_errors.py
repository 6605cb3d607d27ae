"""Errors in filters and triggers for people: the reason and the place in the text.

An invalid filter is shown in its own file, with a caret; for an error in a trigger read the last entry of
error_log:

    stauts >= 500                           [ 1187.516331] hist:user_events:ev: error: Couldn't find field
           ^                                  Command: hist:keys=stauts
    parse_error: Field not found                                 ^

The positions of the carets are the kernel's.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator

import attrs

from utracefs.cli import Failure
from utracefs.tree.event_names import EventName
from utracefs_protocol.filter import FilterError
from utracefs_protocol.filter._program import Subject
from utracefs_protocol.filter.parse import (
    ADVICE,
    FIELD_NOT_FOUND,
    INVALID_OPERATOR,
    INVALID_VALUE,
    MAX_CPUS,
    Parser,
    Predicate,
    check_brackets,
    is_no_filter,
)
from utracefs_protocol.text import bytes_of, text_of

INDENT = "  "

_ADVICE = {
    **ADVICE,
    "Float type can not be an operand in expression": (
        "a float may be a key, but not be summed up, and not have .log2 or .buckets;"
        " `utracefs sql` computes with those of a recording"
    ),
}


@attrs.frozen
class Refusal:
    """A filter or trigger that is invalid for an event."""

    reason: str
    """The kernel's message, if it has one."""
    detail: str
    """The text with a caret below; may be empty."""
    what: str
    """`filter`, `trigger`."""
    hint: str = ""
    """Valid alternatives. By default the advice for this reason, if there is one."""

    @property
    def consequence(self) -> str:
        return "recorded without the filter" if self.what == "filter" else "is without the trigger"

    def failure(self, event: EventName | str) -> Failure:
        """A Failure about it, to be raised or printed."""
        advice = f"; {_ADVICE[self.reason]}" if _ADVICE.get(self.reason) else ""
        return Failure(str(event), f"{self.what}: {self.reason}{self.hint or advice}", detail=self.detail)

    @property
    def is_about_a_field(self) -> bool:
        """The field does not exist."""
        return self.reason in (FIELD_NOT_FOUND, "Couldn't find field")


class _AnyEvent(Parser):
    """Finds the errors that need no fields: any name, operator and value are a predicate."""

    def _predicate(self, at: int) -> tuple[int, Predicate]:
        for part, message in _PARTS:
            at = self._behind_space(at)
            found = part.match(self._text, at)
            if found is None:
                raise FilterError(message, at)
            at = found.end()
        return at, Predicate(Subject.NOTHING)


_PARTS = (
    (re.compile(rb"[\w\x80-\xff]+(?:\.[\w\x80-\xff]+)*"), ""),
    (re.compile(rb"~|!=|==|<=|<|>=|>|&"), INVALID_OPERATOR),
    (
        re.compile(
            rb"""-?[0-9][\w.]*(?:(?<=[eE])[-+]\w*)?|--?\w*|"[^"]*"|'[^']*'|CPUS[\s\xa0]*(?:\{[^}]*\}?)?"""
        ),
        INVALID_VALUE,
    ),
)


def syntax_refusal(text: str, what: str) -> Refusal | None:
    """Errors of a filter, or of a trigger's filter, that hold for any event: found before a command starts
    that declares the event. The daemon refuses it, too, perhaps for another reason."""
    head, condition = "", text
    if what == "trigger":
        parts = re.split(r"(\sif\s)", text, maxsplit=1)
        if len(parts) < 3:
            return None
        head, condition = parts[0] + parts[1], parts[2]
    data = condition.encode("latin-1", "replace")  # a byte for each character: columns count characters
    try:
        if not is_no_filter(data):
            check_brackets(data)
            _AnyEvent(data, (), MAX_CPUS, True).parse()
    except FilterError as error:
        column = len(head) + (len(condition) if error.position is None else error.position)
        reason = error.message or "a field was expected"
        return Refusal(reason, _indented(f"{text}\n{' ' * column}^"), what)
    return None


def check_syntax(about: str, filter: str | None, triggers: Iterable[str]) -> None:
    """Failure for a filter or trigger that is invalid for every event."""
    for text, what in ((filter, "filter"), *((trigger, "trigger") for trigger in triggers)):
        if text and (refusal := syntax_refusal(text, what)) is not None:
            raise refusal.failure(about)


def filter_refusal(text: str, shown: bytes, otherwise: str) -> Refusal:
    """shown: content of events/SYSTEM/NAME/filter. otherwise: the reason if it has none."""
    found = re.fullmatch(r"(.*)\n( *\^)\nparse_error: ([^\n]*)\n+", text_of(shown), re.DOTALL)
    if found is None:
        return Refusal(otherwise, _indented(text), "filter")
    return Refusal(found[3], _indented(f"{found[1]}\n{found[2]}"), "filter")


@contextlib.contextmanager
def about_the_filter(path: str, text: str) -> Iterator[None]:
    """Report an invalid filter for a file's records in the format of one for an event."""
    try:
        yield
    except FilterError as error:
        shown = error.shown(bytes_of(text))
        refusal = filter_refusal(text, shown, "no event has a record that it could be about")
        if refusal.is_about_a_field:
            refusal = attrs.evolve(refusal, hint=f"; `utracefs sql {path}` lists the fields")
        raise refusal.failure(path) from None


_AT_COLUMN = re.compile(r"filter: (.+?) at column (\d+): .*", re.DOTALL)


def request_refusal(text: str, answer: str) -> Refusal | None:
    """answer: the daemon's to a request with the filter `text`; None if that is not about the filter."""
    if (found := _AT_COLUMN.fullmatch(answer)) is None:
        return None
    column = len(text_of(bytes_of(text)[: int(found[2])]))
    refusal = Refusal(found[1], _indented(f"{text}\n{' ' * column}^"), "filter")
    if refusal.is_about_a_field:
        refusal = attrs.evolve(refusal, hint="; `utracefs list --fields` shows its fields")
    return refusal


@contextlib.contextmanager
def about_the_requested_filter(text: str | None) -> Iterator[None]:
    """Report a filter that the daemon refuses in a request in the format of one for an event."""
    try:
        yield
    except OSError as error:
        if text is None or (refusal := request_refusal(text, error.strerror or "")) is None:
            raise
        raise refusal.failure(str(error.filename)) from None


_ENTRY = re.compile(r"^\[ *\d+\.\d+\] (.*?): error: (.*)\n  Command: ((?:.|\n)*?)\n( {11,}\^)$", re.MULTILINE)


_FILTER = "event filter parse error"
"""In error_log, in front of an error in a filter."""


def trigger_refusal(text: str, error_log: bytes, otherwise: str) -> Refusal:
    """error_log: that of the instance; its last entry is used if it is about this text. otherwise: the reason
    if it has none about it."""
    entries = _ENTRY.findall(text_of(error_log))
    if entries:
        _, message, command, caret = entries[-1]
        # A filter after `if` is listed alone there.
        if command and (command == text or text.endswith(command) or command.endswith(text)):
            return Refusal(message, _indented(f"{command}\n{caret[11:]}"), "trigger")
    return Refusal(otherwise, _indented(text), "trigger")


def logged_refusals(texts: Collection[str], error_log: bytes) -> Iterator[tuple[str, str, Refusal]]:
    """The hist triggers with an error in error_log: event, text, refusal. An error in the filter after `if`
    does not name its event, which is empty then. EEXIST is no error: the trigger was set."""
    by_condition = {text.partition(" if ")[2].strip(): text for text in texts if " if " in text}
    for location, message, command, caret in _ENTRY.findall(text_of(error_log)):
        kind, _, event = location.partition(":")
        text = by_condition.get(command.strip(), "") if kind == _FILTER else command
        if text in texts and kind in ("hist", _FILTER) and message != "Hist trigger already exists":
            yield event, text, Refusal(message, _indented(f"{command}\n{caret[11:]}"), "trigger")


def _indented(text: str) -> str:
    return "\n".join(INDENT + line for line in text.rstrip().split("\n"))
