"""Records of a running daemon, live, as a library.

    with utracefs.attach("user_events:*", filter="status >= 500") as stream:
        for record in stream:
            print(record.time_ns, record.comm, record.name, record.fields)

    async with utracefs.attach("http_*") as stream:        # trio or asyncio
        async for batch in stream.batches():
            print(batch.counts)

    daemon ─▶ ring ─▶ StreamRing: a batch ─▶ Batch ─▶ Records ─▶ Record, or columns
       └── doorbell: to wait for; its end is the daemon's

A stream is opened over a connection of its own and ends with it. Its operations are generators that yield
waits (`waiting`), shared by `for` and `async for`; a wait may be cancelled at any time without losing
records."""

import contextlib
import errno
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from typing import Any, Final, Generic, Self, TypeVar

import attrs

from utracefs.recordings._records import EventDecoder, Record, Records, RecordSource
from utracefs.recordings.event_filters import EventFilters
from utracefs.recordings.event_header import HeaderEvent, HeaderEvents
from utracefs.streaming._columns import columns_of
from utracefs.streaming._records import RingRecords
from utracefs.streaming.waiting import Steps, Wait, awaited, blocking
from utracefs.tree.event_names import EventName
from utracefs.tree.rpc import Rpc, checked
from utracefs_protocol.events.event_format import EventFormat, parse_format
from utracefs_protocol.limits import STREAM_RING_SIZE
from utracefs_protocol.messages import tracefs as messages
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefs_protocol.places import TRACEFS_SOCKET
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["Batch", "Stream", "attach"]

ANSWER_S: Final = 30.0
"""Timeout for the daemon when a stream is opened. One that has just started answers after 2.2 s."""

BACK_OFF_S: Final = (0.02, 1.0)
"""Delay between attempts to attach again: the first, doubled each time up to the last."""

_BELLS: Final = 4096

_BATCHES: Final = 16
_BATCH: Final = 1 << 20
"""A batch is a sixteenth of the ring, or so many bytes: only the next one frees its space."""

T = TypeVar("T")


class Batch:
    """Records read together, in the ring: valid until the next batch (RuntimeError after that).

    counts: records of each tracepoint, `SYSTEM:NAME`, regardless of `pids` and `cpus`, and of the filter for
    those of EventHeader. lost: records lost since the previous batch, likewise; a batch may have only losses.
    """

    def __init__(
        self, stream: "Stream", ring: StreamRing, counts: dict[str, int], lost: dict[str, int]
    ) -> None:
        self._stream = stream
        self._ring = ring
        self._generation = ring.generation
        self.counts: Final = counts
        self.lost: Final = lost

    def __iter__(self) -> Iterator[Record]:
        """Each iteration starts from the beginning."""
        return self.records()

    def records(self, *, release: bool = False) -> Records:
        """The same, for compiled readers. release: free their space while they are read; the batch is then
        over for all others."""
        self._check()
        return self._stream._records_of(self._ring, release=release)

    @property
    def ring(self) -> StreamRing:
        """With the raw records as its present batch, for compiled readers."""
        self._check()
        return self._ring

    def columns(self) -> dict[str, dict[str, Any]]:
        """Columns of each event, by `SYSTEM:NAME`: name to column, an array.array (numbers, and `time_ns`,
        `cpu`, `pid`, `tid`) or a list (`str` and `bytes`, and `comm`). A field with one of these names gets
        the prefix `field_`."""
        return columns_of(self.records())

    def _check(self) -> None:
        if self._ring.generation != self._generation:
            raise RuntimeError("this batch is over: its memory is used again")


class _Each(Generic[T]):
    """Converted batches: for `for` and for `async for`."""

    def __init__(self, stream: "Stream", make: Callable[[Batch], T]) -> None:
        self._stream = stream
        self._make = make

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        batch = blocking(self._stream._next())
        if batch is None:
            raise StopIteration
        return self._make(batch)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        batch = await awaited(self._stream._next())
        if batch is None:
            raise StopAsyncIteration
        return self._make(batch)


@attrs.define
class _Attached:
    rpc: Rpc
    handle: int
    ring: StreamRing
    bell: int
    asked_at: int = 0
    """Value of `unreported_lost` at the last `ready` call."""

    def close(self) -> None:
        """Close the connection and the doorbell; the ring is kept for its unread records."""
        self.rpc.close()
        os.close(self.bell)


