"""Pages: the worked example of a real reader, everything in the kernel's layout, and hostile pages."""

import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pages import subbuf_model
from tests.protocol.pages.page_writer import MISSED_UNKNOWN, Page, PageRecord, PageWriter, decode_page
from utracefs_protocol.pages._subbuf import commit_of, iter_records, missed_events
from utracefs_protocol.pages.subbuf import (
    HEADER_EVENT_TEXT,
    header_page_text,
    join_pages,
    last_ts,
    with_missed,
    without_missed,
)

# A page that trace-cmd, KernelShark and libtraceevent were seen to read: three records and a time extend.
RECORDS = [
    (100_000_000_001, bytes.fromhex("d1070000 0b000000 07000000")),
    (
        100_000_000_351,
        bytes.fromhex("d2070000 0c000000 0c000400 dc05000000000000 feffffff 47657400"),
    ),
    (101_000_000_000, bytes.fromhex("d1070000 0b000000 08000000")),
]
CPU0 = bytes.fromhex(
    "01e8764817000000 4800000000000000"
    "03000000 d1070000 0b000000 07000000"
    "c72b0000 d2070000 0c000000 0c000400 dc05000000000000 feffffff 47657400"
    "3e145973 07000000"
    "03000000 d1070000 0b000000 08000000"
).ljust(4096, b"\0")
CPU1 = bytes.fromhex(
    "004d446617000000 2400000000000000 08000000 d3070000 0b000000" + b"0123456789abcdef".hex() + b"t1".hex()
).ljust(4096, b"\0")


def header(commit: int, timestamp: int = 1000) -> bytes:
    return struct.pack("<QQ", timestamp, commit)


def page_of(*words: int | bytes, timestamp: int = 1000, flags: int = 0) -> bytes:
    body = b"".join(word if isinstance(word, bytes) else struct.pack("<I", word) for word in words)
    return header(len(body) | flags, timestamp) + body


def record(type_len: int, delta: int) -> int:
    return delta << 5 | type_len


def test_worked_example_read() -> None:
    assert decode_page(CPU0) == Page(100_000_000_001, 72, 0, [PageRecord(*row) for row in RECORDS])
    (blob,) = decode_page(CPU1).records
    assert blob == PageRecord(
        100_500_000_000, bytes.fromhex("d3070000 0b000000") + b"0123456789abcdeft1\0\0\0\0\0\0"
    )
    for ts, offset, length in iter_records(memoryview(CPU0)):
        assert (ts, CPU0[offset : offset + length]) in RECORDS


def test_empty_pages() -> None:
    assert decode_page(header(0)) == Page(1000, 0, 0, [])
    assert decode_page(PageWriter().page()) == Page(0, 0, 0, [])
    assert PageWriter(timestamp=5).page() == header(0, 5).ljust(4096, b"\0")


def test_missed_events() -> None:
    writer = PageWriter(64)
    writer.add(1, bytes(28))
    page = writer.page(1234)
    assert struct.unpack_from("<Q", page, 8) == (32 | 1 << 31 | 1 << 30,)
    assert struct.unpack_from("<Q", page, 16 + 32) == (1234,)
    assert missed_events(page) == decode_page(page).missed_events == 1234
    assert missed_events(writer.page(MISSED_UNKNOWN)) == MISSED_UNKNOWN
    writer.add(1, bytes(12))  # no room for the number any more
    page = writer.page(1234)
    assert struct.unpack_from("<Q", page, 8) == (48 | 1 << 31,)
    assert missed_events(page) == MISSED_UNKNOWN
    assert len(decode_page(page).records) == 2


def test_commit_word_of_the_kernel() -> None:
    """It is sign-extended there; unused bits are ignored."""
    page = struct.pack("<QQ", 1, 0xFFFFFFFF_C0000008) + struct.pack("<II", 1, 7) + struct.pack("<Q", 5)
    assert decode_page(page) == Page(1, 8, 5, [PageRecord(1, struct.pack("<I", 7))])
    assert missed_events(page_of(1, 7, flags=1 << 28 | 1 << 40 | 1 << 30)) == 0


def test_absolute_stamp_keeps_the_upper_bits() -> None:
    base = (1 << 60) + 100
    page = page_of(record(31, 200), 0, record(1, 0), b"abcd", timestamp=base)
    assert decode_page(page).records == [PageRecord((1 << 60) + 200, b"abcd")]
    page = page_of(record(31, 50), 0, record(1, 0), b"abcd", timestamp=base)
    assert decode_page(page).records == [PageRecord((1 << 60) + (1 << 59) + 50, b"abcd")]


