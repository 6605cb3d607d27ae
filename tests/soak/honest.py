"""Honest producers: programs that emit numbered records, and report their losses.

One uses the client library, over a data ring or over the socket; one is in C, uses only the headers and takes
its ring from daemon to daemon. All emit `u32 who; u64 n`: `who` is a thread, n counts from 0.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import random
import select
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.soak.crew import Job, Notes
from tests.soak.house import ROOT
from tests.soak.plain import PlainConnection
from utracefs.producer.session import Session

FIELDS = "u32 who; u64 n"

# Places in Notes.numbers.
EMITTED, LOST, REFUSED, FINISHED, PENDING = 1, 2, 3, 4, 5
TURNED_AWAY = 6
"""How often the daemon had no space for it."""
OVER_SOCKET = 7
"""Whether some went over the socket: the daemon gave no ring, or did not take it over, while its descriptors
were used up."""
PROGRESS = 8
"""[PROGRESS + who]: the number after the thread's last emitted one, or one less."""

_FLUSH_S = 40.0
_RING_BYTES = 1 << 20

_NO_ROOM = (errno.EMFILE, errno.ENOMEM)
"""An attacker holds the total of all users for the moment: treated like a missing daemon."""


def compile_numbered(folder: Path) -> Path:
    """The C producer as a library in `folder`."""
    library = folder / "numbered.so"
    include = ROOT / "protocol" / "utracefs_protocol" / "include"
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([*command, os.fspath(Path(__file__).with_name("numbered.c")), "-o", library], check=True)
    library.chmod(0o755)
    return library


