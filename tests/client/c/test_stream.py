"""utracefs_stream.h, under a sanitizer, with a real daemon, and with one that sends nonsense."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.c.building import sanitized
from tests.client.c.programs import Program, started
from tests.client.daemons.fake_daemon import wait_for
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from tests.protocol.pages.stream_writer import PlainWriter
from utracefs import Session
from utracefs_protocol.connection import encode_error, encode_response
from utracefs_protocol.limits import MAX_STREAM_RING

NewSession = Callable[..., Session]


@pytest.fixture
def stream(directory: Path) -> Iterator[Program]:
    path = sanitized("stream")
    with started(path, directory) as program:
        yield program


def opened(program: Program, *parts: object) -> str:
    """The parts: events, filter, instance, bytes of the ring, watermark, whether it ends."""
    return program.ask("open " + "|".join(map(str, [*parts, *["-"] * (6 - len(parts))])))


def emit(session: Session, name: str, *numbers: int) -> None:
    event = session.event(f"{name} u32 a; __rel_loc char[] s")
    wait_for(lambda: event.registered and event)
    for number in numbers:
        event.emit(number, f"s{number}")
    assert session.flush(60)


UNTIL_OPEN = 1100
"""A wait of more than a second does not end before the stream is open."""


def counts(program: Program, wait_ms: int = 300) -> dict[str, tuple[int, int]]:
    """Records and losses by event; `restarts`."""
    found = program.ask(f"count {wait_ms}")
    return {
        name: (int(records), int(lost or 0))
        for name, records, lost in re.findall(r"(\S+)=(\d+)(?:\+(\d+))?", found)
    }


def test_records(stream: Program, new_session: NewSession, utracefsd: DaemonProcess) -> None:
    session = new_session()
    assert opened(stream, "ev ev_[ab] nothing:*") == "0"
    emit(session, "ev", 7)
    session.event("other u32 a").emit(6)
    emit(session, "ev_a", 8)
    first, second, rest = stream.ask("each 500").split(";")
    assert rest == ""
    name, time_ns, cpu, pid, tid, comm, data = first.split(" ")
    assert (name, int(pid), int(tid)) == ("user_events:ev", os.getpid(), threading.get_native_id())
    assert comm == Path("/proc/thread-self/comm").read_text().strip()
    assert int(cpu) < os.cpu_count()  # type: ignore[operator]
    assert int(time_ns) > 0
    assert bytes.fromhex(data) == struct.pack("<IHH3s", 7, 0, 3, b"s7\0")
    assert second.startswith("user_events:ev_a ")


def test_a_filter_and_errors(stream: Program, new_session: NewSession, utracefsd: DaemonProcess) -> None:
    session = new_session()
    session.event("ev u32 a; __rel_loc char[] s")
    assert opened(stream, "ev", "a > 2") == "0"
    emit(session, "ev", 1, 2, 3, 4)
    assert counts(stream)["ev"] == (2, 0)
    assert opened(stream, "ev", "b > 2").startswith(f"-{errno.EINVAL} filter: ")
    assert stream.ask("each 1") == f"-{errno.EBADF} the stream is not open"
    assert opened(stream, "ev", "-", "gone") == f"-{errno.ENOENT} there is no instance 'gone'"
    assert opened(stream, "ev", "-", "-", 5000).startswith(f"-{errno.EINVAL} ")
    assert opened(stream, "ev", "-", "-", MAX_STREAM_RING) == "0"
    assert opened(stream, " ".join(f"e{n}" for n in range(64))) == "0"
    assert opened(stream, " ".join(f"e{n}" for n in range(65))).startswith(f"-{errno.E2BIG} ")


def test_files(stream: Program, new_session: NewSession, utracefsd: DaemonProcess) -> None:
    session = new_session()
    assert opened(stream, "ev") == "0"
    emit(session, "ev")
    text = bytes.fromhex(stream.ask("file events/user_events/ev/format")).decode()
    assert text.startswith("name: ev\nID: ")
    assert stream.ask("file events/user_events/gone/id").startswith(f"-{errno.ENOENT} ")


def test_no_daemon(stream: Program, directory: Path) -> None:
    assert opened(stream, "ev") == f"-{errno.ENOENT} no daemon in {directory}: No such file or directory"
    assert stream.ask("file trace").startswith(f"-{errno.ENOENT} no daemon")


def test_losses_are_reported(stream: Program, new_session: NewSession, utracefsd: DaemonProcess) -> None:
    """The ring has room for some thousand records of the 20,000: the program does not read meanwhile."""
    session = new_session()
    assert opened(stream, "ev", "-", "-", 256 << 10) == "0"
    emit(session, "ev", *range(20_000))
    lost = stream.number("lost")
    assert lost > 5000
    assert counts(stream)["ev"] == (20_000 - lost, lost)
    emit(session, "ev", *range(10))
    assert counts(stream)["ev"] == (10, 0)
    assert stream.number("lost") == lost


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart(stream: Program, new_session: NewSession, utracefsd: DaemonProcess, kill: bool) -> None:
    """Records that the next daemon has before the stream is back are reported as lost."""
    session = new_session()
    session.event("ev u32 a; __rel_loc char[] s")
    with utracefsd.tree() as tree:
        tree.write_file("standing_events", b"user_events:ev\n")
    assert opened(stream, "ev other") == "0"
    emit(session, "ev", *range(1000))
    os.kill(stream.pid, signal.SIGSTOP)
    utracefsd.stop(kill)
    utracefsd.start()
    emit(session, "ev", *range(100))
    os.kill(stream.pid, signal.SIGCONT)
    assert counts(stream, UNTIL_OPEN) == {"ev": (1000, 100), "restarts": (1, 0)}
    emit(session, "ev", 1)
    emit(session, "other", 1)
    assert counts(stream) == {"ev": (1, 0), "other": (1, 0), "restarts": (0, 0)}
    assert stream.number("lost") == 100


def test_records_that_no_daemon_had_seen_when_it_was_killed(
    stream: Program, new_session: NewSession, utracefsd: DaemonProcess
) -> None:
    """The stream was the only consumer, so the next daemon has none for them, nor for the lost ones."""
    session = new_session()
    assert opened(stream, "ev") == "0"
    emit(session, "ev", 1)
    assert counts(stream)["ev"] == (1, 0)
    os.kill(stream.pid, signal.SIGSTOP)
    utracefsd.signal(signal.SIGSTOP)
    event = session.event("ev u32 a; __rel_loc char[] s")
    for number in range(400_000):
        event.emit(number, "more than the data ring holds")
    utracefsd.stop(kill=True)
    utracefsd.start()
    assert session.flush(60)
    os.kill(stream.pid, signal.SIGCONT)
    assert counts(stream, UNTIL_OPEN) == {"ev": (0, 400_000), "restarts": (1, 0)}
    assert 0 < event.lost < 400_000


@pytest.mark.parametrize("filter", ["-", "a >= 0"])
@pytest.mark.parametrize("kill", [False, True])
def test_a_daemon_ends_while_the_ring_is_full(
    stream: Program, new_session: NewSession, utracefsd: DaemonProcess, kill: bool, filter: str
) -> None:
    """So it could not say of which event the lost records were; the next one may count them, too."""
    session = new_session()
    assert opened(stream, "ev", filter, "-", 256 << 10) == "0"
    os.kill(stream.pid, signal.SIGSTOP)
    emit(session, "ev", *range(20_000))
    utracefsd.stop(kill)
    utracefsd.start()
    os.kill(stream.pid, signal.SIGCONT)
    found = counts(stream, UNTIL_OPEN)
    assert found.pop("restarts") == (1, 0)
    records, lost = map(sum, zip(*found.values(), strict=True))
    assert records + lost == 20_000
    assert stream.number("lost") == lost > 5000


def test_a_program_that_does_not_wait_finds_the_next_daemon(
    stream: Program, utracefsd: DaemonProcess
) -> None:
    assert opened(stream, "ev") == "0"
    utracefsd.stop()
    assert counts(stream)["restarts"] == (0, 0), "nor does it read on without end"
    utracefsd.start()
    wait_for(lambda: counts(stream, 0)["restarts"] == (1, 0))


def test_kills(stream: Program, utracefsd: DaemonProcess) -> None:
    """Received records and reported losses add up to all that a program emitted, except for the record that a
    killed daemon is at, which may be both. (Each daemon is killed only after the stream found it: the next
    daemon does not have its numbers.)"""
    kills, size = 3, 1 << 20
    with utracefsd.tree() as tree:
        tree.write_file("standing_events", b"user_events:ev\n")
    assert opened(stream, "ev", "-", "-", size) == "0"
    total: Counter[str] = Counter()
    ended = threading.Event()

    def read_on() -> None:
        while not ended.is_set():
            for name, (records, lost) in counts(stream).items():
                total.update({name: records, "all": records + lost})

    def is_reading() -> bool:
        """More records than its ring holds: it has the ring, and the daemon's numbers, which came with it."""
        stats = b""
        with contextlib.suppress(FileNotFoundError):  # it is not registered again yet
            stats = read(utracefsd, "events/user_events/ev/stats")
        found = re.search(rb"stream:.* recorded (\d+)", stats)
        return found is not None and int(found[1]) > size // 32

    program = Popen([sys.executable, "-c", EMITTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    reader = threading.Thread(target=read_on, daemon=True)
    with program:
        assert program.stdin and program.stdout
        assert program.stdout.readline() == "ready\n"
        reader.start()
        for turn in range(kills + 1):
            wait_for(is_reading)
            time.sleep(random.uniform(0, 0.05))  # at any point of its work
            utracefsd.stop(kill=turn < kills)
            utracefsd.start()
        wait_for(is_reading)
        emitted = int(program.communicate("end\n", timeout=60)[0])
    with contextlib.suppress(AssertionError):  # the numbers say more
        wait_for(lambda: total["all"] - total["restarts"] >= emitted, 20)
    ended.set()
    reader.join()
    assert total["restarts"] == kills + 1
    assert 0 <= total["all"] - total["restarts"] - emitted <= kills
    assert total["ev"] > 1000


def read(daemon: DaemonProcess, path: str) -> bytes:
    with daemon.tree() as tree:
        return tree.read_file(path)


EMITTER = """
import select, sys, utracefs
event = utracefs.event("ev u64 n; __rel_loc char[] s")
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for n in range(1000):
        event.emit(n, "hello")
assert utracefs.flush(60)
stats = utracefs.stats()
assert sum(sum(one.refused.values()) for one in stats.events.values()) == 0
print(stats.emitted)
"""


def test_the_end(stream: Program, new_session: NewSession, utracefsd: DaemonProcess) -> None:
    session = new_session()
    assert opened(stream, "ev", "-", "-", "-", "-", "ends") == "0"
    emit(session, "ev", *range(10))
    utracefsd.stop()
    assert stream.ask("count 1000") == f"ev=10+0 restarts=0-{errno.ECONNRESET} the daemon has ended"
    assert stream.ask("count 1").endswith("the stream is not open")


# A daemon that is not to be trusted.


class Liar:
    """Sends each client these answers, one for each request, the descriptors with the first, and hangs up."""

    def __init__(self, directory: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(directory / "tracefs"))
        self.listener.listen()
        self.answers: list[bytes] = []
        self.fds: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with sock, contextlib.suppress(OSError):
                for number, answer in enumerate(self.answers):
                    sock.recv(65536)
                    if not answer:
                        break
                    if number or not self.fds:
                        sock.sendall(answer)
                    else:
                        socket.send_fds(sock, [answer], self.fds)


MISSED = {"handle": 5, "origin": "x", "epoch": 1, "events": []}
OPENED = encode_response(1, MISSED)


@pytest.fixture
def liar(directory: Path) -> Iterator[Liar]:
    made = Liar(directory)
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.fixture
def writer() -> Iterator[PlainWriter]:
    writer = PlainWriter()
    yield writer
    writer.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "the daemon closed the connection"),
        (b"\xc1", "the daemon's answer is no message"),
        (encode_response(1, {}), "the daemon sent no stream ring"),
        (encode_response(1, {"handle": -1}), "the daemon sent no stream ring"),
        (encode_response(1, 5), "the daemon sent no stream ring"),
        (encode_response(1, {"handle": 5, "events": 1}), "the daemon's counts of missed records are broken"),
        (encode_response(1, {**MISSED, "origin": 1}), "the daemon's counts of missed records are broken"),
        (
            encode_response(1, {**MISSED, "events": [["ev", 1]]}),
            "the daemon's counts of missed records are broken",
        ),
        (encode_error(1, errno.EIO, "no"), "no"),
        (encode_response(1, {"handle": 5}), ""),  # an older daemon
    ],
)
def test_answers(stream: Program, liar: Liar, writer: PlainWriter, answer: bytes, error: str) -> None:
    end, bell = os.pipe()
    liar.answers, liar.fds = [answer], [writer.fd, end]
    assert opened(stream, "ev").partition(" ")[2] == error
    os.close(end)
    os.close(bell)


