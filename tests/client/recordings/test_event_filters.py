"""Filters of recordings beside the plain meaning of their text, and the same text in a daemon."""

import struct
from pathlib import Path

import pytest

import utracefs
from tests.client.export.example import EVENTS, write
from tests.client.recordings.trace_dat import example
from utracefs.recordings.report import report_text
from utracefs_protocol.filter import FilterError
from utracefs_protocol.filter.parse import FIELD_NOT_FOUND, INVALID_OPERATOR, MISSING_QUOTE


def numbers(path: Path, text: str, **more: object) -> list[tuple[str, int]]:
    """Name and time of the records that pass, read in each of the ways that there are."""
    with utracefs.open(path, filter=text, **more) as recording:  # type: ignore[arg-type]
        found = [(r.name, r.time_ns) for r in recording]
        batches = sum(batch.rows for batch in recording.batches())
    assert batches == len(found)
    if not more and recording.format == "trace.dat":
        with utracefs.open(path, filter=text) as recording:
            report = b"".join(report_text(recording)).replace(b"\r\n", b"").replace(b"\nfeed", b"")
            shown = [line for line in report.splitlines() if b"] " in line and b"DROPPED" not in line]
            assert len(shown) == len(found)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key == 7", [("begin", 1_000_000_351), ("done", 3_000_000_999)]),
        ("size >= 9223372036854775808", [("begin", 2_000_000_000)]),
        ("h == 18446744073709551615", [("ints", 1)]),
        ("a < 0 || usec > 1000", [("ints", 1)]),  # no event has both
        ("a < 0", [("ints", 1)]),
        ('fixed ~ "*456*" && data == ""', [("text", 16)]),
        ('comm == "alpha" && common_pid == 11', [("ints", 1), ("ints", 2)]),
        ("comm == 'alpha' && cpu == 1", [("ints", 2)]),
        ("cpu == CPUS{1} && key != 7", [("begin", 2_000_000_000)]),
        ("COMM ~ 'gr*'", [("empty", 40), ("done", 3_000_000_999)]),
        ('comm == "<idle>"', [("begin", 1_000_000_351)]),
        ("key == 12345", []),
    ],
)
def test_which_records_pass(tmp_path: Path, text: str, expected: list[tuple[str, int]]) -> None:
    path = write(tmp_path / "t.dat")
    if "||" in text:
        with pytest.raises(FilterError, match="Field not found"):
            utracefs.open(path, filter=text)
        return
    assert numbers(path, text) == expected


def test_the_common_fields_of_a_kernel(tmp_path: Path) -> None:
    """common_flags and common_preempt_count, which are 0 in our own records."""
    event = EVENTS.entry(104, 11, 7, 1)
    flagged = event[:2] + b"\x04\x01" + event[4:]
    formats = {b"user_events": EVENTS.formats()}
    path = example.write(
        tmp_path / "t", [example.pages([(1, event), (2, flagged), (3, event)])], formats=formats
    )
    assert numbers(path, "common_flags & 4 && common_preempt_count == 1") == [("begin", 2)]
    assert numbers(path, "common_flags == 0") == [("begin", 1), ("begin", 3)]


@pytest.mark.parametrize(
    ("text", "message", "shown"),
    [
        ("nosuch == 1", FIELD_NOT_FOUND, "nosuch == 1\n       ^\nparse_error: Field not found\n"),
        ("key => 1", INVALID_OPERATOR, "key => 1\n     ^\nparse_error: Invalid operator\n"),
        ("key == 'x", MISSING_QUOTE, "key == 'x\n       ^\nparse_error: Missing matching quote\n"),
        ("", "", "\nError: (0)\n"),
    ],
)
def test_errors_are_those_of_the_filter_file(tmp_path: Path, text: str, message: str, shown: str) -> None:
    path = write(tmp_path / "t.dat")
    with pytest.raises(FilterError) as error:
        utracefs.open(path, filter=text)
    assert error.value.message == message
    assert error.value.shown(text.encode()) == shown.encode()


def test_a_file_without_events(tmp_path: Path) -> None:
    path = example.write(tmp_path / "t", [[]], formats={})
    assert numbers(path, "any == 1") == []


def test_names_of_threads_are_cut_as_the_kernel_does(tmp_path: Path) -> None:
    entries = [(n, EVENTS.entry(103, tid)) for n, tid in enumerate((5, 6, 7))]
    names = b"5 sixteen-bytes-name\n6 sixteen-byte\n"
    formats = {b"user_events": EVENTS.formats()}
    path = example.write(tmp_path / "t", [example.pages(entries)], formats=formats, cmdlines=names)
    assert numbers(path, 'comm == "sixteen-bytes-n"') == [("empty", 0)]


def test_a_record_without_the_field_does_not_pass(tmp_path: Path) -> None:
    entries = [(1, EVENTS.entry(104, 5, 7, 0)), (2, struct.pack("<HBBi", 104, 0, 0, 5))]
    formats = {b"user_events": EVENTS.formats()}
    path = example.write(tmp_path / "t", [[], [], [], example.pages(entries)], formats=formats)
    assert numbers(path, "key == 7 && cpu == 3") == [("begin", 1)]
    assert numbers(path, "key == 7 && cpu == 2") == []
