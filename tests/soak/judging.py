"""The judges of records, as pure functions of the received numbers and the producers' reports.

Each returns sentences, one for each fault; none if all is right.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

import attrs

_LINE = re.compile(
    rb"^ *(?P<comm>.*)-(?P<pid>\d+) +\[(?P<cpu>\d+)\] \S+ +(?P<s>\d+)\.(?P<us>\d+): (?P<event>\w+):"
    rb" who=0x[0-9a-f]+ \((?P<who>\d+)\) n=0x[0-9a-f]+ \((?P<n>\d+)\)$"
)


@attrs.frozen
class Line:
    """A record of an honest producer as `trace` shows it."""

    event: str
    who: int
    n: int
    cpu: int
    time_us: int


def lines_of(trace: bytes, events: Iterable[str]) -> tuple[list[Line], list[str]]:
    """The records of these events, in the order of the file; lines of them that cannot be read."""
    wanted = tuple(b" %s: " % event.encode() for event in events)
    found, unreadable = [], []
    for text in trace.split(b"\n"):
        if not any(word in text for word in wanted):
            continue
        match = _LINE.match(text)
        if match is None:
            unreadable.append(text.decode(errors="backslashreplace"))
            continue
        time_us = int(match["s"]) * 1_000_000 + int(match["us"])
        found.append(
            Line(match["event"].decode(), int(match["who"]), int(match["n"]), int(match["cpu"]), time_us)
        )
    return found, unreadable


def reported_lost(trace: bytes) -> int:
    """How many records are missing, by the lines in `trace` at their places."""
    return sum(map(int, re.findall(rb"^CPU:\d+ \[LOST (\d+) EVENTS\]$", trace, re.MULTILINE)))


@attrs.frozen
class Told:
    """One producer's report of its records."""

    event: str

    next_numbers: Mapping[int, int]
    """By thread: the number after the last emitted one."""

    exact: bool
    """It ended in order: emitted, lost and refused are final."""

    emitted: int = 0
    lost: int = 0
    refused: int = 0
    pending: int = 0
    """Told as not sent when it ended: the daemon may have taken them in since."""

    may_miss: bool = False
    """Some may be missing without a report: it was killed, or they went over a socket of a killed daemon."""


def judge_records(came: Mapping[int, list[int]], told: Told) -> list[str]:
    """`came`: by thread, the numbers in the order of recording. Does not judge the order."""
    faults = []
    number = 0
    for who, numbers in sorted(came.items()):
        unique = set(numbers)
        number += len(numbers)
        if len(unique) < len(numbers):
            twice = (
                sorted({n for n in unique if numbers.count(n) > 1})[:5] if len(numbers) < 10_000 else "many"
            )
            faults.append(f"{told.event}/{who}: {len(numbers) - len(unique)} came twice: {twice}")
        # a killed producer may have committed a record without noting it
        beyond = [n for n in unique if n >= told.next_numbers.get(who, 0) + (not told.exact)]
        if beyond:
            text = f"emitted up to {told.next_numbers.get(who, 0)}, came {sorted(beyond)[:5]}"
            faults.append(f"{told.event}/{who}: {len(beyond)} were never emitted: {text}")
    if told.exact:
        missing = told.emitted - told.lost - told.refused - number
        if (missing > told.pending and not told.may_miss) or missing < 0:
            text = f"emitted {told.emitted}, told lost {told.lost}, refused {told.refused}, "
            text += f"pending {told.pending}, recorded {number}"
            faults.append(f"{told.event}: {text}; {missing} are missing. {_gaps(came, told)}")
    elif not told.may_miss:
        for who, following in told.next_numbers.items():
            gone = set(range(following)) - set(came.get(who, ()))
            if len(gone) > told.lost:
                text = f"{len(gone)} of {following} are missing, from {min(gone)} to {max(gone)}"
                faults.append(f"{told.event}/{who}, killed: {text}")
    return faults


def judge_losses(told: Collection[Told], shown: int) -> str:
    """`shown`: the records that `trace` calls lost. How many a killed producer
    lost is unknown, as is how many another may miss."""
    losses = {each.event: each.lost for each in told if each.exact and not each.may_miss}
    lost = sum(losses.values())
    if shown == lost or (shown > lost and len(losses) < len(told)):
        return ""
    return f"trace says {shown} lost, the producers {lost}: {losses}"


def _gaps(came: Mapping[int, list[int]], told: Told) -> str:
    """The gaps in the numbers, in short."""
    texts = []
    for who, following in sorted(told.next_numbers.items()):
        gaps, expected = [], 0
        for n in [*sorted(set(came.get(who, ()))), following]:
            if n > expected:
                gaps.append(f"{expected}..{n - 1}")
            expected = n + 1
        texts.append(f"thread {who}: {len(gaps)} gaps: {' '.join(gaps[:8])}")
    return "; ".join(texts)


def late_events(stats: bytes) -> int:
    """How many records of a cpu came late and got a later time, by its `per_cpu/cpuN/stats`."""
    told = re.search(rb"^late events: (\d+)$", stats, re.MULTILINE)
    return int(told[1]) if told else 0


def judge_order(lines: Iterable[Line], late: Counter[int] | None = None) -> list[str]:
    """Time on a cpu, and numbers of a thread, only grow. late: by cpu, reported late records, which may be
    behind later ones of other cpus; at most so many: it is counted down."""
    told = Counter[int]() if late is None else late
    faults = []
    time_of: dict[int, int] = {}
    last: dict[tuple[str, int], Line] = {}
    back: dict[tuple[str, int], int] = defaultdict(int)
    for line in lines:
        if line.time_us < time_of.get(line.cpu, 0):
            faults.append(f"cpu {line.cpu}: {line} is behind time {time_of[line.cpu]}")
        time_of[line.cpu] = line.time_us
        key = line.event, line.who
        before = last.get(key)
        if before is not None and line.n < before.n and told[line.cpu] > 0:
            told[line.cpu] -= 1
        elif before is not None and line.n <= before.n:
            if not back[key]:
                faults.append(f"{line} is behind {before}")
            back[key] += 1
        last[key] = line
    return faults[:5] + [f"{event}/{who}: {n} times back in all" for (event, who), n in back.items() if n]


def stats_of(text: bytes) -> tuple[int, dict[str, tuple[int, int, int]]]:
    """(emitted, consumer to (recorded, filtered, lost)) of an event's `stats`."""
    emitted = re.match(rb"emitted: (\d+)\n", text)
    rows = re.findall(rb"^(\S+): recorded (\d+) filtered (\d+) lost (\d+)$", text, re.MULTILINE)
    if emitted is None:
        raise ValueError(f"not the text of stats: {text!r}")
    return int(emitted[1]), {row[0].decode(): (int(row[1]), int(row[2]), int(row[3])) for row in rows}
