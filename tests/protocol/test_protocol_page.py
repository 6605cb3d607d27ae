"""docs/protocol.md is a promise: its bytes and numbers are those of the code."""

import re
from pathlib import Path

import pytest

from utracefs_protocol import limits, perf_ring
from utracefs_protocol.connection import Connection, EventRecord, Notification, Request, Response
from utracefs_protocol.declaration import parse
from utracefs_protocol.layout import Layout
from utracefs_protocol.messages import EventRegistration, Registered

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def direction(sign: str) -> bytes:
    return b"".join(
        bytes.fromhex(line) for line in re.findall(rf"^    {sign} ([0-9a-f ]+)$", PAGE, re.MULTILINE)
    )


def test_the_session_that_is_shown() -> None:
    asks = list(Connection(max_object=limits.MAX_DATA_OBJECT, allow_records=True).receive(direction(">")))
    registration = EventRegistration(b"test u32 a")
    payload = Layout(parse(registration.name_args).fields).pack(42)
    assert asks == [
        Request(1, "DIAG_IOCSREG", registration.to_params()),
        EventRecord(bytes(4) + payload),
        Request(2, "sync", []),
    ]
    answers = list(Connection(max_object=None).receive(direction("<")))
    assert answers == [
        Response(1, None, Registered(status_index=1, write_index=0, id=20).to_wire()),
        Response(2, None, None),
        Notification("write_error", [9, 0, 1]),
    ]


@pytest.mark.parametrize("layout", re.findall(r"^\| `([^|]*)` \| (\d+) \|$", PAGE, re.MULTILINE))
def test_sizes_of_the_types(layout: tuple[str, str]) -> None:
    types, size = layout
    for type_ in types.split("` `"):
        assert parse(b"test " + type_.encode() + b" a").min_size == int(size)


@pytest.mark.parametrize(
    "number",
    [
        limits.MAX_DATA_OBJECT,
        limits.MAX_NESTING,
        limits.MAX_UNANSWERED,
        limits.MAX_COMMAND_STRING,
        limits.MAX_PAYLOAD,
        limits.MAX_FTRACE_PAYLOAD,
        limits.MAX_PERF_DATA_PAGES,
        limits.MAX_ARRAY_LENGTH,
        limits.REG_STRUCT_SIZE,
        limits.UNREG_STRUCT_SIZE,
    ],
)
def test_limits_are_those_of_the_page(number: int) -> None:
    assert re.search(rf"\b{number}\b", PAGE)


@pytest.mark.parametrize("name", ["data_head", "data_tail", "data_offset", "data_size"])
def test_offsets_of_the_perf_ring(name: str) -> None:
    (field,) = (field for field in perf_ring.MMAP_PAGE_FIELDS if field.name == name)
    assert f"| {field.offset} | u64 | {name}" in PAGE
