"""Several recordings as one: their records merged by time, each with its host and file.

    Recording ─▶ RecordSource ─┐
    Recording ─▶ RecordSource ─┴▶ MergedSources ─▶ Records ─▶ as of one recording

Events of one name and one declaration share a table. If the declarations differ, a table has the columns of
all (`columns.joined`).
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from utracefs.recordings._records import EventDecoder, MergedPages, Records, RecordSource
from utracefs.recordings.any_recording import AnyRecording, OneFile, Reading
from utracefs.recordings.origin import ClockPair, Origin
from utracefs.recordings.several._sources import MergedSources
from utracefs.recordings.several.timeline import Timeline, timelines
from utracefs.tree.event_names import EventName
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.text import text_of

_MOST_HOSTS: Final = 200
_IDS: Final = 10_000_000
"""Process ids of one host, in viewers: Linux has fewer than 2^22, and _MOST_HOSTS times that fit an int32."""
_NAMED: Final = 3
"""Files named in messages."""


class MergedRecording(AnyRecording):
    """Several recordings, opened by `open`, as one `Recording`: an iterable of Record in the order of time,
    and a context manager that closes the files. Their times are times of day, or those of the clock if all
    are of one boot and clock.

    Invalid data ends its file; iterating raises TraceError(EINVAL) about it after all records of the others.
    """

    def __init__(
        self,
        recordings: Sequence[OneFile],
        *,
        pids: Collection[int] | None = None,
        cpus: Collection[int] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        placed: Sequence[Timeline] | None = None,
    ) -> None:
        self._recordings = tuple(recordings)
        self.paths = tuple(one.path for one in recordings)
        further = len(recordings) - _NAMED
        self.path = ", ".join(self.paths[:_NAMED]) + (f" and {further} more" if further > 0 else "")
        self._pids = None if pids is None else frozenset(pids)
        self._cpus = None if cpus is None else frozenset(cpus)
        self._since_ns = since_ns
        self._until_ns = until_ns
        self.timelines: Final = list(placed or timelines([one.clocked for one in recordings]))
        """One timeline for each recording."""
        self.format = "/".join(dict.fromkeys(one.format for one in recordings))
        tells_day = self.timelines[0].tells_day
        self.clock = "realtime" if tells_day else recordings[0].clock
        self.clock_in_ns = True
        hosts = {one.origin.host for one in recordings}
        boots = {one.origin.boot_id for one in recordings}
        self.origin = Origin(
            hosts.pop() if len(hosts) == 1 else "",
            boots.pop() if len(boots) == 1 else "",
            (ClockPair(0, 0),) if tells_day else recordings[0].origin.clocks,
        )
        self._decoders: dict[object, EventDecoder] = {}
        self._check()

    def _check(self) -> None:
        missing = set(self.recordings[0].missing).intersection(*(one.missing for one in self.recordings))
        for pattern in self.recordings[0].missing:
            if pattern in missing:
                raise self.no_such_event(pattern)
        errors = [one.filter_error for one in self.recordings if one.filter_error is not None]
        if len(errors) == len(self.recordings):
            raise errors[0]

    @property
    def host(self) -> str:
        return ", ".join(dict.fromkeys(one.origin.host for one in self.recordings if one.origin.host))

    @property
    def events(self) -> list[EventName]:
        return list(dict.fromkeys(event for one in self.recordings for event in one.events))

    @property
    def selected_tracepoints(self) -> list[tuple[str, EventFormat]]:
        return [pair for one in self.recordings for pair in one.selected_tracepoints]

    @property
    def cpu_stats(self) -> list[str]:
        return [text for one in self.recordings for text in one.cpu_stats]

    @property
    def selection(self) -> list[str]:
        found = max((one.selection for one in self.recordings), key=len)
        for what, time_ns in (("from", self._since_ns), ("before", self._until_ns)):
            found = found + ([] if time_ns is None else [f"{what} {time_ns / 10**9:.9f} s"])
        return found

    @property
    def recordings(self) -> Sequence[OneFile]:
        return self._recordings

    @property
    def labels(self) -> list[str]:
        hosts = [one.origin.host for one in self.recordings]
        names = [os.path.basename(path) for path in self.paths]
        for labels in (hosts, names):
            if all(labels) and len(set(labels)) == len(labels):
                return labels
        return list(self.paths)

    @property
    def notes(self) -> list[str]:
        if not self.timelines[0].tells_day:
            return [f"{self.path}: of one boot, merged by its clock {self.clock}"] if self.is_merged else []
        return [
            f"{one.path}: {one.origin.host or 'unknown host'}, time of day {_known_to(timeline)}"
            for one, timeline in zip(self.recordings, self.timelines, strict=True)
        ]

    @property
    def parts(self) -> "Sequence[MergedRecording]":
        return [
            MergedRecording(
                [one],
                pids=self._pids,
                cpus=self._cpus,
                since_ns=self._since_ns,
                until_ns=self._until_ns,
                placed=[timeline],
            )
            for one, timeline in zip(self.recordings, self.timelines, strict=True)
        ]

    @property
    def formats(self) -> list[tuple[str, EventFormat]]:
        return [pair for one in self.recordings for pair in one.formats]

    @property
    def ts_offsets(self) -> list[int]:
        found = [timeline.shift_ns + timeline.offset_ns for timeline in self.timelines]
        return [offset - found[0] for offset in found]

    def label(self, event_id: int) -> str:
        return self.recordings[event_id >> 16].label(event_id & 0xFFFF)

    def format_of(self, event_id: int) -> EventFormat:
        return self.recordings[event_id >> 16].format_of(event_id & 0xFFFF)

    def close(self) -> None:
        for one in self.recordings:
            one.close()

    def reading(self, *events: EventDecoder, apart: bool = False) -> Reading:
        members: list[tuple[RecordSource, Timeline, int]] = []
        done: list[Callable[[], float]] = []
        instances: list[str] = []
        for one, timeline in zip(self.recordings, self.timelines, strict=True):
            source, progress = one.source(
                None if self._since_ns is None else timeline.since(self._since_ns),
                None if self._until_ns is None else timeline.until(self._until_ns),
            )
            members.append((source, timeline, len(instances)))
            done.append(progress)
            instances += one.instances
        merged = MergedSources(members)

        def find(event_id: int) -> EventDecoder | None:
            found = self._decoder(event_id >> 16, event_id & 0xFFFF)
            return found if not events or found in events else None

        records = Records(
            merged,
            find,
            instances=instances,
            places=[(one.origin.host, one.path) for one in self.recordings],
            apart=self._apart() if apart and self.is_merged else None,
            pids=self._pids,
            cpus=self._cpus,
            since_ns=self._since_ns,
            until_ns=self._until_ns,
        )
        return Reading(
            lambda: self.paths[merged.broken], records, lambda: sum(one() for one in done) / len(done)
        )

    def _apart(self) -> list[tuple[int, str]]:
        machines: dict[tuple[str, str], int] = {}
        for one in self.recordings:
            machines.setdefault((one.origin.boot_id or one.path, one.origin.host), len(machines))
        if len(machines) > _MOST_HOSTS:
            text = f"{len(machines)} hosts: a viewer's file can have {_MOST_HOSTS}; select fewer files"
            raise TraceError(errno.E2BIG, text)
        names = Counter(host for _, host in machines)
        found = []
        for one in self.recordings:
            host, boot = one.origin.host, one.origin.boot_id or one.path
            label = host if host and names[host] == 1 else f"{host} ({os.path.basename(one.path)})".lstrip()
            found.append((machines[boot, host] * _IDS, f"{label}: "))
        return found

    def last_ns(self) -> int:
        found = [
            timeline.place(last_ns)
            for one, timeline in zip(self.recordings, self.timelines, strict=True)
            if (last_ns := one.last_ns())
        ]
        return max(found, default=0)

    def decoders(self) -> list[EventDecoder]:
        return self._distinct(lambda _system, _event: True)

    def find_events(self, event: str) -> list[EventDecoder]:
        found = self._distinct(
            lambda system, e: event in (text_of(e.name), str(EventName(system, text_of(e.name))))
        )
        if not found:
            raise self.no_such_event(event)
        names = dict.fromkeys(f"{decoder.system}:{decoder.name}" for decoder in found)
        if len(names) > 1:
            text = f"{self.path}: several events are called {event}: {', '.join(names)}"
            raise TraceError(errno.EINVAL, text)
        return found

    def whole_pages(self) -> tuple[MergedPages, Callable[[], float]] | None:
        return None

    def _distinct(self, is_wanted: Callable[[str, EventFormat], bool]) -> list[EventDecoder]:
        found = (
            self._decoder(number, event.id)
            for number, one in enumerate(self.recordings)
            for system, event in one.formats
            if is_wanted(system, event)
        )
        return list(dict.fromkeys(decoder for decoder in found if decoder is not None))

    def _decoder(self, number: int, event_id: int) -> EventDecoder | None:
        """One for all recordings that describe the event in the same way."""
        one = self.recordings[number]
        decoder = one.decoder(event_id)
        if decoder is None or decoder.opcode >= 0:
            return decoder
        key = decoder.system, decoder.name, tuple(one.format_of(event_id).fields)
        return self._decoders.setdefault(key, decoder)


def _known_to(timeline: Timeline) -> str:
    if timeline.uncertainty_ns is None:
        return "of unknown uncertainty (no NTP, or an older recording)"
    return f"± {timeline.uncertainty_ns / 10**6:,.3f} ms"
