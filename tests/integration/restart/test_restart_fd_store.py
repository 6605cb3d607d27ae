"""In a service, a program that ends while no daemon runs loses nothing: the service manager keeps its data
ring, and the next daemon reads it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

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
    print("emitted", flush=True)
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
        assert self._line() == "up\n"

    def _line(self) -> str:
        assert self.popen.stdout is not None
        line: str = self.popen.stdout.readline()
        return line

    def emit(self, count: int) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{count}\n")
        self.popen.stdin.flush()
        assert self._line() == "emitted\n"

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


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
        producer.come_back()
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
