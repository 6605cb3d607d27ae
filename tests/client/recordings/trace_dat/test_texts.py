"""The texts of a recording; what cannot be read of them."""

import struct

import pytest

from utracefs.recordings.trace_dat.texts import Cursor, TraceTexts, with_small_signs
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text


def lstr(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def test_a_cursor_takes_parts() -> None:
    file = Cursor(b"ab\0" + struct.pack("<IQ", 7, 8) + lstr(b"xyz") + b"rest")
    assert (file.string(), file.u32(), file.u64(), file.lstr(), file.left) == (b"ab", 7, 8, b"xyz", 4)
    for take in (file.string, file.u64, file.lstr, lambda: file.take(5)):
        with pytest.raises(struct.error):
            take()


def test_names_and_symbols() -> None:
    texts = TraceTexts()
    texts.read_cmdlines(Cursor(lstr(b"11 alpha\n12 two words\nx y\n-1 strange\n13\n\n")))
    assert texts.cmdlines == {11: "alpha", 12: "two words", -1: "strange", 13: ""}
    symbols = b"ff00 t one\nzz t no\nff08 T two\t[module]\nshort\n"
    texts.read_kallsyms(Cursor(struct.pack("<I", len(symbols)) + symbols))
    assert texts.kallsyms == {0xFF00: "one", 0xFF08: "two"}


def test_a_format_that_cannot_be_read_is_left_out() -> None:
    texts = TraceTexts()
    formats = [b'name: good\nID: 7\nformat:\n\nprint fmt: ""\n', b"nonsense"]
    body = struct.pack("<I", 1) + b"user_events\0" + struct.pack("<I", 2) + b"".join(map(lstr, formats))
    texts.read_event_formats(Cursor(body))
    assert texts.systems == {7: "user_events"} and list(texts.formats) == [7]


def test_headers() -> None:
    texts = TraceTexts()
    texts.read_headers(Cursor(b"header_page\0" + lstr(b"page") + b"header_event\0" + lstr(b"event")))
    assert texts.header_page == b"page"
    with pytest.raises(ValueError, match="header_page"):
        texts.read_headers(Cursor(b"header_pages\0"))


@pytest.mark.parametrize("text", [b"", b"name: x\n", b"\xff", b'name: x\nID: 5\nformat:\n\nprint fmt: ""\n'])
def test_a_format_without_small_numbers_stays(text: bytes) -> None:
    assert with_small_signs(text) == text


def test_a_format_that_has_it_already_stays() -> None:
    text = with_small_signs(format_text(b"ev", 1, parse(b"ev s8 n").fields))
    assert b"((REC->n & 255) - ((REC->n & 128) * 2))" in text
    assert with_small_signs(text) == text
