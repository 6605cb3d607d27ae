"""Records of programs in C: their values, their numbers, and what signal handlers and threads do to them."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.c.building import SOURCE
from tests.client.c.conftest import Run
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess
from tests.integration.test_conservation import stats

WAYS = pytest.mark.parametrize("way", ["ring", "socket"])


def lines(daemon: DaemonProcess, event: str) -> list[str]:
    """The text after the event's name in each line of `trace`."""
    with daemon.tree() as tree:
        text = tree.read_file("trace").decode(errors="surrogateescape")
    return re.findall(rf" {event}:(.*)$", text, re.MULTILINE)


def numbers(daemon: DaemonProcess, way: str = "ring") -> tuple[int, int]:
    """Numbers of the records of c_count that were taken, and of the records lost on the way; together they
    are all."""
    with daemon.tree() as tree:
        emitted, consumers = stats(tree.read_file("events/user_events/c_count/stats"))
    ftrace = consumers["ftrace"]
    assert emitted == sum(ftrace.values())
    return ftrace["recorded"], ftrace["lost"]


def of_way(way: str) -> dict[str, str]:
    return {"UTRACEFS_DATA_RING": "0"} if way == "socket" else {}


@WAYS
@pytest.mark.usefixtures("events_on")
def test_every_kind_of_field(daemon: DaemonProcess, run: Run, way: str) -> None:
    assert run("basic", **of_way(way)) == "enabled 1 lost 0 refused 0 error 0\n"
    assert lines(daemon, "c_request") == [
        " status=0xc8 (200) bytes=0x72a (1834) path=/x",
        " status=0x194 (404) bytes=0x0 (0) path=",
    ]
    (kinds,) = lines(daemon, "c_kinds")
    assert re.sub(r"'.*?'", "'?'", kinds) == (
        " a='?'(255) b='?'(255) c=0xffff (65535) d=0xfffe (65534) e=0xee6b2800 (-294967296)"
        " f=0xfffffffd (-3) g=0xffffffffffffffff (-1) h=0x8000000000000000 (-9223372036854775808)"
        " comm=much to where=0x100007f (16777343) raw=01,02,03 text=text"
        " real=-0.0 single=1.5 flag=(1) few=[1,-2,3] flags=[true,false] reals=[0.1,-0.0]"
    )
    assert len(lines(daemon, "c_plain")) == 1


@WAYS
@pytest.mark.usefixtures("events_on")
def test_a_text_that_is_too_long_is_refused(daemon: DaemonProcess, run: Run, way: str) -> None:
    assert run("emitting", "long", **of_way(way)) == "lost 0 refused 2\n"
    with daemon.tree() as tree:
        told = tree.read_file("events/user_events/c_long/stats").decode()
    assert told.startswith("emitted: 1\nbytes: 65529\nrefused: 2 payload was too long\n")


@pytest.mark.usefixtures("events_on")
def test_a_line_has_the_thread_that_wrote_it(daemon: DaemonProcess, run: Run) -> None:
    run("emitting", "threads", 3, 2)
    with daemon.tree() as tree:
        text = tree.read_file("trace").decode()
    found = re.findall(r"^ +emitting-(\d+) .*c_count: who=0x(\d) ", text, re.MULTILINE)
    assert sorted(who for _, who in found) == ["0", "0", "1", "1", "2", "2"]
    assert len(set(found)) == 3 and len({tid for tid, _ in found}) == 3


@WAYS
@pytest.mark.usefixtures("events_on")
def test_none_is_lost_that_is_not_counted(daemon: DaemonProcess, run: Run, way: str) -> None:
    printed = run("emitting", "threads", 4, 50_000, **of_way(way))
    recorded, lost = numbers(daemon)
    told = int(printed.removeprefix("lost "))
    assert recorded + told == 200_000
    if way == "ring":
        assert lost == told


@WAYS
@pytest.mark.usefixtures("events_on")
def test_a_signal_handler_emits_in_the_middle_of_an_emit(daemon: DaemonProcess, run: Run, way: str) -> None:
    printed = run("emitting", "signals", 300_000, **of_way(way))
    handled, told = map(int, re.findall(r"\d+", printed))
    assert handled > 0
    assert numbers(daemon)[0] + told == 300_000 + handled


@WAYS
@pytest.mark.parametrize("count", [3, 20_000, 200_000])
@pytest.mark.usefixtures("events_on")
def test_a_daemon_that_reads_nothing_until_the_end_counts_all(
    daemon: DaemonProcess, run: Run, way: str, count: int
) -> None:
    """A program waits half a second at most. Then it reports the records that the socket did not take."""
    pid = daemon.pid
    try:
        printed = run("emitting", "unread", pid, count, **of_way(way))
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: sum(numbers(daemon)) == 1 + count, timeout_s=60)
    recorded, lost = numbers(daemon)
    told = int(printed.removeprefix("lost "))
    assert recorded > 1 and lost >= told
    assert lost == told or way == "socket"


