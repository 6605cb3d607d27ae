"""Records of a running daemon as they come, as a library.

    with utracefs.attach("user_events:*", filter="status >= 500") as stream:
        for record in stream:
            print(record.time_ns, record.comm, record.name, record.fields)

    async with utracefs.attach("http_*") as stream:        # trio or asyncio
        async for batch in stream.batches():
            print(batch.counts)

    daemon ─▶ ring ─▶ StreamRing: a batch ─▶ Batch ─▶ Records ─▶ Record, or columns
       └── doorbell: what is waited for; its end is the daemon's

A stream is opened over a connection of its own and ends with it. What it does stands once, in generators that
yield what to wait for (`waiting`); what was waited for may be cancelled at any time, and nothing is lost by
it."""

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

from utracefs.recordings._records import EventDecoder, Record, Records
from utracefs.streaming._columns import columns_of
from utracefs.streaming._records import RingRecords
from utracefs.streaming.waiting import Steps, Wait, awaited, blocking
from utracefs.tree.event_names import EventName
from utracefs.tree.rpc import Rpc, checked
from utracefs_protocol._stream_ring import StreamRing
from utracefs_protocol.event_format import EventFormat, parse_format
from utracefs_protocol.limits import STREAM_RING_SIZE
from utracefs_protocol.messages import tracefs as messages
from utracefs_protocol.places import TRACEFS_SOCKET
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["Batch", "Stream", "attach"]

ANSWER_S: Final = 30.0
"""How long the daemon is waited for when a stream is opened. One that has just started answers after 2.2
s."""

BACK_OFF_S: Final = (0.02, 1.0)
"""Between attempts to attach again: the first, doubled each time up to the last."""

_BELLS: Final = 4096

T = TypeVar("T")


class Batch:
    """Records that came together, where the daemon put them: good until the next batch is asked for
    (RuntimeError after that).

    counts: how many there are of each event, `SYSTEM:NAME`, whatever `pids` and `cpus` say. lost: how many
    are missing since the batch before, likewise; a batch may have nothing else."""

    def __init__(
        self, stream: "Stream", ring: StreamRing, counts: dict[str, int], lost: dict[str, int]
    ) -> None:
        self._stream = stream
        self._ring = ring
        self._generation = ring.generation
        self.counts: Final = counts
        self.lost: Final = lost

    def __iter__(self) -> Iterator[Record]:
        """Each iteration begins anew."""
        return self.records()

    def records(self) -> Records:
        """The same, for compiled readers."""
        self._check()
        return self._stream._records_of(self._ring)

    def columns(self) -> dict[str, dict[str, Any]]:
        """Of each event, by `SYSTEM:NAME`: name to column, an array.array (numbers, and `time_ns`, `cpu`,
        `pid`, `tid`) or a list (`str` and `bytes`, and `comm`). A field that is called like one of ours has
        `field_` in front."""
        return columns_of(self.records())

    def _check(self) -> None:
        if self._ring.generation != self._generation:
            raise RuntimeError("this batch is over: its memory is used again")


class _Each(Generic[T]):
    """Batches, each turned into something: for `for` and for `async for`."""

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
    """An open stream."""

    rpc: Rpc
    handle: int
    ring: StreamRing
    bell: int
    asked_at: int = 0
    """What `untold_lost` was when we asked the daemon to tell it."""

    def close(self) -> None:
        """The connection and the doorbell; the ring is left, for what is still in it."""
        self.rpc.close()
        os.close(self.bell)