class Stream:
    """A stream, returned by `attach`: an iterable of Record, for `for` and for `async for`, and a context
    manager (both kinds) that attaches and detaches. Without `with` the first iteration attaches, and `close`
    detaches.

    Records have the order in which the daemon took them in; within a cpu that is the order of time, with few
    exceptions. Iteration ends when no record came for `timeout_s`, and, without `reconnect`, with the daemon;
    iterating again continues. Do not share it between threads or tasks: attach several. `batches` and
    `columns` begin after the batch whose records were iterated last, completely or not. Forked children do
    not share it; one that iterates attaches for itself."""

    def __init__(
        self,
        attr: messages.StreamAttr,
        *,
        pids: Collection[int] | None,
        cpus: Collection[int] | None,
        directory: str | None,
        timeout_s: float | None,
        reconnect: bool,
        raw_eventheader: bool,
    ) -> None:
        self.timeout_s = timeout_s
        self.reconnect = reconnect
        self.attached_again = 0
        """Number of restarts of the daemon. Records may be missing then, uncounted; the next one has `lost`
        -1."""
        self.lost: Counter[str] = Counter()
        """`SYSTEM:NAME` to lost records, reported in the batches so far: because the ring was full, or lost
        before. With the received records they add up to all emitted while this was attached."""
        self.formats: dict[str, EventFormat] = {}
        """`SYSTEM:NAME` to format, of all events with records; those of EventHeader when they are read."""
        self.missed_before: messages.StreamMissed | None = None
        """`missed` at the moment when this was attached last; None: the daemon has no such counts."""
        self.described: dict[int, tuple[str, bytes]] = {}
        """Event id in raw records to system and the text of `format`."""
        self._attr = attr
        self._pids = None if pids is None else frozenset(pids)
        self._cpus = None if cpus is None else frozenset(cpus)
        self._directory = directory
        self._raw_eventheader = raw_eventheader
        self._filters = EventFilters(attr.filter) if attr.filter is not None and attr.eventheader else None
        """For the events in records of EventHeader, in which the daemon cannot look."""
        self._attached: _Attached | None = None
        self._rest: StreamRing | None = None
        """The stream of an ended daemon: its rest is still to be read."""
        self._closed = False
        self._is_first = True
        self._names: dict[int, str] = {}
        self._decoders: dict[int, EventDecoder | None] = {}
        self._header_events = HeaderEvents()
        self._comms: dict[int, str] = {}
        self._reading: Records | None = None
        _streams.add(self)

    def __enter__(self) -> Self:
        blocking(self._attach_first())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await awaited(self._attach_first())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        """For a `for record in attach(...)` that was left early."""
        if sys is not None and not sys.is_finalizing():
            self.close()

    def close(self) -> None:
        """Detach; ends batches. May be called twice."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        """Close the ring and the connection, if they are this process's."""
        self._reading = None
        if self._attached is not None:
            attached, self._attached = self._attached, None
            attached.close()
            attached.ring.close()
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    @property
    def is_attached(self) -> bool:
        """Whether a daemon is there: False from its end until this is attached to the next one."""
        return self._attached is not None

    def missed(self) -> messages.StreamMissed:
        """Numbers of emitted records that did not reach this stream, by event: emitted before it was
        attached, or filtered. Waits for the daemon. OSError: no daemon is connected."""
        if self._attached is None:
            raise ConnectionResetError(errno.ECONNRESET, "no daemon is attached")
        result = self._attached.rpc.call(messages.GetMissed(self._attached.handle), "stream")
        return checked(messages.StreamMissed.from_wire, result, "stream")

    def batches(self) -> _Each[Batch]:
        """The records in batches, for work that is faster with many at a time."""
        return _Each(self, lambda batch: batch)

    def columns(self) -> _Each[dict[str, dict[str, Any]]]:
        """`Batch.columns` of each batch; empty for one with losses only."""
        return _Each(self, Batch.columns)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while True:
            if self._reading is not None and (record := next(self._reading, None)) is not None:
                return record
            self._reading = None
            if blocking(self._next()) is None:
                raise StopIteration
            self._read_one_by_one()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        while True:
            if self._reading is not None and (record := next(self._reading, None)) is not None:
                return record
            self._reading = None
            if await awaited(self._next()) is None:
                raise StopAsyncIteration
            self._read_one_by_one()

    def _read_one_by_one(self) -> None:
        ring = self._attached.ring if self._attached is not None else self._rest
        if ring is not None:
            self._reading = self._records_of(ring, release=True)

    def _records_of(self, ring: StreamRing, *, release: bool = False) -> Records:
        source: RecordSource = RingRecords(ring, release=release)
        if not self._raw_eventheader:
            source = self._header_events.source(source)
        return Records(source, self._decoder, pids=self._pids, cpus=self._cpus)

    def _decoder(self, id_: int) -> EventDecoder | None:
        found = self._header_events.events.get(id_)
        if found is not None and id_ not in self._decoders:
            self._decoders[id_] = self._filtered(found)
            self.formats[str(EventName(found.system, text_of(found.format.name)))] = found.format
        return self._decoders.get(id_)

    def _filtered(self, event: HeaderEvent) -> EventDecoder | None:
        decoder = event.decoder()
        if self._filters is not None:
            decoder.filter = self._filters.of(event.format)
            if decoder.filter is None:
                return None
        return decoder

    def _attach_first(self) -> Steps[None]:
        if self._closed:
            raise ValueError("the stream is closed")
        if self._is_first and self._attached is None:
            self._attached = yield from self._open()
            self._is_first = False

    def _open(self) -> Steps[_Attached]:
        """OSError: no daemon, or it refuses."""
        rpc = Rpc(TRACEFS_SOCKET, self._directory, timeout_s=ANSWER_S)
        fds: list[int] = []
        about = ", ".join(text_of(word) for word in self._attr.events)
        try:
            msgid = rpc.ask(self._attr)
            if not (yield Wait(rpc.fileno(), ANSWER_S)):
                raise TimeoutError(errno.ETIMEDOUT, "the daemon does not answer", rpc.address)
            result = rpc.answer(msgid, about)
            fds = rpc.take_fds()
            opened = checked(messages.StreamOpened.from_wire, result, about)
            if len(fds) != 2:
                raise OSError(errno.EPROTO, f"{len(fds)} descriptors came, not a ring and a doorbell", about)
            try:
                ring = StreamRing(fds[0], gap=not self._is_first, comms=self._comms)
            except ValueError as error:
                raise OSError(errno.EPROTO, str(error), about) from None
            self.missed_before = None
            if "origin" in result:
                self.missed_before = checked(messages.StreamMissed.from_wire, result, about)
            self._directory = rpc.directory
            os.close(fds.pop(0))
            return _Attached(rpc, opened.handle, ring, fds.pop())
        except BaseException:
            for fd in fds:
                os.close(fd)
            rpc.close()
            raise

    def _next(self) -> Steps[Batch | None]:
        """The next batch; None: no record came within `timeout_s`, or the end."""
        until = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        self._reading = None
        if not self._closed:
            yield from self._attach_first()
        while not self._closed:
            batch = None if self._is_below_watermark() else self._batch()
            if batch is not None:
                return batch
            if self._attached is None:
                if not self.reconnect or not (yield from self._attach_again(until)):
                    return None
                continue
            self._ask_for_lost(self._attached)
            left = None if until is None else max(0.0, until - time.monotonic())
            if not (yield Wait(self._attached.bell, left)):
                return self._batch()  # below the watermark, perhaps
            with contextlib.suppress(BlockingIOError):
                if not os.read(self._attached.bell, _BELLS):
                    self._lose(self._attached)
        return None

    def _is_below_watermark(self) -> bool:
        """Whether there are unread bytes, too few to wake for, and no losses."""
        if self._attached is None or self._attached.ring.unreported_lost:
            return False
        return 0 < self._attached.ring.head - self._attached.ring.position < self._attr.watermark

    def _lose(self, attached: _Attached) -> None:
        """The daemon has ended."""
        attached.close()
        attached.ring.is_over = True
        self._attached, self._rest = None, attached.ring

    def _attach_again(self, until: float | None) -> Steps[bool]:
        pause, longest = BACK_OFF_S
        while not self._closed:
            try:
                self._attached = yield from self._open()
            except (FileNotFoundError, ConnectionError, TimeoutError, BlockingIOError):
                pass
            else:
                self.attached_again += 1
                self._forget_events()
                return True
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                return False
            yield Wait(None, left)
            pause = min(2 * pause, longest)
        return False

    def _ask_for_lost(self, attached: _Attached) -> None:
        """Losses behind the last record are reported with the daemon's next step: request one."""
        unreported = attached.ring.unreported_lost
        if unreported and unreported != attached.asked_at:
            attached.asked_at = unreported
            with contextlib.suppress(OSError):  # it has ended; the doorbell shows that
                attached.rpc.pass_over()
                attached.rpc.ask(messages.Ready(attached.handle))

    def _batch(self) -> Batch | None:
        """The next part of the ring, if there are records or losses."""
        while True:
            ring = self._attached.ring if self._attached is not None else self._rest
            if ring is None:
                return None
            try:
                is_any = ring.next_batch(most=max(self._attr.size // _BATCHES, _BATCH))
            except ValueError as error:
                raise OSError(errno.EPROTO, str(error)) from None
            if not is_any:
                if ring is self._rest:
                    ring.close()
                    self._rest = None
                return None
            for id_, described in ring.described.items():
                self._describe(id_, described)
            ring.described.clear()
            counts = self._by_name(ring.counts())
            lost = self._by_name(ring.take_lost())
            self.lost.update(lost)
            if counts or lost:
                return Batch(self, ring, counts, lost)

    def _describe(self, id_: int, described: bytes) -> None:
        system, _, text = described.partition(b"\0")
        event = parse_format(text).for_readers()
        name = EventName(text_of(system), text_of(event.name))
        self.described[id_] = (name.system, text)
        self._names[id_] = str(name)
        self._decoders[id_] = EventDecoder(*name, event.fields)
        self._header_events.add(name.system, event)
        self.formats[str(name)] = event

    def _forget_events(self) -> None:
        self.described.clear()
        self._names.clear()
        self._decoders.clear()
        self._header_events = HeaderEvents()

    def _by_name(self, counts: dict[int, int]) -> dict[str, int]:
        """An event that was removed and registered with other fields may have another id."""
        found: dict[str, int] = {}
        for id_, count in counts.items():
            name = self._names.get(id_, f"event {id_}")
            found[name] = found.get(name, 0) + count
        return found


_streams: Final["weakref.WeakSet[Stream]"] = weakref.WeakSet()


def _in_child() -> None:
    """The ring has one reader, the parent."""
    for stream in list(_streams):
        stream._let_go()
        stream._is_first = True
        stream._forget_events()
        stream._comms = {}


os.register_at_fork(after_in_child=_in_child)


def attach(
    events: str | Iterable[str] = "user_events*:*",
    *,
    filter: str | None = None,
    instances: Iterable[str] = (),
    pids: Collection[int] | None = None,
    cpus: Collection[int] | None = None,
    directory: str | None = None,
    ring_bytes: int = STREAM_RING_SIZE,
    watermark: int = 1,
    timeout_s: float | None = None,
    reconnect: bool = True,
    raw_eventheader: bool = False,
    filtered: bool = False,
) -> Stream:
    """A stream of the running daemon's records, from its entry (`with`, `async with`) on.

    events: `SYSTEM:NAME`, `NAME`, or globs of either; later registered ones from their first record on.
    instances: names; only events enabled in one of them (`""`: the top one).
    filter: in the syntax of an event's file `filter`, evaluated by the daemon; events for which it is invalid
    are left out. pids: process or thread ids, cpus: numbers; both are evaluated here, after the ring, as is
    the filter for events of EventHeader, by the fields in their records. filtered: by each event's own filter
    in the instance, of which there must be one.
    directory: of the daemon's sockets; None: UTRACEFS_DIR, then the user's, then the system's.
    ring_bytes: a power of two from 256 KiB to 128 MiB; records that find the ring full are lost and counted
    in `Stream.lost`. watermark: unread bytes at which to wake; fewer are returned after `timeout_s`.
    timeout_s: longest wait for a record before iteration ends; None: no limit. reconnect: when the daemon
    ends, wait for the next; else iteration ends. raw_eventheader: as for `utracefs.open`.

    Entering raises OSError: no daemon (FileNotFoundError, ConnectionRefusedError, PermissionError), or it
    refuses (EINVAL: the filter; ENOENT: no such instance; EMFILE, ENOMEM: limits)."""
    words = [events] if isinstance(events, str) else list(events)
    attr = messages.StreamAttr(
        tuple(bytes_of(word) for word in words),
        tuple(bytes_of(name) for name in ([instances] if isinstance(instances, str) else instances)),
        None if filter is None else bytes_of(filter),
        ring_bytes,
        watermark,
        eventheader=filter is not None and not raw_eventheader,
        filtered=filtered,
    )
    return Stream(
        attr,
        pids=pids,
        cpus=cpus,
        directory=directory,
        timeout_s=timeout_s,
        reconnect=reconnect,
        raw_eventheader=raw_eventheader,
    )