OBJECTS = st.recursive(
    st.none() | st.integers(-5, 2**63) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=30),
        OBJECTS.map(lambda result: encode_response(1, result)),
        st.lists(OBJECTS, max_size=3).map(lambda found: encode_response(1, {**MISSED, "events": found})),
        st.lists(st.tuples(st.text(max_size=9), st.integers(0, 9), st.integers(0, 2)), max_size=5).map(
            lambda found: encode_response(1, {**MISSED, "events": found})
        ),
    )
)
def test_no_answer_does_harm(stream: Program, liar: Liar, answer: bytes) -> None:
    """The answer about missed records, which has the most parts."""
    writer = PlainWriter()
    end, bell = os.pipe()
    liar.answers, liar.fds = [answer], [writer.fd, end]
    assert opened(stream, "*").partition(" ")[0] in ("0", f"-{errno.EPROTO}", f"-{errno.ECONNRESET}")
    liar.answers, liar.fds = [answer.replace(b"\x94\x01\x01", b"\x94\x01\x00")], []
    assert stream.ask("file x") is not None
    os.close(bell)
    os.close(end)
    writer.close()


def test_memory_that_is_no_ring(stream: Program, liar: Liar, writer: PlainWriter, tmp_path: Path) -> None:
    bell = os.pipe()
    unsealed = os.open(tmp_path / "ring", os.O_RDWR | os.O_CREAT)
    os.write(unsealed, writer.mapping[:])
    liar.answers = [OPENED]
    for fds in ([], [writer.fd], [writer.fd, *bell], [bell[0], writer.fd], [unsealed, bell[0]]):
        liar.fds = fds
        refused = opened(stream, "ev")
        assert refused.endswith("the daemon sent no stream ring") == (fds != [writer.fd, *bell])
    for offset, value in ((0, 1), (4, 2), (8, 0), (12, 1 << 19), (12, 0), (128, 4)):
        kept = writer.mapping[offset : offset + 4]
        writer.mapping[offset : offset + 4] = struct.pack("<I", value)
        liar.fds = [writer.fd, bell[0]]
        assert opened(stream, "ev").endswith("the daemon sent no stream ring")
        writer.mapping[offset : offset + 4] = kept
    for fd in (*bell, unsealed):
        os.close(fd)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 150),
            st.sampled_from([0, 1, 4, 7, 8, 24, 32, 255, 4096, 65535, 2**31, 2**32 - 8, 2**32 - 1]),
        ),
        max_size=3,
    ),
    st.sampled_from([0, 8, 1, 1 << 18, (1 << 18) + 8, 1 << 63, 2**64 - 8]),
)
def test_no_content_does_harm(stream: Program, liar: Liar, changes: list[tuple[int, int]], more: int) -> None:
    """Words of a sound ring are overwritten: every record can still be read to its end."""
    writer = PlainWriter()
    writer.describe(9, b"ev u32 a; __rel_loc char[] s")
    writer.comm(8, b"x" * 16)
    for number in range(4):
        writer.record(9, struct.pack("<IHH3s", number, 0, 3, b"ab\0"))
    writer.lost(9, 5)
    for word, value in changes:
        struct.pack_into("<I", writer.mapping, 4096 + 4 * word, value)
    writer.head = (writer.head + more) % 2**64
    writer.publish(lost=5)
    end, bell = os.pipe()
    os.close(bell)
    liar.answers, liar.fds = [OPENED], [writer.fd, end]
    assert opened(stream, "ev", "-", "-", "-", "-", "ends") == "0"
    found = stream.ask("count 100")
    assert found.endswith(("the daemon has ended", "is broken", "not described", "Protocol error"))
    if not changes and not more:
        assert found.startswith("ev=4+5 restarts=0")
    os.close(end)
    writer.close()