def python_producer(
    directory: str, event: str, seed: str, per_second: int, *, ring_kb: int = 1024, threads: int = 1
) -> Job:
    """With the client library; ring_kb 0: without a data ring."""

    def job(notes: Notes) -> Counter[str]:
        os.environ["UTRACEFS_DATA_RING"] = str(int(ring_kb > 0))
        os.environ["UTRACEFS_RING_KB"] = str(ring_kb)
        with Session(directory) as session:
            emitter = session.event(f"{event} {FIELDS}")

            def thread(who: int) -> None:
                pace = _Pace(f"{seed}/{who}", per_second // threads, notes)
                n = 0
                for burst in pace:
                    for _ in range(burst):
                        if emitter:
                            emitter.emit(who, n)
                            n += 1
                            notes.numbers[PROGRESS + who] = n

            def look() -> None:
                time.sleep(0.02)
                if session._native.is_connected and not session._native.ring_bytes:
                    notes.numbers[OVER_SOCKET] = 1

            logging.getLogger("utracefs").addHandler(_NoRing(notes))
            _in_threads(thread, threads, look)
            if not session.flush(_FLUSH_S):  # the connection was lost meanwhile
                session.flush(_FLUSH_S)
            stats = session.stats()
            counts = stats.events[emitter.declaration]
            notes.numbers[PENDING] = stats.pending
            notes.numbers[EMITTED] = counts.emitted
            notes.numbers[LOST] = counts.lost
            notes.numbers[REFUSED] = sum(counts.refused.values())
            notes.numbers[FINISHED] = 1
        return Counter({"records of honest producers": counts.emitted})

    return job


def closing_records(directory: str) -> Job:
    """One record of each cpu, behind all others: `trace` shows losses only before a record."""

    def job(_notes: Notes) -> Counter[str]:
        cpus = os.sched_getaffinity(0)
        with Session(directory) as session:
            emitter = session.event(f"pclosing {FIELDS}")
            for cpu in cpus:
                os.sched_setaffinity(0, {cpu})
                while not (emitter.registered and emitter):
                    time.sleep(0.01)
                emitter.emit(0, 0)
            session.flush(_FLUSH_S)
        return Counter()

    return job


class _NoRing(logging.Handler):
    """Notes when a daemon does not take over the existing ring."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if "data ring" in record.getMessage():
            self._notes.numbers[OVER_SOCKET] = 1


def c_producer(
    directory: str, event: str, seed: str, per_second: int, library: Path, *, threads: int = 1
) -> Job:
    """With the headers. The ring's memory lives as long as this process."""

    def job(notes: Notes) -> Counter[str]:
        program = _CProgram(directory, event, library)
        numbers = (ctypes.c_uint64 * 32).from_buffer(notes.numbers)

        def thread(who: int) -> None:
            n = 0
            for burst in _Pace(f"{seed}/{who}", per_second // threads, notes):
                place = ctypes.byref(numbers, 8 * (PROGRESS + who))
                n += program.emit(who, n, burst, place)

        _in_threads(thread, threads, program.stay_connected)
        program.finish()
        notes.numbers[EMITTED] = sum(notes.numbers[PROGRESS : PROGRESS + threads])
        notes.numbers[LOST] = program.lost()
        notes.numbers[TURNED_AWAY] = program.turned_away
        notes.numbers[FINISHED] = 1
        return Counter(
            {
                "records of honest producers": notes.numbers[EMITTED],
                "honest producers turned away": program.turned_away,
            }
        )

    return job


class _Pace:
    """Bursts of random sizes, about so many records a second, until it shall stop."""

    def __init__(self, seed: str, per_second: int, notes: Notes) -> None:
        self._rng = random.Random(seed)
        self._per_second = per_second
        self._notes = notes

    def __iter__(self) -> _Pace:
        return self

    def __next__(self) -> int:
        if self._notes.stopped:
            raise StopIteration
        burst = self._rng.choice([1, 1, 10, 100, 1000])
        time.sleep(burst / self._per_second)
        return burst


def _in_threads(
    work: Callable[[int], None], number: int, meanwhile: Callable[[], None] = lambda: time.sleep(0.02)
) -> None:
    """This thread calls `meanwhile` again and again."""
    threads = [threading.Thread(target=work, args=(who,)) for who in range(number)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()


class _CProgram:
    """The work of a program in C without the library: connect, register, adopt."""

    def __init__(self, directory: str, event: str, library: Path) -> None:
        self._directory = directory
        self._event = event
        self._library = ctypes.CDLL(os.fspath(library))
        self._library.numbered_emit.restype = ctypes.c_uint64
        self._library.numbered_lost.restype = ctypes.c_uint64
        self._library.numbered_status.restype = ctypes.c_size_t
        self._ring: tuple[int, int] | None = None
        self._connection: PlainConnection | None = None
        self._status = 0
        self._index = 0
        self.turned_away = 0
        while self._connection is None:
            self.stay_connected()

    def emit(self, who: int, n: int, count: int, progress: object) -> int:
        assert self._ring is not None
        emitted: int = self._library.numbered_emit(
            ctypes.c_void_p(self._status),
            ctypes.c_uint32(self._index),
            ctypes.c_uint32(who),
            ctypes.c_uint64(n),
            ctypes.c_uint64(count),
            self._ring[1],
            progress,
        )
        return emitted

    def lost(self) -> int:
        lost: int = self._library.numbered_lost()
        return lost

    def stay_connected(self) -> None:
        """Check whether the daemon is there; connect again when it is not."""
        if self._connection is not None:
            readable, _, _ = select.select([self._connection.sock], [], [], 0.02)
            if not readable:
                return
            if self._connection.sock.recv(4096):
                return  # a write_error: the daemon counts it
            self._connection.close()
            self._connection = None
        try:
            self._connect()
        except OSError as error:
            # BlockingIOError: the listening socket's queue is full, and the socket has a timeout
            away = FileNotFoundError | ConnectionError | PermissionError | TimeoutError | BlockingIOError
            if error.errno in _NO_ROOM:
                self.turned_away += 1
            elif not isinstance(error, away):
                raise  # the daemon refuses a correct request
            time.sleep(0.02)

    def _connect(self) -> None:
        connection = PlainConnection(self._directory)
        try:
            index, status_index = connection.register(f"{self._event} {FIELDS}")
            size = connection.call("mmap_status")["size"]
            (page,) = connection.take_fds()
            try:
                status = self._library.numbered_status(page, ctypes.c_size_t(size))
            finally:
                os.close(page)
            if self._ring is None:
                self._ring = connection.make_ring(_RING_BYTES)
                assert not self._library.numbered_map(self._ring[0], ctypes.c_uint32(_RING_BYTES))
            else:
                connection.call("adopt_ring", {}, fds=self._ring)
        except BaseException:
            connection.close()
            raise
        self._index = index
        self._status = status + status_index  # threads may be looking at the old page: it stays mapped
        self._connection = connection

    def finish(self) -> None:
        """All committed records have reached the daemon."""
        deadline = time.monotonic() + _FLUSH_S
        while time.monotonic() < deadline:
            self.stay_connected()
            if self._connection is not None:
                try:
                    self._connection.call("sync")
                except OSError:
                    continue
                self._connection.close()
                return
        raise TimeoutError("the daemon did not come back")
