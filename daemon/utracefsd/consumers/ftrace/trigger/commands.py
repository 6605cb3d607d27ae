"""The file `trigger` of an event in an instance: the table of kinds, reading, writing, restoring."""

import errno
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

    def restore(self, saved: Iterable[tuple[Event, Iterable[SavedTrigger]]]) -> None:
        """Attach the triggers of the previous daemon in the order in which they were made: a hist trigger may
        read variables of an earlier one. One that cannot be attached is logged."""
        in_order = sorted(((event, one) for event, triggers in saved for one in triggers), key=_number)
        for event, one in in_order:
            command = split_command(one.command)
            try:
                attached = KINDS[command.name].restore(self._place, event, command, one)
                self._place.files.add_trigger(event, attached)
            except (KeyError, TraceError, OSError, MemoryError) as error:
                daemon_log(
                    "trigger-lost",
                    trigger=shown(one.command),
                    event=shown(event.tracepoint_name),
                    reason=error,
                )


def _number(saved: tuple[Event, SavedTrigger]) -> int:
    """The key of its cell: they grow."""
    _, one = saved
    return one.cells[0][1] if one.cells else 0
