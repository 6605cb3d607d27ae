"""Wanting events for a while: what `record` and `stream` change in the daemon, and change back.

    start   standing_events += PATTERN   events that match are enabled, now and whenever one is registered
    end     standing_events -= PATTERN   only lines that were added here
            enable 0                     only events that were off at the start and match

Settings (`set`) are remembered with their old value and restored in reverse order.

Two recorders that want the same pattern at the same time share its line: the first one to end takes it away
for both.
"""

from collections.abc import Sequence

from utracefs.cli.common import standing_events, write_word
from utracefs.event_names import EventName, parse_event_list, select
from utracefs.tracefs import Tracefs

__all__ = ["Subscription"]


class Subscription:
    """Call `start`, later `stop_new`, `disable` and `restore`, in this order and even when one of them
    fails."""

    def __init__(self, tree: Tracefs, patterns: Sequence[str]) -> None:
        self._tree = tree
        self._patterns = patterns
        self._enabled_before: set[EventName] = set()
        self._added: list[str] = []
        self._settings: list[tuple[str, bytes]] = []

    def set(self, path: str, value: str) -> None:
        """Write a control file, and remember what it was. Nothing is written where that is the present value:
        writing trace_clock, for one, clears the buffer."""
        before = _present(path, self._tree.read_file(path))
        if before != value:
            self._tree.write_file(path, value.encode() + b"\n")
            self._settings.append((path, before.encode()))

    def start(self) -> None:
        """Enable what matches; OSError(EINVAL) for a pattern that the daemon does not take."""
        self._enabled_before = set(self.enabled())
        standing = standing_events(self._tree)
        for pattern in dict.fromkeys(self._patterns):
            if pattern not in standing:
                write_word(self._tree, "standing_events", pattern)
                self._added.append(pattern)

    def enabled(self) -> list[EventName]:
        """All events that are enabled now."""
        return parse_event_list(self._tree.read_file("set_event"))

    def stop_new(self) -> None:
        """Events registered from now on are not enabled for us any more."""
        while self._added:
            pattern = self._added.pop()
            try:
                write_word(self._tree, "standing_events", f"!{pattern}")
            except (ConnectionError, TimeoutError):
                raise
            except OSError:
                pass  # another program took the line away

    def disable(self) -> None:
        """Turn off what `start` turned on, and what came on since because of it."""
        for event in select(self._patterns, self.enabled()):
            if event not in self._enabled_before:
                try:
                    self._tree.write_file(f"{event.directory}/enable", b"0\n")
                except (ConnectionError, TimeoutError):
                    raise
                except OSError:
                    pass  # the event is gone

    def restore(self) -> None:
        """Give back the settings."""
        while self._settings:
            path, value = self._settings.pop()
            self._tree.write_file(path, value + b"\n")


def _present(path: str, content: bytes) -> str:
    """What to write to get back what a control file shows."""
    text = content.decode("ascii", "replace").strip()
    if path == "trace_clock":
        return text.partition("[")[2].partition("]")[0]
    # "7 (expanded: 1408)": the size that it takes when it is first used
    return text.partition("expanded: ")[2].rstrip(")") or text
