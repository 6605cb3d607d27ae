"""docs/protocol.md has the bytes and numbers of the code."""

import re
from pathlib import Path

import msgpack
import pytest

from tests.protocol.events.plain_layout import Layout
from utracefs_protocol import limits
from utracefs_protocol.connection import Connection, Message, Notification, Request, Response
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.messages.data import RING_VERSION, EventRegistration, Registered
from utracefs_protocol.pages import perf_ring

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def direction(sign: str) -> bytes:
    return b"".join(
        bytes.fromhex(line) for line in re.findall(rf"^    {sign} ([0-9a-f ]+)$", PAGE, re.MULTILINE)
    )


def test_the_session_that_is_shown() -> None:
    asks: list[Message | bytes] = []

    def take(buffer: bytes | bytearray | memoryview, offset: int) -> int:
        asks.append(msgpack.unpackb(buffer[offset:]))
        return len(buffer)

    for message in Connection(max_object=limits.MAX_DATA_OBJECT, take_records=take).receive(direction(">")):
        asks.append(message)  # noqa: PERF402 - `take` appends meanwhile
    registration = EventRegistration(b"test u32 a")
    payload = Layout(parse(registration.name_args).fields).pack(42)
    assert asks == [
        Request(1, "DIAG_IOCSREG", registration.to_params()),
        bytes(4) + payload,
        Request(2, "sync", []),
    ]
    answers = list(Connection(max_object=None).receive(direction("<")))
    assert answers == [
        Response(1, None, Registered(status_index=1, write_index=0, id=20, size=4).to_wire()),
        Response(2, None, None),
        Notification("write_error", [9, 0, 1]),
    ]


@pytest.mark.parametrize("layout", re.findall(r"^\| `([^|]*)` \| (\d+) \|$", PAGE, re.MULTILINE))
def test_sizes_of_the_types(layout: tuple[str, str]) -> None:
    types, size = layout
    for type_ in types.split("` `"):
        assert parse(b"test " + type_.encode() + b" a").min_size == int(size)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (
            limits.MAX_DATA_OBJECT,
            "| one object on the data socket, its header included | {} bytes | EMSGSIZE |",
        ),
        (limits.MAX_TRACEFS_OBJECT >> 20, "| one object on the tracefs socket | {} MiB | EMSGSIZE |"),
        (
            limits.MAX_NESTING,
            "| arrays and maps within each other, the message's own array counted | {} | EPROTO |",
        ),
        (
            limits.MAX_UNANSWERED,
            "| reads and polls of one tracefs connection that wait for data | {} | EMSGSIZE |",
        ),
        (limits.MAX_READ_FILE >> 20, "a `read_file` result may have {} MiB"),
        (limits.MAX_READ_FILE >> 20, "EFBIG above {} MiB"),
        (limits.MAX_MSGID.bit_length(), "`msgid` 0 to 2^{}-1"),
        (limits.MAX_COMMAND_STRING, "| required: the command string, at most {} bytes |"),
        (limits.MAX_COMMAND_STRING, "| `name_args` longer than {} bytes;"),
        (limits.MAX_COMMAND_STRING, "The name without system. EINVAL: longer than {} bytes"),
        (limits.REG_STRUCT_SIZE, "| `size` < {} | EINVAL |"),
        (limits.REG_STRUCT_SIZE, "else {} to 4096, as sizeof(struct user_reg)"),
        (limits.MAX_STRUCT_ARGUMENT, "| `size` > {} | E2BIG |"),
        (limits.UNREG_STRUCT_SIZE, "`size` may be given as above ({} to 4096:"),
        (limits.MAX_ARRAY_LENGTH, "| `char[N]` `unsigned char[N]`, N 1 to {} | N |"),
        (limits.ENTRY_HEADER_SIZE, "### 3.3 `DIAG_IOCQLOCOFFSET` `[]` -> {}"),
        (limits.MAX_PAYLOAD, "The largest payload in an object has {} bytes."),
        (limits.MAX_FTRACE_PAYLOAD, "ftrace keeps {} (with sub-buffers of 4 KiB)"),
        (limits.MAX_PERF_ENTRY - limits.ENTRY_HEADER_SIZE, "perf {}."),
        (
            limits.MAX_PERF_DATA_PAGES,
            "| pages of the ring, a power of two up to {}; needed for samples | 0 |",
        ),
        (
            limits.MIN_DATA_RING >> 10,
            "`size` is a power of two from {} KiB to 64 MiB; the client library's has 16 MiB,",
        ),
        (
            64,
            "`size` is a power of two from 64 KiB to {} MiB; the client library's has 16 MiB,",
        ),
        (
            16,
            "`size` is a power of two from 64 KiB to 64 MiB; the client library's has {} MiB,",
        ),
        (int(perf_ring.DEFAULT_SAMPLE_TYPE), "| a subset of 0x{:x} | 0x{:x} |"),
        (RING_VERSION, "| 4 | u32 | version {} |"),
    ],
)
def test_limits_are_those_of_the_page(number: int, sentence: str) -> None:
    assert sentence.format(number, number) in " ".join(PAGE.split())


@pytest.mark.parametrize("name", ["data_head", "data_tail", "data_offset", "data_size"])
def test_offsets_of_the_perf_ring(name: str) -> None:
    offset = getattr(perf_ring, f"_{name.upper()}")
    assert f"| {offset} | u64 | {name}" in PAGE
