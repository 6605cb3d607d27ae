"""In a service, a program that ends while no daemon runs loses nothing: the service manager keeps its data
ring, and the next daemon reads it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.daemon.restarting import packed
from tests.forked import Popen
from tests.integration.restart.service_manager import ServiceManager
from tests.integration.restart.test_restart import Producer, numbers, read, write
from utracefsd.server.runtime import locate
from utracefsd.state.log_file import LogFile

PROGRAM = """
import sys
from tests.integration.restart.test_restart import Producer
producer = Producer(sys.argv[1], sys.argv[2])
print("up", flush=True)
for line in sys.stdin:
    producer.emit(int(line))
    print(*producer.times_ns, flush=True)
"""


class Program:
    """A producer in a process of its own."""

    def __init__(self, directory: str, name: str) -> None:
        self.popen = Popen(
            [sys.executable, "-c", PROGRAM, directory, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.times_ns: list[int] = []
        assert self._line() == "up\n"

    def _line(self) -> str:
        assert self.popen.stdout is not None
        line: str = self.popen.stdout.readline()
        return line

    def emit(self, count: int) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{count}\n")
        self.popen.stdin.flush()
        self.times_ns = [int(ns) for ns in self._line().split()]

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def manager(directory: str) -> Iterator[ServiceManager]:
    made = ServiceManager(directory)
    made.start()
    yield made
    made.close()
    assert b"Traceback" not in made.log, made.log.decode(errors="replace")


@pytest.fixture
def program(manager: ServiceManager) -> Iterator[Callable[[str], Program]]:
    made: list[Program] = []

    def start(name: str) -> Program:
        made.append(Program(manager.directory, name))
        return made[-1]

    yield start
    for one in made:
        one.end()


def test_a_program_that_ended_meanwhile_loses_nothing(
    manager: ServiceManager, program: Callable[[str], Program]
) -> None:
    """Records of several, merged by time; the daemon frees the rings when it has read them."""
    programs = [program(f"p{n}") for n in range(3)]
    write(manager, events__enable=b"1")
    manager.wait_until_stored(3)
    for _ in range(10):
        for one in programs:
            one.emit(2)
    manager.stop(kill=True)
    for _ in range(10):
        for one in programs:
            one.emit(2)
    for one in programs:
        one.end()
    manager.start()
    trace, stats = read(manager, "trace", "per_cpu/cpu0/stats")
    found = re.findall(rb" (\d+)\.(\d{6}): p(\d): n=0x[0-9a-f]+ \((\d+)\)", trace)
    expected = sorted((ns, p, n) for p, one in enumerate(programs) for n, ns in enumerate(one.times_ns))
    assert len(expected) == 120
    assert [(int(s) * 10**6 + int(us), int(p), int(n)) for s, us, p, n in found] == [
        (ns // 1000, p, n) for ns, p, n in expected
    ]
    assert b"late events" not in stats
    manager.wait_until_stored(0)
    before = len(found)
    manager.stop(kill=True)
    manager.start()
    assert read(manager, "trace")[0].count(b": n=0x") == before


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_program_that_lives_adopts_its_ring(manager: ServiceManager, kill: bool) -> None:
    """Each record once, whether it was taken in before the program came back or after."""
    producer = Producer(manager.directory)
    try:
        write(manager, events__enable=b"1")
        manager.wait_until_stored(1)
        for _ in range(4):
            producer.emit(100)
            manager.stop(kill)
            producer.emit(100)
            manager.start()
            assert len(numbers(read(manager, "trace")[0])) == producer.emitted, "not waited for"
            producer.emit(100)
            producer.sock.close()
            producer.connect()
            producer.emit(100)
            assert numbers(read(manager, "trace")[0]) == list(range(producer.emitted))
        assert producer.emitted == 1600
        manager.wait_until_stored(1)
    finally:
        producer.close()
    manager.wait_until_stored(0)


def test_what_does_not_fit_is_as_without_and_said(directory: str) -> None:
    manager = ServiceManager(directory, limit=2)
    programs: list[Program] = []
    try:
        manager.start()
        programs += [Program(directory, "a") for _ in range(4)]
        write(manager, events__enable=b"1")
        manager.wait_until_stored(2)
        manager.stop(kill=True)
        for one in programs:
            one.emit(10)
            one.end()
        log = manager.log
        assert log.count(b"all users hold 2 data rings that the service manager keeps") == 1
        manager.start()
        trace, stats, told = read(manager, "trace", "events/user_events/a/stats", "daemon_stats")
        assert len(numbers(trace)) == 20
        assert b"lost with data rings that are gone: unknown, of 2\n" in stats
        assert b"data rings gone with their records, unknown how many: 2\n" in told
        assert b"how many records that was is unknown" in manager.stop(kill=True)
    finally:
        for one in programs:
            one.end()
        manager.close()


def hostile() -> dict[str, int]:
    def memfd(size: int, seals: int = 0) -> int:
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    whole = 4096 + (64 << 10) + 16384
    sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    read_end, write_end = os.pipe()
    os.close(write_end)
    return {
        "no seals": memfd(whole),
        "another length": memfd(12345, sealed),
        "not a ring": memfd(whole, sealed),
        "empty": memfd(0, sealed),
        "a pipe": read_end,
        "a folder": os.open("/", os.O_RDONLY),
    }


@pytest.mark.parametrize("known", [False, True])
def test_hostile_descriptors(directory: str, known: bool) -> None:
    """Descriptors are checked like those of producers, even where the state says that they are rings."""
    manager = ServiceManager(directory)
    try:
        manager.start()
        producer = Producer(directory)
        write(manager, events__enable=b"1")
        producer.emit(10)
        assert len(numbers(read(manager, "trace")[0])) == 10
        manager.wait_until_stored(1)
        if known:
            manager.stop(kill=True)
            log = LogFile.open(locate(directory).status_folder / "state")
            assert log is not None
            for fd in hostile_fds(manager):
                found = os.fstat(fd)
                assert log.append(packed(["ring", found.st_dev, found.st_ino, os.getpid(), 0, 0, []]))
            log.close()
        else:
            manager.stop(kill=True)
            hostile_fds(manager)
        producer.emit(10)
        manager.start()
        producer.sock.close()
        producer.connect()
        assert numbers(read(manager, "trace")[0]) == list(range(20))
        manager.wait_until_stored(1)
        producer.close()
    finally:
        manager.close()


def hostile_fds(manager: ServiceManager) -> list[int]:
    fds = list(hostile().values())
    for fd in fds:
        manager.store[f"data-ring.{os.fstat(fd).st_ino}"] = [fd]
    return fds
