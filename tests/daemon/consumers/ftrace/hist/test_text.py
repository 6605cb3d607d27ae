"""Texts; whole files are compared with a kernel's by tests/conformance (20_hist_keys)."""

from __future__ import annotations

import math

import pytest

from tests.daemon.consumers.ftrace.histograms import EVENT, defined, hist_of, text_of
from tests.protocol.events.plain_layout import Layout
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.hist.errors import HistError
from utracefsd.consumers.ftrace.hist._hist import Entries
from utracefsd.consumers.ftrace.hist.text import hist_pieces, syscall_name

PACK = Layout(EVENT.fields).pack


def payload(
    id: int = 1,
    sv: int = -5,
    big: int = 1000,
    name: bytes = b"alpha",
    msg: bytes = b"read",
    small: int = 1,
    sz: int = 10,
) -> bytes:
    return PACK(id, sv, big, name, msg, small, sz)


def lines(text: bytes, *payloads: bytes) -> list[bytes]:
    """The entries of a histogram of these records."""
    definition = defined(text)
    hist = hist_of(definition)
    for one in payloads:
        hist.count(one, pid=54, cpu=1)
    return entry_lines(text_of(definition, hist))


def test_floats_as_keys() -> None:
    event = parse(b"h struct double d 8; struct float f 4; struct bool b 1")
    hist = hist_of(definition := defined(b"keys=d,f,b", event))
    hist.count(Layout(event.fields).pack(-1.5, math.nan, True), pid=54, cpu=1)
    keys = b"{ d:       -1.5, f:        nan, b:          1 } hitcount:          1"
    assert entry_lines(text_of(definition, hist)) == [keys]
    with pytest.raises(HistError, match="Float type"):
        defined(b"keys=f:vals=d", event)


def test_a_text_cannot_look_like_entries() -> None:
    event = parse(b"h __rel_loc char[] path; u32 n")
    hist = hist_of(definition := defined(b"keys=path,n", event))
    head = "# event histogram\n#\n# trigger info: hist:keys=n [active]\n#\n\n"
    forged = f"/\n\nTotals:\n    Hits: 9\n{head}{{ n: 5 }} hitcount: 7"
    hist.count(Layout(event.fields).pack(forged, 1), pid=54, cpu=1)
    text = text_of(definition, hist)
    (line,) = entry_lines(text)
    assert line.startswith(b"{ path: /\\x0a\\x0aTotals:\\x0a") and line.endswith(
        b"n:          1 } hitcount:          1"
    )
    assert text.count(b"\n# trigger info") == text.count(b"\nTotals:") == 1


def entry_lines(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if line.startswith((b"{", b"}", b" {"))]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"keys=id.symXoffset", b"{ id: [1] 0x1%s } hitcount:          1" % (b" " * 52)),
        (b"keys=big.buckets=300", b"{ big: ~ 900-1199 } hitcount:          1"),
        (b"keys=sv.buckets=2", b"{ sv: ~ 18446744073709551610-18446744073709551611 } hitcount:          1"),
        (b"keys=7", b"{ :          7 } hitcount:          1"),
        (
            b"keys=id,name",
            b"{ id:          1, name: alpha%s } hitcount:          1" % (b" " * 45),
        ),
        (
            b"keys=id:vals=sz,big.hex",
            b"{ id:          1 } hitcount:          1  sz:         10  big:        3e8",
        ),
        (b"keys=id:vals=sz:nohitcount", b"{ id:          1 }  sz:         10"),
        (b"keys=id:vals=sz+1,small", b"{ id:          1 } hitcount:          1  small:          1"),
        (b"keys=id:vals=sz.percent", b"{ id:          1 } hitcount:          1  sz (%): 100.00"),
        (b"keys=id:vals=sz.graph", b"{ id:          1 } hitcount:          1  sz: ####################"),
    ],
)
def test_entries(text: bytes, line: bytes) -> None:
    assert lines(text, payload()) == [line]


def test_system_calls() -> None:
    definition = defined(b"keys=id.syscall")
    hist = hist_of(definition)
    hist.count(payload(1))
    assert b"[  1] } hitcount:" in text_of(definition, hist)


