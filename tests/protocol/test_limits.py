"""Limits that follow from each other, and second definitions of limits in C headers.

test_protocol_page.py compares the numbers with docs/protocol.md.
"""

import subprocess
from pathlib import Path

import msgpack

from tests.protocol.pages.page_writer import decode_page
from utracefs_protocol import limits

INCLUDE = Path(__file__).parents[2] / "protocol" / "utracefs_protocol" / "include"


def asserted_in_c(*claims: str) -> subprocess.CompletedProcess[str]:
    """The compiler's result for claims about the rings' headers."""
    source = '#include "data_ring.h"\n#include "stream_ring.h"\n' + "".join(
        f'_Static_assert({claim}, "");\n' for claim in claims
    )
    command = ["gcc", "-std=gnu11", f"-I{INCLUDE}", "-fsyntax-only", "-xc", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False)


def test_the_headers_of_the_rings_agree() -> None:
    claims = [
        f"DR_MIN_SIZE == {limits.MIN_DATA_RING}",
        "DR_DEFAULT_SIZE == 16 << 20",
        "DR_MAX_SIZE == 64 << 20",
        f"DR_MAX_PAYLOAD == {limits.MAX_PAYLOAD}",
        f"SS_MIN_SIZE == {limits.MIN_STREAM_RING}",
        f"SS_MAX_SIZE == {limits.MAX_STREAM_RING}",
    ]
    assert asserted_in_c(*claims).stderr == ""
    assert asserted_in_c(f"DR_MAX_PAYLOAD == {limits.MAX_PAYLOAD} + 1").returncode != 0


def test_the_largest_payload_makes_the_largest_object() -> None:
    record = bytes(limits.WRITE_INDEX_SIZE + limits.MAX_PAYLOAD)
    assert len(msgpack.packb(record)) == limits.MAX_DATA_OBJECT


def test_what_ftrace_keeps_is_one_page_less_its_headers() -> None:
    """One event of the largest size fills a page to its last byte: header and length word, then the entry."""
    entry = bytes(limits.MAX_FTRACE_ENTRY)
    commit = 8 + len(entry)
    page = bytes(8) + commit.to_bytes(8, "little") + bytes(4) + (len(entry) + 4).to_bytes(4, "little") + entry
    assert len(page) == limits.SUBBUF_SIZE
    assert [len(record.data) for record in decode_page(page).records] == [limits.MAX_FTRACE_ENTRY]
    assert limits.MAX_FTRACE_PAYLOAD == limits.MAX_FTRACE_ENTRY - limits.ENTRY_HEADER_SIZE == 4064


def test_from_the_narrowest_consumer_to_the_wire() -> None:
    assert limits.MAX_FTRACE_ENTRY < limits.MAX_PERF_ENTRY < limits.MAX_PAYLOAD <= limits.MAX_LOC
    assert limits.MAX_COMMAND_STRING < limits.MAX_DYNAMIC_LINE < limits.MAX_TRACEFS_OBJECT
    assert limits.REG_STRUCT_SIZE <= limits.MAX_STRUCT_ARGUMENT >= limits.UNREG_STRUCT_SIZE


def test_the_largest_records_need_more_than_the_smallest_ring() -> None:
    assert (
        asserted_in_c("DR_RECORD_HEADER == 24", "sizeof(struct dr_record) == DR_RECORD_HEADER").stderr == ""
    )
    assert limits.MIN_DATA_RING - 24 == 65512 < limits.MAX_PAYLOAD < 2 * limits.MIN_DATA_RING - 24
