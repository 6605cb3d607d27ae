"""Lines in pieces, lines of any length, what is broken; the json module as judge."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs._records import EventDecoder, MergedPages, Records
from utracefs.export._json_text import JsonText
from utracefs.trace_dat._merge import Merge
from utracefs_protocol.declaration import Field, FieldKind
from utracefs_protocol.subbuf import PageWriter

TEXT = Field(b"char[]", b"t", 8, 0, True, FieldKind.CHAR_ARRAY)


def text_of(entries: list[bytes], fields: list[Field], *, broken: bool = False, comm: str = "c") -> JsonText:
    size = 1 << 17
    writer = PageWriter(size)
    for n, data in enumerate(entries):
        assert writer.add(n + 1, struct.pack("<HBBi", 1, 0, 0, 7) + data)
    page = bytearray(writer.page())
    if broken:
        word = struct.unpack_from("<I", page, 8)[0]
        struct.pack_into("<I", page, 8, word + 4)
        struct.pack_into("<I", page, 16 + word, 28)
    source = MergedPages(Merge(bytes(page), [(0, 3, 0, size, size)]))
    source.comms = {7: comm}
    return JsonText(Records(source, lambda _: EventDecoder("s", "ev", fields), instances=["box"]))


@given(st.binary(max_size=60), st.text(max_size=15))
def test_any_text(data: bytes, comm: str) -> None:
    data += bytes(-len(data) % 4)
    comm = comm.encode("utf-8", "replace").decode()
    line = text_of([data], [TEXT], comm=comm).read(1)
    assert line.isascii() and b"<" not in line and line.count(b"\n") == 1
    assert json.loads(line) == {
        "time_ns": 1,
        "cpu": 3,
        "pid": 7,
        "tid": 7,
        "comm": comm or "<...>",
        "system": "s",
        "name": "ev",
        "fields": {"t": data.split(b"\0")[0].decode("utf-8", "replace")},
        "instance": "box",
    }


def test_whole_lines_in_pieces() -> None:
    text = text_of([b"%04d" % n for n in range(1000)], [TEXT])
    pieces = []
    while piece := text.read(500):
        assert piece.endswith(b"\n") and len(piece) < 800
        pieces.append(piece)
    assert [json.loads(line)["fields"]["t"] for line in b"".join(pieces).splitlines()] == [
        f"{n:04}" for n in range(1000)
    ]
    assert text.read(500) == b""


def test_a_long_line_makes_room_for_itself() -> None:
    (line,) = text_of([b"\x01" * 60000], [TEXT]).read(1).splitlines()
    assert json.loads(line)["fields"]["t"] == "\x01" * 60000


def test_a_line_that_is_much_too_long_has_no_fields() -> None:
    fields = [Field(b"char[]", b"t%d" % n, 8, 0, True, FieldKind.CHAR_ARRAY) for n in range(300)]
    (line,) = text_of([b"\x01" * 60000], fields).read(1).splitlines()
    assert json.loads(line)["fields"] == {}


def test_a_record_that_is_too_short_has_no_fields() -> None:
    (line,) = text_of([b"1234"], [Field(b"u64", b"n", 8, 8, False, FieldKind.INTEGER)]).read(1).splitlines()
    assert json.loads(line)["fields"] == {}


def test_what_is_broken_comes_after_all_before_it() -> None:
    text = text_of([b"good"], [TEXT], broken=True)
    assert text.read(1 << 20).count(b"\n") == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="page at 0"):
            text.read(1 << 20)
    with pytest.raises(ValueError, match="page at 0"):
        text_of([], [TEXT], broken=True).read(1)
