"""An instance of one's own: what `record` and `stream` look through, so that nobody disturbs them, nor they
others.

    make    mkdir instances/COMMAND-PID, open remove_on_close in it: it goes with our connection, whatever
            becomes of us. (Killed between the two requests we leave an instance in which nothing is enabled.)
    events  standing_events of that instance: what matches is enabled in it, now and whenever it is registered
    end     close; with it goes all that was enabled in it

`Place` is where an instance lies in the tree; `TOP` is the one that everybody shares.

What became of the records is told by the events' own numbers (`read_account`): they are not cleared with a
buffer, and they have what never reached one. With the records that somebody holds in hand, all is known:

    emitted = kept + filtered + lost (in data rings, too large, full) + overwritten
"""

import contextlib
import os
import re
from collections.abc import Iterator

import attrs

from utracefs.cli.common import available_events, event_stats, numbers
from utracefs.tracefs import Tracefs

__all__ = ["TOP", "Account", "Place", "instance_names", "own_instance", "read_account"]


@attrs.frozen
class Place:
    """An instance of the tree."""

    name: str = ""
    """Below instances/; empty: the top one."""

    def path(self, file: str) -> str:
        """Of a file in it."""
        return f"instances/{self.name}/{file}" if self.name else file

    @property
    def consumer(self) -> str:
        """How `stats` of events call it."""
        return f"ftrace:{self.name}" if self.name else "ftrace"


TOP = Place()


@attrs.frozen
class Account:
    """What became of the records of all events in one instance."""

    recorded: int = 0
    """Put into its ring buffer; what was overwritten later, too."""
    lost: int = 0
    """Those that it did not get, for whatever reason."""
    in_rings: int = 0
    """Among them, those that found their data ring full (of events, whoever else used them)."""
    dropped: int = 0
    """Among them, those that found the ring buffer full, which overwrites nothing."""

    def since(self, before: "Account") -> "Account":
        """What came after `before`. An event that was removed took its numbers along: nothing is below 0."""
        grown = zip(attrs.astuple(self), attrs.astuple(before), strict=True)
        return Account(*(max(0, now - then) for now, then in grown))


@contextlib.contextmanager
def own_instance(tree: Tracefs, command: str) -> Iterator[Place]:
    """Make one, named after the command and this process, for as long as context and connection last."""
    place = _make(tree, f"{command}-{os.getpid()}")
    handle = tree.open(place.path("remove_on_close"), os.O_WRONLY)
    try:
        yield place
    finally:
        with contextlib.suppress(ConnectionError, TimeoutError):
            tree.close_handle(handle)


def _make(tree: Tracefs, name: str) -> Place:
    """Another process may have the same number, in a container of its own."""
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        with contextlib.suppress(FileExistsError):
            tree.mkdir(f"instances/{name}{suffix}")
            return Place(name + suffix)
    raise FileExistsError(None, "exists a hundred times", f"instances/{name}")


def instance_names(tree: Tracefs) -> list[str]:
    """Of the further instances."""
    return [name for name, _ in tree.list_dir("instances")]


def read_account(tree: Tracefs, place: Place) -> Account:
    """The numbers until now."""
    events = available_events(tree)
    paths = [f"{event.directory}/stats" for event in events]
    cpus = [name for name, kind in tree.list_dir(place.path("per_cpu")) if re.fullmatch(r"cpu\d+", name)]
    paths += [place.path(f"per_cpu/{cpu}/stats") for cpu in cpus]
    texts = [text if isinstance(text, bytes) else b"" for text in tree.read_files(paths)]
    recorded = lost = in_rings = 0
    for text in texts[: len(events)]:
        stats = event_stats(text)
        mine = stats.consumers.get(place.consumer)
        if mine is not None:
            recorded += mine["recorded"]
            lost += mine["lost"]
            in_rings += stats.lost_in_rings
    dropped = sum(numbers(text).get("dropped events", 0) for text in texts[len(events) :])
    return Account(recorded, lost, in_rings, dropped)
