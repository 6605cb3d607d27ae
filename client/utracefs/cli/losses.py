"""Losses in words: for the summary of `record`, for its file, and for `report` of the file; of the whole
daemon for `status`, `top` and `doctor`. Also the refused records."""

import os
import re
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from utracefs.cli import Failure
from utracefs.cli.common import EventStats, cpu_numbers, tell
from utracefs.cli.instance_option import Place
from utracefs.cli.tables import counted

if TYPE_CHECKING:
    from utracefs.tree.tracefs import Tracefs

IN_RINGS: Final = (
    "in data rings (UTRACEFS_RING_KB of the program, without a ring UTRACEFS_BUFFER_KB; or forked children"
    " that could not connect, or ended before the daemon answered: docs/operations.md, Forked children)"
)
"""Text for two kinds of losses, for which the daemon has one number."""

AS_FAR_AS_REPORTED: Final = " as far as the daemon had reported before it ended"
"""After `lost_text`, if the daemon ended."""


IN_DATA_RINGS: Final = ("in data rings", "UTRACEFS_RING_KB=65536 for the program holds more")
"""A place of losses, and its remedy."""

TOO_LARGE: Final = "too large for a page"
"""Another place, where fewer records do not help."""

TOO_LARGE_IN_RING_BUFFER: Final = (TOO_LARGE, "a larger buffer_subbuf_size_kb (--subbuf-size) holds them")
"""The same place, and the remedy in `record`."""


class Losing:
    """Tells that records are lost, in a line a second, while they are."""

    def __init__(self, what: str, *places: tuple[str, str]) -> None:
        """what: the output; empty: tell nothing. places: of losses, with their remedies."""
        self._what = what
        self._remedies = dict(places)
        self._due = time.monotonic() + 1
        self._before: tuple[int, Mapping[str, int]] = (0, {})

    def look(self, emitted: int, lost: Mapping[str, int]) -> None:
        """Numbers since the beginning, lost by place; again from 0 after a restart of the daemon."""
        took_s = time.monotonic() - self._due + 1
        if took_s < 1:
            return
        (emitted_before, lost_before), self._before = self._before, (emitted, lost)
        self._due += took_s
        new = {place: max(0, count - lost_before.get(place, 0)) for place, count in lost.items()}
        if self._what and (total := sum(new.values())):
            of = max(emitted - emitted_before, total)
            where = max(new, key=lambda place: new[place])
            share = f"{total / of:.1%} of {of / took_s:,.0f} records/s"
            fewer = "" if where == TOO_LARGE else "; fewer events, or a filter, lose less"
            remedy = self._remedies[where] + fewer
            # Waiting for a full pipe, or a terminal stopped by Ctrl-S, would lose more.
            stderr = select.poll()
            stderr.register(2, select.POLLOUT)
            if stderr.poll(0):
                tell(f"{self._what}: losing {share}, most {where}: {remedy}")


class Loss(NamedTuple):
    """One way to lose records."""

    name: str
    """Names of members of `recorder.Summary`."""
    in_file: str
    """Text in `report --stat`."""
    said: str
    """Text after the number, in a summary."""


LOSSES: Final = (
    Loss("in_rings", "lost in data rings", IN_RINGS),
    Loss("dropped", "dropped, buffer full", "dropped by the full buffer (-b KB)"),
    Loss("too_large", "too large", "too large for a page of the buffer (--subbuf-size KB)"),
    Loss("overwritten", "overwritten", "overwritten before they were read (-b KB), or taken away"),
    Loss("no_room", "no room on the disk", "without room on the disk"),
)
"""In the order of output."""

SHOWN_REASONS: Final = 3
"""Title of refused records, in one line."""


OF_ALL: Final = (
    Loss("in_rings", "", "in data rings (UTRACEFS_RING_KB)"),
    Loss(
        "full",
        "",
        "of consumers whose buffer or ring was full (buffer_size_kb), or too large for a page"
        " (buffer_subbuf_size_kb)",
    ),
    Loss("overwritten", "", "overwritten in ring buffers before they were read (buffer_size_kb)"),
    Loss("refused", "", "refused, since a value did not fit its field"),
)
"""Losses of all consumers, as far as the daemon counts them: not in the files of recorders."""

_FLIGHT: Final = "flight-"
"""Begin of the names of instances of flight recorders: they overwrite what nothing happened after."""