@WAYS
@pytest.mark.usefixtures("events_on")
def test_a_thread_that_is_cancelled_leaves_the_others_alone(
    daemon: DaemonProcess, run: Run, way: str
) -> None:
    assert run("emitting", "cancel", **of_way(way)) == "flush 0\n"
    assert " who=0x4 (4) i=0x4 (4)" in lines(daemon, "c_count")


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        ("c_dynamic u32 a", 0, ""),
        ("c_dynamic long a", 22, "type"),
        ("c_dynamic:flag u32 a", 22, ""),
        ("c_short u64 a", 0, ""),
    ],
)
@pytest.mark.usefixtures("events_on")
def test_an_event_that_is_declared_by_text(
    daemon: DaemonProcess, run: Run, command: str, error: int, text: str
) -> None:
    same, emitted, found, why = run("emitting", "dynamic", command).split(" ", 3)
    assert (same, int(found)) == ("1", error) and text in why
    # A payload that is too short is refused at once; nobody wants an event that is refused.
    assert int(emitted) == (1 if error else -22 if "u64" in command else 0)


DECLARE_MANY = """
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
commands = [b"c_many_%d u32 a" % i for i in range(int(sys.argv[2]))]
begin = time.process_time()
for command in commands:
    library.utracefs_declare(command, 0)
library.utracefs_flush(60_000)
print(time.process_time() - begin)
"""


@pytest.mark.parametrize("with_daemon", [False, True])
def test_the_time_of_a_registration_does_not_grow_with_their_number(
    request: pytest.FixtureRequest, directory: Path, built: Path, with_daemon: bool
) -> None:
    if with_daemon:
        request.getfixturevalue("daemon")

    def time_of(count: int) -> float:
        words = [sys.executable, "-c", DECLARE_MANY, str(built / "libutracefs.so"), str(count)]
        return float(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)

    few = many = math.inf
    for _ in range(6):  # (beside others one may take several times as long)
        few, many = min(few, time_of(8_000)), min(many, time_of(32_000))
        if many < 8 * few:
            return
    raise AssertionError((few, many))


def test_there_is_no_daemon(directory: Path, run: Run) -> None:
    assert run("basic", 1_000_000) == "enabled 0 lost 0 refused 0 error 107\n"


def test_no_consumer_is_attached(daemon: DaemonProcess, run: Run) -> None:
    assert run("basic", 1_000_000) == "enabled 0 lost 0 refused 0 error 0\n"


FIELDS_25 = ", ".join(f"(u8, f{i})" for i in range(25))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ("(int, n)", "no type of a field, or not its number of parts; see the table in utracefs.h: (int, n)"),
        ("(const char *, s), (u32, n)", "utracefs.h: (const char *, s)"),
        ("(u8, a, b)", "utracefs.h: (u8, a, b)"),
        ("(double, a, b)", "utracefs.h: (double, a, b)"),
        ("(string, a, 8)", "utracefs.h: (string, a, 8)"),
        ("(bytes, a, 8)", "utracefs.h: (bytes, a, 8)"),
        ("(chars, a)", "utracefs.h: (chars, a)"),
        ("(structure, a, s)", "utracefs.h: (structure, a, s)"),
        ("(array, a, u8, 4)", "utracefs.h: (array, a, u8, 4)"),
        ("(u32)", "a field has a name: (u32, name)"),
        ("u32 n", "this is no field: u32 n"),
        ("", "UTRACEFS_EVENT_PLAIN none; this is no field: "),
        (FIELDS_25, "at most 24"),
        (f"(u8, {'n' * 510})", "the declaration of e has more than 511 bytes"),
    ],
)
def test_mistakes_in_a_declaration(fields: str, text: str) -> None:
    assert text in mistake(f"UTRACEFS_EVENT(e, {fields});")


def test_mistakes_in_a_declaration_of_spans() -> None:
    text = "the declaration of e_begin has more than 511 bytes"
    assert text in mistake(f"UTRACEFS_SPANS(e, (u8, {'n' * 510}));")
    assert "this is no field: u32 n" in mistake("UTRACEFS_SPANS(e, u32 n);")


def mistake(declaration: str) -> str:
    done = subprocess.run(
        ["gcc", "-fsyntax-only", f"-I{SOURCE / 'include'}", "-x", "c", "-"],
        input=f"#include <utracefs.h>\n{declaration}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    first = next(line for line in done.stderr.splitlines() if "error: " in line)
    assert done.returncode == 1 and "static assertion failed" in first
    return first