def test_padding() -> None:
    page = page_of(record(1, 1), b"abcd", record(29, 2), 8, b"junk", record(1, 3), b"efgh")
    assert decode_page(page).records == [PageRecord(1001, b"abcd"), PageRecord(1006, b"efgh")]
    page = page_of(record(1, 1), b"abcd", record(29, 0), record(1, 3), b"efgh")
    assert decode_page(page).records == [PageRecord(1001, b"abcd")]
    assert decode_page(page_of(record(29, 0))).records == []


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (b"", "its header alone"),
        (bytes(15), "its header alone"),
        (header(1), "says that it holds 1 bytes"),
        (header(0x7FFFFFF), "says that it holds"),
        (page_of(record(2, 0), b"abcd"), "has 8 bytes of data"),
        (page_of(record(28, 0)), "has 112 bytes"),
        (page_of(record(0, 0), 3, b"abcd"), "has -1 bytes"),
        (page_of(record(0, 0), 0), "has -4 bytes"),
        (page_of(record(0, 0), 0xFFFFFFFF), "bytes of data"),
        (page_of(record(0, 0)), "cut off"),
        (page_of(record(30, 0)), "cut off"),
        (page_of(record(29, 1)), "cut off"),
        (page_of(b"ab"), "cut off"),
    ],
)
def test_broken_pages(page: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_page(page)


def test_records_before_a_broken_one_are_handed_out() -> None:
    records = iter_records(page_of(record(1, 1), b"abcd", record(28, 0)))
    assert next(records) == (1001, 20, 4)
    with pytest.raises(ValueError, match="112"):
        next(records)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_page_or_refused(body: bytes) -> None:
    try:
        page = decode_page(header(len(body)) + body)
    except ValueError:
        return
    assert sum(len(row.data) for row in page.records) <= len(body)


WORDS = st.builds(
    record, st.integers(0, 31), st.sampled_from([0, 1, 5, 2**27 - 1]) | st.integers(0, 2**27 - 1)
)


@given(
    st.lists(WORDS | st.integers(0, 40) | st.integers(0, 2**32 - 1) | st.binary(max_size=9), max_size=30),
    st.sampled_from([0, 1000, 2**59 - 5, 2**64 - 1]) | st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1 << 31, 3 << 30]),
    st.binary(max_size=12),
    st.integers(-9, 3),
)
def test_any_page_reads_as_in_the_model(
    words: list[int | bytes], timestamp: int, flags: int, behind: bytes, more: int
) -> None:
    page = bytearray(page_of(*words, timestamp=timestamp, flags=flags) + behind)
    commit = max(struct.unpack_from("<I", page, 8)[0] + more, 0)
    struct.pack_into("<I", page, 8, commit)
    expected: list[object] = []
    got: list[object] = []
    for found, read, lost in (
        (expected, subbuf_model.records, subbuf_model.missed_events),
        (got, iter_records, missed_events),
    ):
        try:
            found.append(lost(bytes(page)))
            found.extend(read(bytes(page)))
        except ValueError:
            found.append("broken")
    assert got == expected


def test_header_texts() -> None:
    assert header_page_text() == (
        b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
        b"\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
        b"\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
        b"\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n"
    )
    assert len(header_page_text()) == 205
    assert b"size:8176;" in header_page_text(8192)
    assert HEADER_EVENT_TEXT.startswith(b"# compressed entry header\n\ttype_len    :    5 bits\n")
    assert HEADER_EVENT_TEXT.endswith(
        b"\n\n\tpadding     : type == 29\n\ttime_extend : type == 30\n"
        b"\ttime_stamp : type == 31\n\tdata max type_len  == 28\n"
    )


def written(start: int, count: int, *, missed: int = 0, size: int = 4096) -> bytes:
    writer = PageWriter(size)
    for number in range(count):
        assert writer.add(start + number, b"%04d" % number)
    return writer.page(missed)


@pytest.mark.parametrize("gap", [0, 1, (1 << 27) - 1, 1 << 27, (1 << 59) - 1])
@pytest.mark.parametrize("missed", [0, 7, MISSED_UNKNOWN])
def test_joined_pages_read_as_one(gap: int, missed: int) -> None:
    joined = bytearray(written(100, 3, missed=missed))
    second = written(102 + gap, 5)
    assert join_pages(joined, last_ts(joined), second)
    assert len(joined) == 4096
    page = decode_page(joined)
    assert page.records == decode_page(written(100, 3)).records + decode_page(second).records
    assert (page.timestamp, page.missed_events) == (100, missed)
    assert last_ts(joined) == last_ts(second) == 106 + gap
    assert commit_of(joined) == page.commit == 3 * 8 + 8 + 5 * 8


def test_pages_that_are_not_joined() -> None:
    first = written(100, 300)
    for second in (
        written(500, 210),  # 300 * 8 + 8 + 209 * 8 are all of 4080 bytes
        written(398, 1),  # begins before the last record of the first
        written(399 + (1 << 59), 1),
        written(500, 1, missed=3),
    ):
        joined = bytearray(first)
        assert not join_pages(joined, last_ts(joined), second)
        assert joined == first
    assert join_pages(bytearray(first), last_ts(first), written(500, 209))
    counted = bytearray(written(100, 300, missed=3))
    assert not join_pages(counted, last_ts(counted), written(500, 209)), "the lost count needs 8 bytes"
    assert join_pages(counted, last_ts(counted), written(500, 208))


def test_last_ts_of_an_empty_page() -> None:
    assert last_ts(PageWriter(timestamp=77).page()) == 77


@pytest.mark.parametrize(("before", "more", "told"), [(0, 5, 5), (3, 5, 8), (-1, 5, -1), (3, -1, -1)])
def test_more_that_was_lost_in_front_of_a_page(before: int, more: int, told: int) -> None:
    writer = PageWriter()
    writer.add(100, b"one")
    page = with_missed(writer.page(before), more)
    assert decode_page(page) == attrs.evolve(decode_page(writer.page()), missed_events=told)
    assert without_missed(page) == writer.page()
    while writer.add(100, bytes(1)):
        pass
    assert writer.room >= 8 or missed_events(with_missed(writer.page(), more)) == MISSED_UNKNOWN
