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
from collections import Counter
from collections.abc import Iterable, Iterator

import attrs

from utracefs.cli import Failure
from utracefs.cli.common import EventStats, available_events, event_stats, numbers
from utracefs.cli.instance_option import Place
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs

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
    overrun: int = 0
    """Among the recorded ones, those that were overwritten before anybody read them."""
    unread: int = 0
    """In the ring buffer now, whenever they came."""
    refused: dict[str, int] = attrs.field(factory=dict[str, int])
    """Never made: `EVENT.FIELD was float` and the like, to how often."""


class Ledger:
    """Keeps the account of one instance. Made before anything is enabled there."""

    def __init__(self, tree: Tracefs, place: Place) -> None:
        self._tree = tree
        self._place = place
        self._events: dict[EventName, EventStats] = {}
        self._events, self._buffers = self._read(available_events(tree))

    def read(self, triggered: Iterable[EventName] = ()) -> Account:
        """Until now. Of events that this instance has, or had when the ledger was opened; one that was
        removed took its numbers along. triggered: events that are not enabled here, but have triggers."""
        enabled = parse_event_list(self._tree.read_file(self._place.path("set_event")))
        now, buffers = self._read(dict.fromkeys([*enabled, *self._events, *triggered]))
        recorded = filtered = lost = in_rings = 0
        refused: dict[str, int] = {}
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
            for reason, count in stats.refused.items():
                if (more := count - before.refused.get(reason, 0)) > 0:
                    refused[f"{event.name}.{reason}"] = more
        since = {name: max(0, buffers[name] - self._buffers[name]) for name in buffers}
        return Account(
            recorded,
            filtered,
            lost,
            min(in_rings, lost),
            since.get("dropped events", 0),
            since.get("overrun", 0),
            buffers["entries"],
            refused,
        )

    def _read(self, events: Iterable[EventName]) -> tuple[dict[EventName, EventStats], Counter[str]]:
        """The numbers of the events that are there, and the sums of those of the cpus' buffers."""
        events = list(events)
        texts = self._tree.read_files(f"{event.directory}/stats" for event in events)
        found = {
            event: event_stats(text)
            for event, text in zip(events, texts, strict=True)
            if isinstance(text, bytes)
        }
        cpus = [name for name, kind in self._tree.list_dir(self._place.path("per_cpu")) if kind == "d"]
        texts = self._tree.read_files(self._place.path(f"per_cpu/{cpu}/stats") for cpu in cpus)
        buffers: Counter[str] = Counter()
        for text in texts:
            if isinstance(text, bytes):
                buffers.update(numbers(text))
        return found, buffers


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
