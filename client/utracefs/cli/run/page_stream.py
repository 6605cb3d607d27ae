"""The pages of an instance's ring buffer, read from the ring into which the daemon moves each full one,
behind the formats of its events.

    ring ── watermark ──▶ thread ─┐
                                  ├─▶ pass_on    many pages of a cpu at a time
    ready ──────▶ ring ──▶ caller ┘              at `take_ready`: pages that are not full

The thread reads while the caller waits for the daemon, a signal or a disk. Both take turns, batch by batch,
so the thread cannot keep the caller out while it has more to read.
"""

import contextlib
import errno
import math
import mmap
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from utracefs.cli.instance_option import Place
from utracefs.recordings.trace_dat._pages import gather_pages
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.limits import MAX_STREAM_RING, MIN_STREAM_RING
from utracefs_protocol.pages._stream_ring import StreamRing

BATCH = 512 << 10
"""Bytes read at a time: they are copied, counted and written while the cpu's cache has them."""
WATERMARK = 256 << 10
PART_OF_MEMORY = 256
"""Part of the memory of the machine, or of this container, that a ring may take."""

PassOn = Callable[[int, memoryview, int, bool], None]
"""Called with a cpu, pages, the number of their records of events, and whether to write them directly."""
Describe = Callable[[Mapping[int, bytes]], None]
"""Called with event ids and system, NUL, format of each, before the first of their pages is passed on."""


class WayToDisk:
    """Whether to write pages directly, past the page cache: with many records a second, since copying into
    the cache takes most of the recorder's time, and its write-back delays writers. With few the cache makes
    larger and fewer writes of them. While much waits, the way is taken that was faster then: the cache holds
    some seconds for a slow disk."""

    WINDOW_S = 0.1
    RATE = 64 << 20
    """Bytes a second: more are many."""

    def __init__(self, ring_bytes: int) -> None:
        self._much = ring_bytes // 8
        self._begin_s, self._begin, self._waiting = -1.0, 0, 0
        self._rates = [math.inf, math.inf]
        """Bytes a second of the cache and the disk under load, as far as known; they grow while unused."""
        self.is_direct = False

    def look(self, now_s: float, position: int, waiting: int) -> None:
        """Call it before each batch. position: of the reader, in bytes; waiting: bytes behind it."""
        window_s = now_s - self._begin_s
        if window_s < self.WINDOW_S:
            return
        rate, way = (position - self._begin) / window_s, self.is_direct
        self._rates[not way] *= 1.1
        if min(waiting, self._waiting) > self._much:
            self._rates[way] = rate
            self.is_direct = self._rates[True] >= self._rates[False]
        else:
            self._rates[way] = max(self._rates[way], rate)
            if max(waiting, self._waiting) <= self._much:
                self.is_direct = self.RATE < rate <= self._rates[True]
        self._begin_s, self._begin, self._waiting = now_s, position, waiting


