"""The file `trigger` of an event in an instance: the table of kinds, reading, writing, restoring."""

import errno
import re
from collections.abc import Callable, Iterable, Iterator

from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import shown
from utracefsd.consumers.ftrace.event.event_file import SavedTrigger
from utracefsd.consumers.ftrace.hist._hist import Entries
from utracefsd.consumers.ftrace.hist.text import hist_pieces
from utracefsd.consumers.ftrace.hist.variables import is_read
from utracefsd.consumers.ftrace.trigger.hist_kinds import (
    HistKind,
    HistSwitchKind,
    all_hists,
    hists_of,
)
from utracefsd.consumers.ftrace.trigger.kind import (
    Command,
    EventSwitchKind,
    Kind,
    Place,
    SnapshotKind,
    StacktraceKind,
    TracingSwitchKind,
    split_command,
)
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event

KINDS: dict[bytes, Kind] = {
    kind.name: kind
    for kind in (
        TracingSwitchKind(b"traceon", on=True),
        TracingSwitchKind(b"traceoff", on=False),
        SnapshotKind(),
        StacktraceKind(),
        EventSwitchKind(b"enable_event", on=True),
        EventSwitchKind(b"disable_event", on=False),
        HistSwitchKind(b"enable_hist", on=True),
        HistSwitchKind(b"disable_hist", on=False),
        HistKind(),
    )
}
"""All kinds, in the order in which the file lists them."""

AVAILABLE = b"# Available triggers:\n# %s\n" % b" ".join(KINDS)


def command_of(data: bytes) -> Command:
    """The command of one write. EINVAL: there is no trigger of its name."""
    command = split_command(data)
    if command.name not in KINDS:
        raise TraceError(
            errno.EINVAL,
            f"there is no trigger {shown(command.name)}; there are {b' '.join(KINDS).decode()}",
        )
    return command


class Triggers:
    """The triggers of one instance, by their files."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def text(self, event: Event) -> bytes:
        lines = [attached.text() + b"\n" for attached in self._place.files.of(event).triggers]
        return b"".join(lines) or AVAILABLE

    def hist_pieces(self, event: Event, comm: Callable[[int], bytes]) -> Iterator[bytes]:
        """The content of the file `hist`, piece by piece. comm: the name of a thread."""
        between = b""
        for one, entries, line, below in [  # all are copied before the first piece
            (one, Entries(one.table), one.text() + b"\n", one.below_text(comm))
            for one in hists_of(self._place, event)
        ]:
            yield between
            yield from hist_pieces(one.definition, entries, line, comm, more=one.more_text, below=below)
            between = b"\n\n"

    def may_go(self, event: Event) -> bool:
        """Whether no trigger of another event depends on one of this event's."""
        others = [(other, one) for other, one in all_hists(self._place) if other is not event]
        return not any(is_read(one, others) for one in hists_of(self._place, event))

    def hist_hits(self, event: Event) -> int:
        """How many records all histograms of the event have counted."""
        return sum(one.table.hits for one in hists_of(self._place, event))

    def write(self, event: Event, data: bytes) -> None:
        """One write: nothing, or one command. EINVAL, also for an empty line, EEXIST, and the kind's
        errors."""
        if not data:
            return
        command = command_of(data)
        KINDS[command.name].write(self._place, event, command)

    def truncate(self, event: Event) -> None:
        """Opening with O_TRUNC calls this."""
        for kind in KINDS.values():
            kind.remove_all(self._place, event)

    def restore_all(self, saved: Iterable[tuple[Event, Iterable[SavedTrigger]]]) -> None:
        """Attach the triggers of the previous daemon, each event's in the listed order; one that cannot be
        attached is logged. A hist trigger may read variables of another event's, which must be restored
        first."""
        waiting = [(event, list(triggers)) for event, triggers in saved]
        going = True
        while going:
            going = False
            for event, triggers in waiting:
                while triggers and self._may_restore(event, triggers[0], waiting):
                    self.restore(event, [triggers.pop(0)])
                    going = True
        for event, triggers in waiting:
            self.restore(event, triggers)

    def _may_restore(
        self, event: Event, one: SavedTrigger, waiting: Iterable[tuple[Event, list[SavedTrigger]]]
    ) -> bool:
        """Whether it reads no variable of a trigger that is still to be restored."""
        others = [
            other for other_event, triggers in waiting for other in triggers if other_event is not event
        ]
        names = _names_read(one.command)
        return not names or not any(_may_define(other.command, names) for other in others)

    def restore(self, event: Event, saved: Iterable[SavedTrigger]) -> None:
        """The same for one event."""
        for one in saved:
            command = split_command(one.command)
            try:
                attached = KINDS[command.name].restore(self._place, event, command, one)
                self._place.files.add_trigger(event, attached, at_end=True)
            except (KeyError, TraceError, OSError, MemoryError) as error:
                daemon_log(
                    "trigger-lost",
                    trigger=shown(one.command),
                    event=shown(event.tracepoint_name),
                    reason=error,
                )


def _names_read(command: bytes) -> set[bytes]:
    """Variables of other triggers that a definition may read: `$x`, but for its own, and fields that actions
    take from another event (hist/variables.py)."""
    names = set(re.findall(rb"(?<!\.)\$([^,:.()+*/ $-]+)", command)) - _names_defined(command)
    names.update(re.findall(rb"\.\$([^,:.()+*/ $-]+)", command))
    for params in re.findall(rb"\(([^()]*)\)", command) if command.startswith(b"hist") else ():
        names.update(b"synthetic_" + param.strip().rpartition(b".")[2] for param in params.split(b","))
    return names


def _names_defined(command: bytes) -> set[bytes]:
    """A definition's own variables, among other words in front of a `=`."""
    return set(re.findall(rb"[:,]([^,:=]+)=", command))


def _may_define(command: bytes, names: set[bytes]) -> bool:
    """Whether a definition has a variable of one of these names. It may be another one of the same name:
    triggers that wait for each other are tried at the end, in the listed order."""
    return command.startswith(b"hist") and not names.isdisjoint(_names_defined(command))
