"""`standing_events`, `standing_filters` and `standing_triggers`: lines that are applied to each new event.

    standing_events      GLOB            it is enabled if a line matches
    standing_filters     GLOB FILTER     to its `filter`: the last line that matches
    standing_triggers    GLOB TRIGGER    to its `trigger`: all lines that match, in their order

A filter for an event that no program has declared yet is in place before its first record. (The kernel has
no such files; its users poll.) A line of the last two does not affect events that exist. If it is invalid for
an event, the effect is that of a failed write to its file; the error is in that file (a filter) and in
error_log.
"""

import errno
from collections.abc import Callable, Iterable

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import shown
from utracefsd.consumers.ftrace.event.event_words import check_glob, glob_matches
from utracefsd.consumers.ftrace.settings import Settings
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event

_NO_ROOM = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.E2BIG})
"""Errors that are not mistakes in the line; they are not in error_log."""

MAX_LINES = 1024
"""Per file: each line is compared with every event that is registered. E2BIG."""


@attrs.define(eq=False)
class StandingFile:
    """One of the files, of one instance."""

    _settings: Settings
    _name: str
    _write: Callable[[Event, bytes], None]
    """Writes the text of a line to the event; may raise TraceError, OSError, MemoryError."""
    _on_changed: Callable[[], None]
    """Called after each change."""
    _last_only: bool = False
    """Use only the last of several matching lines."""
    _check: Callable[[bytes], object] = lambda _text: None
    """TraceError: the text of a line is invalid for every event."""
    _reported: set[bytes] = attrs.Factory(set)

    @property
    def _setting(self) -> str:
        return "standing" if self._name == "standing_events" else self._name

    @property
    def lines(self) -> tuple[bytes, ...]:
        """In the order of writing."""
        lines: tuple[bytes, ...] = getattr(self._settings, self._setting)
        return lines

    def text(self) -> bytes:
        return b"".join(b"%s\n" % line for line in self.lines)

    def store(self, line: bytes) -> None:
        """One write: appends a line `GLOB TEXT`; `!` and a listed line removes that. Ignores an empty line.
        EINVAL: not such a line, not listed, invalid for every event; E2BIG: too many."""
        line = line.strip()
        if not line:
            return
        if line.startswith(b"!"):
            self.remove(line[1:])
            return
        glob, _, text = line.partition(b" ")
        check_glob(glob)
        if not text.strip():
            raise TraceError(
                errno.EINVAL, f"{self._name} takes lines with a glob, a blank, and what to write"
            )
        if b"\n" in text:
            raise TraceError(errno.EINVAL, f"{self._name} takes a line at a time")
        self._check(text)
        lines = [*(other for other in self.lines if other != line), line]
        if len(lines) > MAX_LINES:
            raise TraceError(errno.E2BIG, f"{self._name} has at most {MAX_LINES} lines")
        self.set_lines(lines)

    def remove(self, line: bytes) -> None:
        """EINVAL: it is not listed."""
        if line not in self.lines:
            raise TraceError(errno.EINVAL, f"{self._name} does not list it; repeat the line as it is shown")
        self.set_lines([other for other in self.lines if other != line])

    def means(self, event: Event) -> bool:
        return any(glob_matches(line.partition(b" ")[0], event) for line in self.lines)

    def clear(self) -> None:
        """Truncating the file calls this."""
        self.set_lines(())

    def set_lines(self, lines: Iterable[bytes]) -> None:
        setattr(self._settings, self._setting, tuple(lines))
        self._reported.clear()
        self._on_changed()

    def created(self, event: Event) -> None:
        """Write to the files of a new event. An error does not prevent the registration; one that is not a
        mistake in the line is logged."""
        texts = [
            text
            for glob, _, text in (line.partition(b" ") for line in self.lines)
            if glob_matches(glob, event)
        ]
        for text in texts[-1:] if self._last_only else texts:
            try:
                self._write(event, text)
            except TraceError as error:
                if error.errno in _NO_ROOM:
                    self._tell(text, event, error.text)
            except (OSError, MemoryError) as error:
                self._tell(text, event, str(error) or "no memory")

    def _tell(self, text: bytes, event: Event, why: str) -> None:
        """Log once for each line: programs decide how many events there are."""
        if text not in self._reported:
            self._reported.add(text)
            daemon_log(
                "standing-not-set",
                file=self._name,
                line=shown(text),
                event=shown(event.tracepoint_name),
                reason=why,
            )