class PageStream:
    """OSError: the daemon, or this instance, gives no pages to a ring."""

    def __init__(
        self,
        tree: Tracefs,
        place: Place,
        page_size: int,
        nr_cpus: int,
        pass_on: PassOn,
        describe: Describe = lambda _: None,
        *,
        lossless_us: int = 0,
    ) -> None:
        self._tree = tree
        self._place = place
        self._page_size = page_size
        self._nr_cpus = nr_cpus
        self._pass_on = pass_on
        self._describe = describe
        self._pages = mmap.mmap(-1, BATCH + 2 * page_size)  # aligned, for direct writes
        self._handle, self._ring, self._bell, size = _open(tree, place, lossless_us)
        self._way = WayToDisk(size)
        self.turn = threading.Lock()
        self._lock = threading.Lock()
        self._owner = 0
        """The thread that has the lock."""
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nothing is passed on in its block, but by its own calls. It nests."""
        if self._owner == threading.get_ident():  # the other thread may have the turn, and wait for the lock
            yield
            return
        with self.turn:
            self._lock.acquire()
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            self._owner = 0
            self._lock.release()

    def start(self) -> None:
        """Start the thread, once: not before a fork."""
        if self._thread is None:
            thread = threading.Thread(target=self._read, name="pages", daemon=True)
            thread.start()
            self._thread = thread

    def take_ready(self) -> bool:
        """Pass on all that was recorded until now, as far as the ring has room for it; False: nothing. Errors
        of the daemon, and those of `pass_on`, also in the thread."""
        self._tree.ready(self._handle)
        return self._take()

    def close(self) -> None:
        """Pass on what is in the ring, also that of an ended daemon, and end. May be called twice."""
        if self._bell < 0:
            return
        if self._thread is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
        has_ended = self._has_ended()
        for fd in (self._bell, self._stop):
            os.close(fd)
        self._bell = -1
        try:
            self._take()
        finally:
            self._ring.close()
            if not has_ended:  # else the next daemon may have given the number to another handle
                with contextlib.suppress(OSError):
                    self._tree.close_handle(self._handle)

    def _has_ended(self) -> bool:
        """Whether the stream has ended with its connection or its daemon. Takes the rings of the bell."""
        try:
            return not os.read(self._bell, 4096)
        except BlockingIOError:
            return False

    def _read(self) -> None:
        """In the thread."""
        waiting = select.poll()
        for fd in (self._bell, self._stop):
            waiting.register(fd, select.POLLIN)
        while True:
            ready = dict(waiting.poll())
            if self._stop in ready:
                return
            has_ended = self._has_ended()
            try:
                self._take()
            except Exception as error:  # noqa: BLE001 - raised in the caller
                self._error = error
                return
            if has_ended:
                return

    def _take(self) -> bool:
        """Pass on what the ring has at the moment."""
        if self._error is not None:
            raise self._error
        until, found = self._ring.head, False
        while self._ring.position < until:
            with self.exclusive():
                if not self._ring.next_batch(most=BATCH):
                    break
                found = True
                position = self._ring.position
                self._way.look(time.monotonic(), position, self._ring.head - position)
                try:
                    runs = gather_pages(self._ring, self._pages, self._page_size, self._nr_cpus)
                except ValueError as error:
                    reason = f"{error}: was it changed meanwhile?"
                    raise OSError(errno.EPROTO, reason, self._place.path("buffer_subbuf_size_kb")) from None
                if self._ring.described:
                    self._describe(self._ring.described)
                    self._ring.described.clear()
                pages = memoryview(self._pages)
                for cpu, begin, end, records in runs:
                    self._pass_on(cpu, pages[begin:end], records, self._way.is_direct)
                self._ring.release_batch()
        return found


def _open(tree: Tracefs, place: Place, lossless_us: int) -> tuple[int, StreamRing, int, int]:
    size = fitting_ring_bytes(2)
    while True:
        try:
            handle, ring, bell = tree.open_pages(
                place.name, size=size, watermark=WATERMARK, lossless_us=lossless_us
            )
            try:
                return handle, StreamRing(ring), bell, size
            except OSError:
                os.close(bell)
                tree.close_handle(handle)  # else the pages go there, and the caller gets none
                raise
            finally:
                os.close(ring)
        except OSError as error:
            # ENOMEM: of the daemon, or of our address space; EINVAL: older daemons have smaller ones
            if error.errno not in (errno.ENOMEM, errno.EINVAL) or size == MIN_STREAM_RING:
                raise
        size //= 2


def fitting_ring_bytes(times: int = 1) -> int:
    """Size of a stream ring for one command that reads at full speed, or this power of two times it: a disk
    stalls for longer than the cpus of others."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # `max`, or no container
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    part = memory // PART_OF_MEMORY
    return times * max(MIN_STREAM_RING, min(MAX_STREAM_RING // 2, 1 << part.bit_length() - 1))
