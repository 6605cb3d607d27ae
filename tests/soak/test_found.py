"""Faults found by attacks: the shortest way to each, so that it does not come back.

Marked tests are of faults that still exist; the change that mends one removes its mark.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from tests.soak.attacks.fuse import FuseFiles
from tests.soak.house import ROOT, House
from tests.soak.report import Report
from utracefsd.connections.data_connection import HALF_MESSAGE_NS
from utracefsd.machine.closing import MAX_THREADS, MAX_WAITING

root = pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="mounts a file system, changes its user",
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "house", Report("s"), "part")
    made.descriptors = 4096
    made.start()
    yield made
    made.clear()


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def send(house: House, fds: list[int], times: int, uid: int = 0) -> None:
    """Each time a new connection, which ends at once."""
    for _ in range(times):
        # From the folder itself, since another user may not search those above it.
        with socket.socket(socket.AF_UNIX) as sock, contextlib.chdir(house.directory):
            with as_user(uid):
                sock.connect("user_events_data")
            socket.send_fds(sock, [msgpack.packb([0, 1, "sync", []])], fds)


@root
@pytest.mark.parametrize("places", [(0, 1), (1, 0)], ids=["as memory", "as doorbell"])
def test_a_file_whose_close_hangs_is_offered_as_a_ring(
    house: House, tmp_path: Path, places: tuple[int, int]
) -> None:
    """The loop closed the duplicates that it had made of them."""
    files = FuseFiles(os.fspath(tmp_path / "fuse"))
    memory = os.memfd_create("memory", os.MFD_ALLOW_SEALING)
    hanging = os.open(tmp_path / "fuse" / "hangs", os.O_RDWR)
    try:
        files.watch(house.pid)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(os.path.join(house.directory, "user_events_data"))
            fds = [(hanging, memory)[place] for place in places]
            socket.send_fds(sock, [msgpack.packb([0, 1, "adopt_ring", [{}]])], fds)
            answer = msgpack.unpackb(sock.recv(4096))
            assert answer[2][0] == errno.EINVAL, answer
        house.probe()
    finally:
        os.close(hanging)
        os.close(memory)
        files.close()
    assert not house.report.findings


@root
@pytest.mark.parametrize("attacker", [0, 54321], ids=["own", "of another user"])
def test_closes_that_hang_do_not_keep_others_from_being_closed(
    house: House, tmp_path: Path, attacker: int
) -> None:
    """They use up neither the daemon's descriptors nor its time. Of the attacker's own descriptors, those of
    one message may wait, which may be too many."""
    files = FuseFiles(os.fspath(tmp_path / "fuse"))
    Path(house.directory).chmod(0o755)
    (Path(house.directory) / "user_events_data").chmod(0o666)
    try:
        files.watch(house.pid)
        before = len(os.listdir(f"/proc/{house.pid}/fd"))
        for _ in range(10):
            fds = [os.open(tmp_path / "fuse" / "hangs", os.O_RDWR) for _ in range(4)]
            send(house, fds, 1, attacker)
            for fd in fds:
                os.close(fd)
        pipes = os.pipe()
        send(house, [*pipes] * 100, 15)
        for fd in pipes:
            os.close(fd)
        house.probe()
        hang = before + 40 - MAX_THREADS  # close(2) frees the number first
        most = hang + (0 if attacker else MAX_WAITING + 253)
        deadline = time.monotonic() + 60
        while not hang <= (now := len(os.listdir(f"/proc/{house.pid}/fd"))) <= most:
            assert time.monotonic() < deadline, f"{before} descriptors before, {now} now; {hang} hang"
            time.sleep(0.05)
    finally:
        files.close()
    assert not house.report.findings


def test_a_connection_that_is_sent_over_itself_ends_with_its_sender(house: House) -> None:
    """The daemon waits for the rest of a message and keeps the descriptors that came with it: the other end
    of this very connection, which therefore ends when the time for that rest is over."""
    before = len(os.listdir(f"/proc/{house.pid}/fd"))
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(os.path.join(house.directory, "user_events_data"))
            socket.send_fds(sock, [b"\x94\x00"], [sock.fileno()])
    deadline = time.monotonic() + HALF_MESSAGE_NS / 1e9 + 10
    while (now := len(os.listdir(f"/proc/{house.pid}/fd"))) > before:
        assert time.monotonic() < deadline, f"{before} descriptors before, {now} now"
        time.sleep(0.05)


PROGRAM = """
import os, sys, time
import utracefs
until = time.monotonic() + 60
first = utracefs.event("soak_first u32 a")
while not first.registered and time.monotonic() < until:
    time.sleep(0.01)
os.chroot(sys.argv[1])  # as a server that gives up what it does not need
refused = utracefs.event("soak_other u32 a")
while not refused.error and time.monotonic() < until:
    time.sleep(0.01)
assert refused.error
later = utracefs.event("soak_later u32 a")
while not later.registered and time.monotonic() < until:
    time.sleep(0.01)
assert later.registered
"""


@root
def test_a_program_that_cannot_import_any_more_is_warned(house: House, tmp_path: Path) -> None:
    """The session thread died of it, with a traceback in the program's stderr."""
    with house.tree() as tree:
        tree.write_file("dynamic_events", b"u:soak_other u64 b\n", truncate=False)
    # Coverage would report that it cannot write its data there.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env={**env, "UTRACEFS_DIR": house.directory},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"utracefs: event soak_other is off: .* \(EADDRINUSE\)\n", done.stderr)


FLOODS = """
import time
import utracefs
event = utracefs.event("soak_flood __rel_loc char[] text")
while not (event.registered and event):
    time.sleep(0.01)
for seconds in (2.5, 0, 0):
    for _ in range(15_000):
        event.emit("x" * 1000)
    time.sleep(seconds)
    utracefs.flush()
print(utracefs.stats().lost)
"""


@root
def test_closes_that_hang_keep_no_memory_of_others(house: House, tmp_path: Path) -> None:
    """The thread that gives a flood's memory back closed its copies of all descriptors. One hung, and the
    ring got no more room."""
    files = FuseFiles(os.fspath(tmp_path / "fuse"))
    Path(house.directory).chmod(0o755)
    (Path(house.directory) / "user_events_data").chmod(0o666)
    try:
        files.watch(house.pid)
        fds = [os.open(tmp_path / "fuse" / "hangs", os.O_RDWR) for _ in range(3 * MAX_THREADS)]
        send(house, fds, 1, 54321)
        for fd in fds:
            os.close(fd)
        with house.tree() as tree:
            tree.write_file("standing_events", b"user_events:soak_flood\n", truncate=False)
        env = {**os.environ, "UTRACEFS_DIR": house.directory, "UTRACEFS_RING_KB": "32768"}
        done = subprocess.run(
            [sys.executable, "-c", FLOODS], env=env, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == "0\n"
    finally:
        files.close()
