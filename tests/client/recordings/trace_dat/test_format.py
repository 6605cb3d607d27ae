"""The tables of the format: ids and sizes as trace-cmd.dat.v7(5) has them, values and back."""

import struct

import pytest

import utracefs.recordings.trace_dat.format as layout
from utracefs.recordings.trace_dat.format import clock_in_use

SECTION_IDS = {
    0: b"options",
    3: b"buffer flyrecord",
    15: b"strings",
    16: b"headers",
    17: b"ftrace events",
    18: b"events format",
    19: b"kallsyms",
    20: b"printk",
    21: b"command lines",
}


def test_sections() -> None:
    assert {section.id: section.name for section in layout.SECTIONS} == SECTION_IDS
    assert len(layout.SECTIONS) == len(SECTION_IDS)
    assert sorted(layout.SECTIONS_BY_OPTION) == list(range(16, 22))


@pytest.mark.parametrize(
    ("row", "size"),
    [
        (layout.SECTION_HEADER, 16),
        (layout.OPTION_HEADER, 6),
        (layout.OPTION_ID, 2),
        (layout.EXTENT, 16),
        (layout.CPU_EXTENT, 20),
    ],
)
def test_sizes(row: struct.Struct, size: int) -> None:
    assert row.size == size


def test_marks_of_version_6_have_one_size() -> None:
    assert len(layout.KIND_OPTIONS) == len(layout.KIND_FLYRECORD) == layout.KIND_SIZE


def test_option_ids() -> None:
    options = [value for name, value in vars(layout).items() if isinstance(value, layout.Option)]
    assert sorted(option.id for option in options) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 11]


@pytest.mark.parametrize(
    ("option", "value", "data"),
    [
        (layout.OPTION_TRACECLOCK, b"[mono]", b"[mono]\0"),
        (layout.OPTION_UNAME, b"", b"\0"),
        (layout.OPTION_OFFSET, -5, b"-5\0"),
        (layout.OPTION_CPUCOUNT, 258, b"\2\1\0\0"),
        (layout.OPTION_TRACEID, 258, b"\2\1\0\0\0\0\0\0"),
        (layout.OPTION_BUFFER, b"any\0bytes\0", b"any\0bytes\0"),
        (layout.section_option(layout.PRINTK), 4096, b"\0\x10\0\0\0\0\0\0"),
    ],
)
def test_options_there_and_back(option: layout.Option[object], value: object, data: bytes) -> None:
    assert option.pack(value) == (option.id, data)
    assert option.type.decode(data) == value


def test_a_number_may_be_hexadecimal() -> None:
    """The base is in the text, as for strtoll(3) with base 0."""
    assert layout.OPTION_OFFSET.type.decode(b"0x10\0") == 16


@pytest.mark.parametrize(
    ("option", "data"), [(layout.OPTION_OFFSET, b"soon\0"), (layout.OPTION_CPUCOUNT, b"\1\0")]
)
def test_data_of_another_type(option: layout.Option[int], data: bytes) -> None:
    with pytest.raises((struct.error, ValueError)):
        option.type.decode(data)


@pytest.mark.parametrize(
    ("text", "clock"),
    [(b"local [mono] boot\n", "mono"), (b"[x86-tsc]", "x86-tsc"), (b"mono\n", "mono"), (b"", "")],
)
def test_the_clock_in_use(text: bytes, clock: str) -> None:
    assert clock_in_use(text) == clock


@pytest.mark.parametrize("size", [0, 23, (1 << 27) + 1])
def test_page_sizes_that_are_refused(size: int) -> None:
    layout.check_page_size(4096)
    with pytest.raises(ValueError, match="page size"):
        layout.check_page_size(size)