class Stream:
    """What `attach` gives: an iterable of Record, for `for` and for `async for`, and a context manager (both
    kinds) that attaches and detaches. Without `with` the first iteration attaches, and `close` detaches.

    Records come in the order in which the daemon took them in; of one cpu's records that is the order of
    time, with few exceptions. Iterating ends when nothing came for `timeout_s`, and at the end of a daemon
    without `reconnect`; iterating again goes on. Not for several threads or tasks at once: attach several.
    `batches` and `columns` begin behind the batch of which records were iterated, to its end or not.
    Forked children have no part in it; one that iterates attaches for itself."""

    def __init__(
        self,
        attr: messages.StreamAttr,
        *,
        pids: Collection[int] | None,
        cpus: Collection[int] | None,
        directory: str | None,
        timeout_s: float | None,
        reconnect: bool,
    ) -> None:
        self.timeout_s = timeout_s
        self.reconnect = reconnect
        self.attached_again = 0
        """How often the daemon was away. Records from then may be missing, uncounted; the first one after it
        has `lost` -1."""
        self.lost: Counter[str] = Counter()
        """`SYSTEM:NAME` to records that are missing, as far as the batches up to now told: for want of room
        in the ring, or lost before. With what was received that is all that was emitted while this was
        attached."""
        self.formats: dict[str, EventFormat] = {}
        """`SYSTEM:NAME` to the format of all events that had records."""
        self._attr = attr
        self._pids = None if pids is None else frozenset(pids)
        self._cpus = None if cpus is None else frozenset(cpus)
        self._directory = directory
        self._attached: _Attached | None = None
        self._rest: StreamRing | None = None
        """Of a daemon that has gone: what it left is still to be read."""
        self._closed = False
        self._is_first = True
        self._names: dict[int, str] = {}
        self._decoders: dict[int, EventDecoder] = {}
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
        """Of `for record in attach(...)`, left early."""
        if sys is not None and not sys.is_finalizing():
            self.close()

    def close(self) -> None:
        """Detach; batches are over. Twice is harmless."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        """Of the ring and the connection, as far as they are this process's."""
        self._reading = None
        if self._attached is not None:
            attached, self._attached = self._attached, None
            attached.close()
            attached.ring.close()
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def batches(self) -> _Each[Batch]:
        """The records in batches, as they come: for what is quicker with many at a time."""
        return _Each(self, lambda batch: batch)

    def columns(self) -> _Each[dict[str, dict[str, Any]]]:
        """`Batch.columns` of each batch; empty for one that tells of losses alone."""
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
        source = RingRecords(ring, release=release)
        return Records(source, self._decoders.get, pids=self._pids, cpus=self._cpus)

    def _attach_first(self) -> Steps[None]:
        if self._closed:
            raise ValueError("the stream is closed")
        if self._is_first and self._attached is None:
            self._attached = yield from self._open()
            self._is_first = False

    def _open(self) -> Steps[_Attached]:
        """OSError: there is no daemon, or it refuses."""
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
            self._directory = rpc.directory
            os.close(fds.pop(0))
            return _Attached(rpc, opened.handle, ring, fds.pop())
        except BaseException:
            for fd in fds:
                os.close(fd)
            rpc.close()
            raise

    def _next(self) -> Steps[Batch | None]:
        """The next batch; None: nothing came for `timeout_s`, or this is the end."""
        until = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        self._reading = None
        if not self._closed:
            yield from self._attach_first()
        while not self._closed:
            batch = self._batch()
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

    def _lose(self, attached: _Attached) -> None:
        """The daemon has gone."""
        attached.close()
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
                self._names.clear()
                self._decoders.clear()
                return True
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                return False
            yield Wait(None, left)
            pause = min(2 * pause, longest)
        return False

    def _ask_for_lost(self, attached: _Attached) -> None:
        """What was lost behind the last record is told with the daemon's next step: let it make one."""
        untold = attached.ring.untold_lost
        if untold and untold != attached.asked_at:
            attached.asked_at = untold
            with contextlib.suppress(OSError):  # it has gone; the doorbell says so
                attached.rpc.pass_over()
                attached.rpc.ask(messages.Ready(attached.handle))

    def _batch(self) -> Batch | None:
        """What is there now, if records came or were lost."""
        while True:
            ring = self._attached.ring if self._attached is not None else self._rest
            if ring is None:
                return None
            try:
                is_any = ring.next_batch()
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
            counts = {self._name(id_): count for id_, count in ring.counts().items()}
            lost = {self._name(id_): count for id_, count in ring.take_lost().items()}
            self.lost.update(lost)
            if counts or lost:
                return Batch(self, ring, counts, lost)

    def _describe(self, id_: int, described: bytes) -> None:
        system, _, text = described.partition(b"\0")
        event = parse_format(text)
        name = EventName(text_of(system), text_of(event.name))
        self._names[id_] = str(name)
        self._decoders[id_] = EventDecoder(*name, event.fields)
        self.formats[str(name)] = event

    def _name(self, id_: int) -> str:
        return self._names.get(id_, f"event {id_}")


_streams: Final["weakref.WeakSet[Stream]"] = weakref.WeakSet()


def _in_child() -> None:
    """The ring has one reader, which is the parent."""
    for stream in list(_streams):
        stream._let_go()
        stream._is_first = True
        stream._names.clear()
        stream._decoders.clear()
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
) -> Stream:
    """A stream of the running daemon's records, from when it is entered (`with`, `async with`) on.

    events: `SYSTEM:NAME`, `NAME`, or globs of either; those that are registered later are taken from their
    first record on. instances: names; of these events only what is enabled in one of them (`""`: the top
    one).
    filter: as the file `filter` of an event takes it, judged by the daemon; an event that it does not fit is
    left out. pids: process or thread ids, cpus: their numbers, chosen here, after the ring.
    directory: where the daemon's sockets are; None looks at UTRACEFS_DIR, then the user's, then the system's.
    ring_bytes: a power of two from 256 KiB to 64 MiB; what does not fit while this program is busy is lost,
    and counted in `Stream.lost`. watermark: bytes that are worth waking for; what is below it is given when
    `timeout_s` is over.
    timeout_s: how long to wait for a record before iterating ends; None: for ever. reconnect: when the daemon
    goes, wait for it to come back; else that is the end.

    Entering raises OSError: no daemon is there (FileNotFoundError, ConnectionRefusedError, PermissionError),
    or it refuses (EINVAL: the filter; ENOENT: no such instance; EMFILE, ENOMEM: limits)."""
    words = [events] if isinstance(events, str) else list(events)
    attr = messages.StreamAttr(
        tuple(bytes_of(word) for word in words),
        tuple(bytes_of(name) for name in ([instances] if isinstance(instances, str) else instances)),
        None if filter is None else bytes_of(filter),
        ring_bytes,
        watermark,
    )
    return Stream(attr, pids=pids, cpus=cpus, directory=directory, timeout_s=timeout_s, reconnect=reconnect)