def all_lost(
    stats: Iterable[EventStats],
    buffers: Mapping[str, Mapping[str, int]],
    since: Mapping[str, Mapping[str, int]] | None = None,
) -> tuple[dict[str, int], int]:
    """Losses of these events and of these instances' ring buffers, by the names of OF_ALL, and the number of
    records that they are a part of. Each consumer that lost a record counts. A ring buffer that no reader
    has read only keeps the latest records: it loses none. since: earlier numbers of the ring buffers."""
    lost = dict.fromkeys((loss.name for loss in OF_ALL), 0)
    of = 0
    for one in stats:
        refused = sum(one.refused.values())
        lost["refused"] += refused
        of += refused
        for consumer, counts in one.consumers.items():
            if consumer.startswith("counts:"):  # of `top`, which takes no record
                continue
            in_rings = min(one.lost_in_rings, counts["lost"])
            lost["in_rings"] += in_rings
            lost["full"] += counts["lost"] - in_rings
            # A ring buffer counts its own records, also of removed events.
            of += counts["lost"] + (0 if consumer.startswith("ftrace") else counts["recorded"])
    for name, buffer in buffers.items():
        before = (since or {}).get(name, {})
        if buffer.get("read events") and not name.startswith(_FLIGHT):
            lost["overwritten"] += buffer.get("overrun", 0) - before.get("overrun", 0)
        of += ever(buffer) - ever(before)
    return lost, of


def ever(buffer: Mapping[str, int]) -> int:
    """Number of records that a ring buffer has ever got."""
    return sum(buffer.get(name, 0) for name in ("entries", "overrun", "read events"))


def share(lost: float, of: float) -> str:
    """`66.7 %`, `0.34 %`; 0 and 100 only for none and all."""
    if not 0 < lost < of:
        return "100 %" if lost else "0 %"
    return f"{min(max(100 * lost / of, 0.01), 99.9):.3g} %"


def lost_text(lost: Mapping[str, int], of: int = 0, *, kinds: Sequence[Loss] = LOSSES) -> str:
    """The total, then places and remedies. of: the number of records that it is a part of; 0: not known."""
    total = sum(lost.values())
    if not total:
        return "nothing lost"
    parts = ", ".join(f"{lost[loss.name]} {loss.said}" for loss in kinds if lost.get(loss.name))
    return f"{total} lost: {parts}" + (f"; that is {share(total, of)}" if of else "")


def larger_buffer(tree: "Tracefs", place: Place, record_bytes: float) -> str:
    """The `-b` with which an instance would have kept all, as text behind `lost_text`; empty if it did."""
    cpus = cpu_numbers(tree, place)
    most = max((one.get("overrun", 0) + one.get("dropped events", 0) for one in cpus.values()), default=0)
    if not most:
        return ""
    total_kb = int(tree.read_file(place.path("buffer_total_size_kb")).split()[0])
    wanted_kb = total_kb // max(1, len(cpus)) + int(most * record_bytes) // 1024
    size_kb = 1 << wanted_kb.bit_length()
    if size_kb * len(cpus) << 10 > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2:
        return ", more than any -b holds: take fewer events (-e), or filter them"
    return f", -b {size_kb} would have held all that came into the ring buffer"


def refused_text(refused: Mapping[str, int]) -> str:
    """Text after `lost_text`. refused: `EVENT.FIELD was float` and the like, to number."""
    reasons = sorted(refused.items(), key=lambda item: -item[1])
    if not reasons:
        return ""
    if len(reasons) == 1:
        return f", {reasons[0][1]} refused: {reasons[0][0]}"
    parts = ", ".join(f"{count} {reason}" for reason, count in reasons[:SHOWN_REASONS])
    more = f" and {len(reasons) - SHOWN_REASONS} other reasons" if len(reasons) > SHOWN_REASONS else ""
    return f", {sum(refused.values())} refused: {parts}{more}"


def lost_lines(lost: Mapping[str, int]) -> bytes:
    return b"".join(b"%s: %d\n" % (loss.in_file.encode(), lost[loss.name]) for loss in LOSSES)


def lost_in_file(texts: Iterable[str]) -> dict[str, int]:
    """Parse such lines."""
    text = "\n".join(texts)
    found = {loss: re.search(rf"^{loss.in_file}: (\d+)$", text, re.MULTILINE) for loss in LOSSES}
    return {loss.name: int(match[1]) for loss, match in found.items() if match is not None}


def no_room(output: str, error: OSError, count: int, what: str, status: int = 1) -> Failure:
    """Note for a file on a full disk."""
    return Failure(output, f"{error.strerror}; it has what fitted, {count} {what} did not", status)


def disk_was_full(output: str, count: int, status: int) -> Failure:
    """The same for records that are in none of several files."""
    return Failure(output, f"the disk was full; {counted(count, 'record')} did not fit", status)
