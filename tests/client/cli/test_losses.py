"""Losses in words, and the losses that a file reports."""

import fcntl
import os
import time

import pytest

from utracefs.cli.common import EventStats
from utracefs.cli.losses import (
    IN_DATA_RINGS,
    LOSSES,
    OF_ALL,
    TOO_LARGE,
    TOO_LARGE_IN_RING_BUFFER,
    Losing,
    all_lost,
    lost_in_file,
    lost_lines,
    lost_text,
    refused_text,
    share,
)


def test_what_is_written_is_what_is_read() -> None:
    lost = {loss.name: number for number, loss in enumerate(LOSSES)}
    assert lost_in_file(["CPU: 0\nentries: 7\n", lost_lines(lost).decode()]) == lost
    assert lost_in_file(["CPU: 0\nentries: 7\n"]) == {}


def test_in_words() -> None:
    assert lost_text({}) == lost_text({"no_room": 0}) == "nothing lost"
    assert lost_text({"dropped": 1, "no_room": 2}) == (
        "3 lost: 1 dropped by the full buffer (-b KB), 2 without room on the disk"
    )


def test_refused_in_words() -> None:
    assert refused_text({}) == ""
    assert refused_text({"a.n was float": 3}) == ", 3 refused: a.n was float"
    many = {f"a.n{number} was None": number for number in range(1, 6)}
    assert refused_text(many) == (
        ", 15 refused: 5 a.n5 was None, 4 a.n4 was None, 3 a.n3 was None and 2 other reasons"
    )


def test_shares() -> None:
    shares = [share(*pair) for pair in ((0, 0), (0, 9), (1, 3), (1, 10**9), (10**9 - 1, 10**9), (5, 5))]
    assert shares == ["0 %", "0 %", "33.3 %", "0.01 %", "99.9 %", "100 %"]


def test_all_consumers_and_instances() -> None:
    consumers = {
        "ftrace": {"recorded": 50, "filtered": 7, "lost": 10},
        "stream:1": {"recorded": 40, "filtered": 0, "lost": 20},
        "counts:1": {"recorded": 50, "filtered": 0, "lost": 10},
    }
    stats = EventStats(60, 10, consumers, refused={"a was float": 3})
    full = {"entries": 5, "overrun": 40, "read events": 5}
    lost, of = all_lost([stats], {"": full, "flight-1": full})
    assert lost == {"in_rings": 20, "full": 10, "overwritten": 40, "refused": 3}
    assert of == 3 + 10 + 60 + 2 * 50
    # Nobody has read it, so it keeps the latest records.
    assert all_lost([], {"": {**full, "read events": 0}})[0]["overwritten"] == 0
    since = {"": {"entries": 5, "overrun": 30, "read events": 5}}
    assert (all_lost([], {"": full}, since)[0]["overwritten"], all_lost([], {"": full}, since)[1]) == (10, 10)
    assert lost_text(lost, of, kinds=OF_ALL).startswith("73 lost: 20 in data rings (")
    assert lost_text(lost, of, kinds=OF_ALL).endswith("; that is 42.2 %")


def test_a_line_a_second_while_records_are_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    losing = Losing("x.dat", IN_DATA_RINGS, ("for the disk", "it is full"))
    for step_s, emitted, in_rings, on_disk in (
        (0.5, 10, 5, 0),  # too early
        (1.5, 1000, 10, 90),
        (1.0, 2000, 10, 90),  # nothing new
        (1.0, 0, 0, 0),  # another daemon
        (1.0, 5, 20, 0),  # more than emitted: its numbers are of different moments
    ):
        now += step_s
        losing.look(emitted, {"in data rings": in_rings, "for the disk": on_disk})
    advice = "fewer events, or a filter, lose less"
    assert capsys.readouterr().err.splitlines() == [
        f"utracefs: x.dat: losing 10.0% of 500 records/s, most for the disk: it is full; {advice}",
        f"utracefs: x.dat: losing 100.0% of 20 records/s, most in data rings: {IN_DATA_RINGS[1]}; {advice}",
    ]


def test_no_smaller_number_of_records_helps_with_large_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    losing = Losing("x.dat", IN_DATA_RINGS, TOO_LARGE_IN_RING_BUFFER)
    now = 1.0
    losing.look(10, {"in data rings": 1, TOO_LARGE: 4})
    remedy = "a larger buffer_subbuf_size_kb (--subbuf-size) holds them"
    line = f"utracefs: x.dat: losing 50.0% of 10 records/s, most too large for a page: {remedy}\n"
    assert capsys.readouterr().err == line


def test_a_full_standard_error_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)))
    stderr = os.dup(2)
    losing = Losing("x.dat", IN_DATA_RINGS)
    now = 1.0
    os.dup2(writer, 2)
    losing.look(9, {"in data rings": 5})
    os.dup2(stderr, 2)
    for fd in (stderr, writer, reader):
        os.close(fd)
    assert capsys.readouterr().err == ""