def test_parts_of_the_whole() -> None:
    payloads = [payload(id=n, sz=10 * n) for n in range(4)]
    assert lines(b"keys=id:vals=sz.percent,sz.graph:sort=id", *payloads) == [
        b"{ id:          0 } hitcount:          1  sz (%%):   0.00  sz: %s" % (b" " * 20),
        b"{ id:          1 } hitcount:          1  sz (%%):  16.66  sz: ######%s" % (b" " * 14),
        b"{ id:          2 } hitcount:          1  sz (%%):  33.33  sz: #############%s" % (b" " * 7),
        b"{ id:          3 } hitcount:          1  sz (%):  50.00  sz: ####################",
    ]
    assert lines(b"keys=id:vals=big.percent", payload(big=1 << 63), payload(id=2, big=1 << 63)) == [
        b"{ id:          1 } hitcount:          1  big (%):[ERROR]",
        b"{ id:          2 } hitcount:          1  big (%):[ERROR]",
    ]


def test_an_empty_table() -> None:
    definition = defined(b"keys=id")
    assert text_of(definition, hist_of(definition)) == (
        b"# event histogram\n#\n"
        b"# trigger info: hist:keys=id:vals=hitcount:sort=hitcount:size=2048 [active]\n#\n\n"
        b"\nTotals:\n    Hits: 0\n    Entries: 0\n    Dropped: 0\n"
    )


def test_stacks_have_no_frames() -> None:
    definition = defined(b"keys=common_stacktrace,id")
    hist = hist_of(definition)
    hist.count(payload())
    assert b"{ common_stacktrace:\n, id:          1} hitcount:          1\n" in text_of(definition, hist)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (b"keys=sv", [5, 0, -3, 7]),
        (b"keys=sv:sort=sv", [-3, 0, 5, 7]),
        (b"keys=sv:sort=sv.descending", [7, 5, 0, -3]),
        (b"keys=sv:vals=sv:sort=sv", [0, 5, 7, -3]),
        (b"keys=sv:vals=sz:sort=sz.descending,sv", [0, 7, -3, 5]),
    ],
)
def test_sorting(text: bytes, order: list[int]) -> None:
    """A value's name comes before a key's: sums are compared unsigned."""
    definition = defined(text)
    hist = hist_of(definition)
    for n, (sv, sz, times) in enumerate([(-3, 1, 3), (7, 2, 4), (0, 8, 2), (5, 3, 1)]):
        hist.count(payload(id=n, sv=sv, sz=sz), times=times)
    found = [line.split(b"sv:")[1].split()[0] for line in entry_lines(text_of(definition, hist))]
    assert [int(number) for number in found] == [n % (1 << 64) for n in order]


def test_strings_are_sorted_by_their_bytes() -> None:
    found = lines(b"keys=name:sort=name", *(payload(name=name) for name in (b"b", b"ab", b"", b"\xff", b"a")))
    assert [line.split()[2] for line in found] == [b"}", b"a", b"ab", b"b", b"\xff"]


def test_what_actions_add() -> None:
    definition = defined(b"keys=id")
    hist = hist_of(definition)
    hist.count(payload())
    *_, entries, end = hist_pieces(
        definition,
        Entries(hist.table),
        b"LINE\n",
        lambda pid: b"",
        more=lambda entry: b"\n\tmax: 1",
        below=b"BELOW\n",
    )
    text = b"#\n\n" + entries + end
    assert text.endswith(
        b"#\n\n{ id:          1 } hitcount:          1\n\tmax: 1\nBELOW\n"
        b"\nTotals:\n    Hits: 1\n    Entries: 1\n    Dropped: 0\n"
    )


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, b"sys_read"),
        (1, b"sys_write"),
        (4, b"sys_newstat"),
        (10, b"sys_mprotect"),
        (166, b"sys_umount"),
        (334, b"sys_rseq"),
        (424, b"sys_pidfd_send_signal"),
        (435, b"sys_clone3"),
        (462, b"sys_mseal"),
        (335, b"unknown_syscall"),
        (156, b"unknown_syscall"),
        ((1 << 64) - 1, b"unknown_syscall"),
    ],
)
def test_x86_64(number: int, name: bytes) -> None:
    assert syscall_name(number, "x86_64") == name


def test_elsewhere() -> None:
    assert syscall_name(1, "aarch64") == b"unknown_syscall"
