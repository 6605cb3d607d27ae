"""The interface of a kind of trigger, and parsing of the commands.

    NAME[:PARAM][ if FILTER]        !NAME... removes

A kind gets the text behind its name and attaches, removes or restores (`Kind`). The parsing here follows
kernel/trace/trace_events_trigger.c: `trigger_process_regex()`, `event_trigger_separate_filter()`,
`event_trigger_parse_num()`, `set_trigger_filter()`.
"""

import errno
from collections.abc import Callable
from typing import Protocol

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import Filter, FilterError
from utracefs_protocol.text import shown, unsigned_of
from utracefsd.consumers.ftrace.buffer.snapshot import Snapshot
from utracefsd.consumers.ftrace.error_log import ErrorLog
from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.event._trigger import UNLIMITED
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.event.attached_trigger import AttachedTrigger, SavedTrigger
from utracefsd.consumers.ftrace.event.event_file import EventFiles
from utracefsd.consumers.ftrace.hist.tables import Tables
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable

WHITESPACE = b" \t\n\v\f\r"

Kept = tuple[tuple[int, int], ...]
"""As SavedTrigger.cells; empty: a new trigger."""


@attrs.frozen
class Command:
    """One write to the file `trigger`."""

    name: bytes
    rest: bytes | None
    """The text behind the name and one separator, without leading blanks; None: nothing."""
    removes: bool
    """It began with `!`."""
    text: bytes
    """The whole command, without white space at both ends."""


@attrs.frozen(eq=False)
class Place:
    """An instance as its triggers need it."""

    table: EventTable
    sink: FtraceSink
    """Stores the instance's records."""
    files: EventFiles
    """Its event files, which own the triggers."""
    error_log: ErrorLog
    """For errors of filters."""
    snapshot: Snapshot
    """Takes the snapshots of triggers."""
    tracing_switched: Callable[[], None]
    """Called when the last trigger that can switch tracing on or off is removed: save the present state."""
    set_clock: Callable[[bytes], None] = lambda name: None
    """A write to `trace_clock`. EINVAL."""
    tables: Tables = attrs.Factory(Tables)
    """Tables of the histograms of all instances."""

    @property
    def cells(self) -> Cells:
        """Memory of counts and switches."""
        return self.sink.cells

    def make_filter(self, event: Event, text: bytes) -> Filter:
        """The filter of a trigger of that event. Errors are also added to the error log."""
        try:
            return self.files.parse_filter(event, text)
        except FilterError as error:
            self.error_log.add_filter(text, error)
            raise


class Kind(Protocol):
    """One kind of trigger. Errors are TraceError; nothing is attached or removed then."""

    name: bytes

    def write(self, place: Place, event: Event, command: Command) -> None:
        """Attach, or remove."""

    def restore(self, place: Place, event: Event, command: Command, saved: SavedTrigger) -> AttachedTrigger:
        """A trigger of the previous daemon; the caller attaches it."""

    def remove_all(self, place: Place, event: Event) -> None:
        """Opening with O_TRUNC calls this."""


def split_command(data: bytes) -> Command:
    """Parse one write. The name ends at `:`, blank or tab; blanks behind that are skipped."""
    text = data.split(b"\0", 1)[0].strip(WHITESPACE)
    end = next((i for i, byte in enumerate(text) if byte in b": \t"), len(text))
    rest = text[end + 1 :].lstrip(WHITESPACE)
    name = text[:end]
    return Command(name.removeprefix(b"!"), rest or None, name.startswith(b"!"), text)


def separate_filter(rest: bytes | None, *, needs_param: bool) -> tuple[bytes | None, bytes | None]:
    """Parameter and filter (from its `if` on). An optional parameter must begin with a digit. EINVAL: a
    needed one is missing."""
    if rest is None:
        if needs_param:
            raise TraceError(errno.EINVAL, "the trigger needs a parameter")
        return None, None
    if not needs_param and not rest[:1].isdigit():
        return None, rest
    end = next((i for i, byte in enumerate(rest) if byte in b" \t"), len(rest))
    if end == 0:
        raise TraceError(errno.EINVAL, "the trigger needs a parameter")
    return rest[:end], rest[end + 1 :].lstrip(WHITESPACE) or None


def filter_text(clause: bytes | None) -> bytes | None:
    """The text behind `if` and one separator, further blanks kept. EINVAL: no `if`, or nothing behind it."""
    if clause is None:
        return None
    end = next((i for i, byte in enumerate(clause) if byte in b" \t"), len(clause))
    if clause[:end] != b"if" or end == len(clause):
        raise TraceError(
            errno.EINVAL, f"{shown(clause)} is no filter: write the word `if`, a blank and the filter"
        )
    return clause[end + 1 :]


def parse_count(param: bytes | None) -> int:
    """How often a trigger may fire: the number before `:`. EINVAL, ERANGE."""
    return UNLIMITED if param is None else unsigned_of(param.partition(b":")[0])
