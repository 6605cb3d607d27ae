"""An instance of one's own: what `record` and `stream` look through, so that nobody disturbs them, nor they
others.

    make    mkdir instances/COMMAND-PID, open remove_on_close in it: it goes with our connection, whatever
            becomes of us. (Killed between the two requests we leave an instance in which nothing is enabled.)
    events  standing_events of that instance: what matches is enabled in it, now and whenever it is registered
    end     close; with it goes all that was enabled in it

What became of the records is told by the events' own numbers (`Ledger`): they are not cleared with a
buffer, and they have what never reached one. With the records that somebody holds in hand, all is known:

    emitted = kept + filtered + lost (in data rings, too large, full) + overwritten
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator

import attrs

from utracefs.cli import Failure
from utracefs.cli.common import EventStats, available_events, event_stats, numbers
from utracefs.cli.place import Place
from utracefs.event_names import EventName, parse_event_list
from utracefs.tracefs import Tracefs

__all__ = ["Account", "Ledger", "own_instance"]


@attrs.frozen
class Account:
    """What became of the records of all events in one instance, since a Ledger was opened."""

    recorded: int = 0
    """Put into its ring buffer; what was overwritten later, too."""
    filtered: int = 0
    """Those that a filter kept away, or that came while `tracing_on` was 0."""
    lost: int = 0
    """Those that it did not get, for whatever reason."""
    in_rings: int = 0
    """Among them, those that found their data ring full."""
    dropped: int = 0
    """Among them, those that found the ring buffer full, which overwrites nothing."""


class Ledger:
    """Keeps the account of one instance. Made before anything is enabled there."""

    def __init__(self, tree: Tracefs, place: Place) -> None:
        self._tree = tree
        self._place = place
        self._events: dict[EventName, EventStats] = {}
        self._dropped = 0
        self._events, self._dropped = self._read(available_events(tree))

    def read(self) -> Account:
        """Until now. Of events that this instance has, or had when the ledger was opened; one that was
        removed took its numbers along."""
        enabled = parse_event_list(self._tree.read_file(self._place.path("set_event")))
        now, dropped = self._read(dict.fromkeys([*enabled, *self._events]))
        recorded = filtered = lost = in_rings = 0
        for event, stats in now.items():
            mine = stats.consumers.get(self._place.consumer)
            if mine is None:
                continue
            before = self._events.get(event, EventStats(0, 0, {}))
            mine_before = before.consumers.get(self._place.consumer, {})
            recorded += max(0, mine["recorded"] - mine_before.get("recorded", 0))
            filtered += max(0, mine["filtered"] - mine_before.get("filtered", 0))
            lost += max(0, mine["lost"] - mine_before.get("lost", 0))
            in_rings += max(0, stats.lost_in_rings - before.lost_in_rings)
        return Account(recorded, filtered, lost, min(in_rings, lost), max(0, dropped - self._dropped))

    def _read(self, events: Iterable[EventName]) -> tuple[dict[EventName, EventStats], int]:
        """The numbers of the events that are there, and records dropped by the cpus' buffers."""
        events = list(events)
        texts = self._tree.read_files(f"{event.directory}/stats" for event in events)
        found = {
            event: event_stats(text)
            for event, text in zip(events, texts, strict=True)
            if isinstance(text, bytes)
        }
        cpus = [name for name, kind in self._tree.list_dir(self._place.path("per_cpu")) if kind == "d"]
        texts = self._tree.read_files(self._place.path(f"per_cpu/{cpu}/stats") for cpu in cpus)
        dropped = sum(numbers(text).get("dropped events", 0) for text in texts if isinstance(text, bytes))
        return found, dropped


@contextlib.contextmanager
def own_instance(tree: Tracefs, command: str, name: str = "") -> Iterator[Place]:
    """Make one, of that name or else named after the command and this process, for as long as context and
    connection last. Failure: there is one of that name."""
    place = _make_named(tree, name) if name else _make(tree, f"{command}-{os.getpid()}")
    handle = tree.open(place.path("remove_on_close"), os.O_WRONLY)
    try:
        yield place
    finally:
        with contextlib.suppress(ConnectionError, TimeoutError):
            tree.close_handle(handle)


def _make_named(tree: Tracefs, name: str) -> Place:
    try:
        tree.mkdir(f"instances/{name}")
    except FileExistsError:
        reason = "there is an instance of this name already; --keep takes one as it is"
        raise Failure(name, reason) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    return Place(name)


def _make(tree: Tracefs, name: str) -> Place:
    """Another process may have the same number, in a container of its own."""
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        with contextlib.suppress(FileExistsError):
            tree.mkdir(f"instances/{name}{suffix}")
            return Place(name + suffix)
    raise FileExistsError(errno.EEXIST, "exists a hundred times", f"instances/{name}")
