"""The fuzzer of shared memory: data rings, doorbells, enable words, perf rings, the status page.

A round has a ring of its own and runs its random script (`script`) while the daemon reads: honest records,
damage of every field, holes, seals, lengths. The timing against the daemon's reads is random; the places and
values of the writes are not.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from tests.soak.attacks import wire
from tests.soak.crew import within
from tests.soak.plain import (
    COMMITTED,
    HEAD,
    HEADER_BYTES,
    LOST,
    LOST_BYTES,
    NEED_WAKEUP,
    TAIL,
    PlainConnection,
)
from utracefs.tree.tracefs import PerfAttr, Tracefs

Step: TypeAlias = tuple[Any, ...]

STEPS = (
    "honest",
    "header",
    "length",
    "body",
    "lost",
    "noise",
    "hole",
    "doorbell",
    "words",
    "status",
    "again",
    "pause",
)
"""Steps that `--without` may leave out; `again` connects anew and has the ring adopted."""

_FALLOC_PUNCH_HOLE = 3
_TAIL_OF_PERF_RING = 1032
_LENGTHS = [0, 1, 7, 8, 24, 4064, 65528, 65529, 65530, 65536, 0xFFFFFF, 0x1000000, 0x7FFFFFFF]
_FIELDS = [0, 4, 8, 12, HEAD, HEAD, HEAD, TAIL, TAIL, LOST, NEED_WAKEUP, NEED_WAKEUP]
_DELTAS = [1, 8, -8, 32, 1 << 16, -(1 << 16), 1 << 20, 1 << 31, 1 << 32, -(1 << 40), 1 << 63]

_libc = ctypes.CDLL(None, use_errno=True)


def script(rng: random.Random, without: frozenset[str] = frozenset()) -> list[Step]:
    """One round against a data ring; the first step makes it."""
    size = 1 << rng.choice([16, 16, 17, 20])
    steps: list[Step] = [("ring", size, [wire.declaration(rng) for _ in range(rng.randrange(1, 5))])]
    weights = {"honest": 30, "header": 6, "length": 8, "body": 8, "lost": 4, "noise": 3, "hole": 3}
    weights |= {"doorbell": 5, "words": 3, "status": 2, "again": 4, "pause": 2}
    names = [name for name in weights if name not in without]
    for name in rng.choices(names, [weights[name] for name in names], k=rng.randrange(3, 40)):
        seed = rng.randrange(1 << 32)
        steps.append((name, seed))
    return steps


class RingAttacker:
    """Runs scripts. Nothing that the daemon does stops it."""

    def __init__(self, directory: str) -> None:
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._connection: PlainConnection | None = None
        self._declarations: list[str] = []
        self._size = 0
        self._fds: tuple[int, int] | None = None
        self._memory: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._others: list[int] = []
        self._actions: dict[str, Callable[[random.Random], None]] = {
            "honest": self._honest,
            "header": self._header,
            "length": self._length,
            "body": self._body,
            "lost": self._lost,
            "noise": self._noise,
            "hole": self._hole,
            "doorbell": self._doorbell,
            "words": self._enable_words,
            "status": self._status,
            "again": self._again,
            "pause": self._pause,
        }

    def round(self, steps: list[Step]) -> None:
        _, size, declarations = steps[0]
        try:
            with contextlib.suppress(OSError):
                self._make_ring(size, declarations)
                for name, seed in steps[1:]:
                    self.counts["actions of attackers"] += 1
                    # (the daemon may have ended the connection: then the rest goes into memory that nobody
                    # reads, and `again` comes back with it)
                    with contextlib.suppress(OSError, ValueError), within(1.0):
                        self._actions[name](random.Random(seed))
        finally:
            self._close()

    def _make_ring(self, size: int, declarations: list[str]) -> None:
        self._size, self._declarations = size, declarations
        self._connect()
        assert self._connection is not None
        self._fds = self._connection.make_ring(size)
        self._memory = mmap.mmap(self._fds[0], HEADER_BYTES + size + LOST_BYTES)
        self._words = memoryview(self._memory).cast("Q")

    def _connect(self) -> None:
        for attempt in range(50):  # another daemon may be starting
            try:
                self._connection = PlainConnection(self._directory, 5.0)
                break
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.01)
        assert self._connection is not None
        self.counts["connections of attackers"] += 1
        for declaration in self._declarations:
            with contextlib.suppress(OSError):
                self._connection.register(declaration)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._words is not None:
            self._words.release()
            self._words = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        for fd in [*(self._fds or ()), *self._others]:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = None
        self._others.clear()

    # Damage to the ring

    def _put(self, offset: int, data: bytes) -> None:
        """Anywhere in the memory, or just beyond its end."""
        assert self._memory is not None
        offset %= len(self._memory) - len(data)
        self._memory[offset : offset + len(data)] = data

    def _position(self, field: int, rng: random.Random) -> int:
        """Somewhere near head or tail in the data area."""
        assert self._words is not None
        return HEADER_BYTES + (self._words[field // 8] + 8 * rng.randrange(-4, 5)) % self._size

    def _honest(self, rng: random.Random) -> None:
        """Valid records, and some almost valid ones."""
        assert self._words is not None and self._memory is not None and self._fds is not None
        for _ in range(rng.choice([1, 10, 300])):
            body = wire.payload(rng)
            need = (24 + len(body) + 7) // 8 * 8
            head, tail = self._words[HEAD // 8], self._words[TAIL // 8]
            if head % 8 or not 0 <= head + need - tail <= self._size:
                return
            at = head % self._size
            header = struct.pack(
                "<IQIHH",
                wire_index(rng),
                rng.choice([time.monotonic_ns()] * 8 + [0, (1 << 64) - 1, time.monotonic_ns() + 10**12]),
                rng.choice([os.getpid()] * 6 + [0, 1, 0xFFFF_FFFF, rng.randrange(1 << 22)]),
                rng.choice([0, 1, 0, 1, 9, 65535]),
                rng.choice([0, 0, 2, 2, 0xFFFE]),  # not the counter's, since times are judged
            )
            whole = bytes(4) + header + body
            first = min(len(whole), self._size - at)
            self._memory[HEADER_BYTES + at : HEADER_BYTES + at + first] = whole[:first]
            self._memory[HEADER_BYTES : HEADER_BYTES + len(whole) - first] = whole[first:]
            self._words[HEAD // 8] = head + need
            word = COMMITTED | len(body) if rng.random() < 0.97 else len(body)
            self._memory[HEADER_BYTES + at : HEADER_BYTES + at + 4] = struct.pack("<I", word)
            self.counts["records of attackers"] += 1
        if self._memory[NEED_WAKEUP]:
            self._memory[NEED_WAKEUP] = 0
            os.eventfd_write(self._fds[1], 1)

    def _header(self, rng: random.Random) -> None:
        assert self._words is not None
        for _ in range(rng.choice([1, 1, 50])):
            field = rng.choice(_FIELDS)
            if rng.random() < 0.5:
                self._words[field // 8] = (self._words[field // 8] + rng.choice(_DELTAS)) % (1 << 64)
            else:
                self._words[field // 8] = rng.choice(
                    [0, 1, 8, self._size, (1 << 64) - 8, rng.getrandbits(64)]
                )

    def _length(self, rng: random.Random) -> None:
        for _ in range(rng.choice([1, 5, 200])):
            word = rng.choice(_LENGTHS) | rng.choice([0, COMMITTED])
            self._put(self._position(rng.choice([HEAD, TAIL]), rng), struct.pack("<I", word))

    def _body(self, rng: random.Random) -> None:
        for _ in range(rng.choice([1, 5, 200])):
            self._put(
                self._position(TAIL, rng) + rng.randrange(24), rng.randbytes(rng.choice([1, 2, 4, 8, 60]))
            )

    def _lost(self, rng: random.Random) -> None:
        for _ in range(rng.choice([1, 4096])):
            value = rng.choice([0, 1, 0xFFFF_FFFF, rng.getrandbits(32)])
            self._put(HEADER_BYTES + self._size + 4 * rng.randrange(4096), struct.pack("<I", value))
        assert self._words is not None
        self._words[LOST // 8] = rng.getrandbits(rng.choice([1, 20, 64]))

    def _noise(self, rng: random.Random) -> None:
        self._put(HEADER_BYTES + rng.randrange(self._size), rng.randbytes(rng.choice([100, 4096, 60_000])))

    def _hole(self, rng: random.Random) -> None:
        """All operations on the file; forbidden ones must fail."""
        assert self._fds is not None
        fd = self._fds[0]
        kind = rng.randrange(6)
        whole = HEADER_BYTES + self._size + LOST_BYTES
        if kind == 0:
            _libc.fallocate(fd, _FALLOC_PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(whole))
        elif kind == 1:
            place = 4096 * rng.randrange(whole // 4096)
            _libc.fallocate(fd, _FALLOC_PUNCH_HOLE, ctypes.c_long(place), ctypes.c_long(4096))
        elif kind == 2:
            os.ftruncate(fd, rng.choice([0, 4096, whole * 2]))
        elif kind == 3:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, rng.choice([fcntl.F_SEAL_WRITE, 16, fcntl.F_SEAL_GROW]))
        elif kind == 4:
            os.fchmod(fd, rng.choice([0, 0o444, 0o666]))
        else:
            os.pwrite(fd, rng.randbytes(4096), rng.choice([0, 4096, whole - 4096]))

    def _doorbell(self, rng: random.Random) -> None:
        assert self._fds is not None
        bell = self._fds[1]
        kind = rng.randrange(5)
        if kind == 0:
            os.set_blocking(bell, rng.random() < 0.5)
        elif kind == 1:
            for _ in range(300):
                os.eventfd_write(bell, 1)
        elif kind == 2:
            os.set_blocking(bell, False)
            os.eventfd_write(bell, (1 << 64) - 2)
        elif kind == 3:
            os.set_blocking(bell, False)
            os.eventfd_read(bell)
        else:
            fcntl.fcntl(bell, fcntl.F_SETFL, os.O_ASYNC)

    def _enable_words(self, rng: random.Random) -> None:
        """A page of enable words that is removed under the daemon."""
        assert self._connection is not None
        fd = os.memfd_create("soak", os.MFD_ALLOW_SEALING)
        self._others.append(fd)
        os.ftruncate(fd, 8192)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        for _ in range(rng.choice([1, 20])):
            reg = {"name_args": wire.declaration(rng), "enable_fd": 0, "enable_size": rng.choice([4, 8])}
            reg |= {"enable_addr": 8 * rng.randrange(1030), "enable_bit": rng.randrange(32)}
            with contextlib.suppress(OSError):
                self._connection.call("DIAG_IOCSREG", reg, fds=(fd,))
            _libc.fallocate(fd, _FALLOC_PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(8192))
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, rng.choice([fcntl.F_SEAL_WRITE, 16]))

    def _status(self, rng: random.Random) -> None:
        """Every user may read the status page, and only the daemon write it."""
        assert self._connection is not None
        self._connection.call("mmap_status")
        fds = self._connection.take_fds()
        self._others += fds
        for fd in fds:
            for attempt in (self._write_to, self._truncate, self._reopen, self._unprotect):
                with contextlib.suppress(OSError, ValueError):
                    attempt(fd)

    @staticmethod
    def _write_to(fd: int) -> None:
        os.pwrite(fd, b"\xff" * 4096, 0)
        _broken("status page written")

    @staticmethod
    def _truncate(fd: int) -> None:
        os.ftruncate(fd, 0)
        _broken("status page truncated")

    @staticmethod
    def _reopen(fd: int) -> None:
        if os.fstat(fd).st_uid != os.getuid() != 0:
            os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
            _broken("status page opened for writing")

    @staticmethod
    def _unprotect(fd: int) -> None:
        mmap.mmap(fd, 4096).close()
        _broken("status page mapped for writing")

    def _pause(self, rng: random.Random) -> None:
        """The daemon gets time to read, or is killed: then `again` goes to the next one."""
        time.sleep(rng.choice([0.001, 0.005, 0.2]))

    def _again(self, rng: random.Random) -> None:
        assert self._fds is not None
        if self._connection is not None and rng.random() < 0.8:
            self._connection.close()
        before = self._connection
        self._connect()
        if before is not None:
            before.close()
        assert self._connection is not None
        self._connection.call("adopt_ring", {}, fds=self._fds)


def _broken(text: str) -> None:
    raise AssertionError(text)


def wire_index(rng: random.Random) -> int:
    return rng.choice([0, 0, 0, 1, 2, 3, 5, 4095, 4096, 0x7FFF_FFFF, 0xFFFF_FFFF])


class PerfAttacker:
    """An administrator whose program corrupts the perf rings that it reads."""

    def __init__(self, directory: str) -> None:
        self.counts: Counter[str] = Counter()
        self._directory = directory

    def round(self, rng: random.Random) -> None:
        with contextlib.suppress(OSError), Tracefs(self._directory, timeout_s=5) as tree:
            maps: list[mmap.mmap] = []
            fds: list[int] = []
            try:
                for _ in range(rng.randrange(1, 6)):
                    name = f"user_events:{wire.event_name(rng)}".encode()
                    pages = rng.choice([1, 2, 16])
                    with contextlib.suppress(OSError):
                        _, fd = tree.perf_event_open(PerfAttr(name=name, sample_period=1, data_pages=pages))
                        assert fd is not None
                        fds.append(fd)
                        maps.append(mmap.mmap(fd, 4096 * (pages + 1)))
                for _ in range(rng.randrange(1, 300)):
                    self.counts["actions of attackers"] += 1
                    self._damage(rng, maps, fds)
                    if rng.random() < 0.05:
                        time.sleep(0.002)
                        tree.read_file("tracing_on")
            finally:
                for memory in maps:
                    memory.close()
                for fd in fds:
                    os.close(fd)

    def _damage(self, rng: random.Random, maps: list[mmap.mmap], fds: list[int]) -> None:
        if not maps:
            return
        which = rng.randrange(len(maps))
        memory = maps[which]
        kind = rng.random()
        if kind < 0.6:
            value = rng.choice([0, 1, 8, 4096, 1 << 63, (1 << 64) - 8, rng.getrandbits(64)])
            offset = rng.choice([_TAIL_OF_PERF_RING, 1024, 1040, 1048])
            memory[offset : offset + 8] = struct.pack("<Q", value)
        elif kind < 0.9:
            offset = rng.randrange(len(memory) - 64)
            memory[offset : offset + 64] = rng.randbytes(64)
        elif kind < 0.95:
            _libc.fallocate(fds[which], _FALLOC_PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(len(memory)))
        else:
            with contextlib.suppress(OSError):
                os.ftruncate(fds[which], rng.choice([0, 4096]))
                _broken("a perf ring was truncated")
