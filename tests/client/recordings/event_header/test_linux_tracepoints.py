"""The decoder of LinuxTracepoints as judge: what it made of payloads, in linux_tracepoints.txt. The
differences are those of docs/differences.md."""

import json
import re
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.client.recordings.test_event_header import records

LINES = [
    (bytes.fromhex(data), json.loads(answer))
    for line in Path(__file__).with_name("linux_tracepoints.txt").read_text().splitlines()
    if not line.startswith("#")
    for data, answer in [line.split("\t")]
]
HEX, ERRNO, TIME, BOOLEAN, FLOAT = 3, 4, 6, 7, 8
UNIX = datetime(1970, 1, 1, tzinfo=UTC)


def plain(text: str) -> str:
    """Without characters that are none (there Latin-1, or what UTF-8 would be; here U+FFFD, or the
    bytes), and zeros; and the mistake there in surrogates of U+20000 and beyond."""
    text = text.rstrip("\0").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    text = re.sub("[\U00020000-\U0010ffff]", lambda found: chr(0x10000 | ord(found[0]) & 0xFFFF), text)
    return re.sub("[\x80-\xff\ufffd\0]+", "?", text)


def seconds(text: str) -> int:
    """Seconds of a date, whose year may have more than four digits."""
    year, _, rest = text.partition("-")
    date = datetime.fromisoformat(f"{2000 + int(year) % 400}-{rest}+00:00")
    return round((date - UNIX).total_seconds()) + (int(year) - date.year) // 400 * 146_097 * 86400


def is_same(there: Any, here: Any, format: int) -> bool:
    if isinstance(there, list | dict):
        pairs = (
            zip(there, here, strict=True)
            if isinstance(there, list)
            else ((there[name], here[name]) for name in there)
        )
        return type(there) is type(here) and all(is_same(*pair, format) for pair in pairs)
    if isinstance(here, bytes):
        return bool(there == here.hex(" "))
    if there in ("inf", "nan", "-nan"):
        return str(float(there)) == str(float(here))
    if format == FLOAT and isinstance(there, float):
        return there == here or struct.pack("f", there) == struct.pack("f", here)
    if isinstance(there, str) and isinstance(here, int):
        if format == HEX:
            return int(there, 16) == here
        number = re.search(r"\((-?\d+)\)", there)
        return (int(number[1]) if number else seconds(there)) == here
    if isinstance(there, str):
        return isinstance(here, str) and (plain(there) == plain(here) or there.replace(" ", "") == here)
    if format == BOOLEAN and there not in (None, 0, 1):
        return here is True or (here - there) % 2**32 == 0
    return bool((type(there), there) == (type(here), here))


@pytest.mark.parametrize("number", range(len(LINES)))
def test_the_same_as_the_decoder_of_linux_tracepoints(number: int) -> None:
    data, there = LINES[number]
    ((system, name, here),) = records(data)
    if "error" in there or "rest" in here:
        return  # see below
    assert (system, name) == (there["provider"], there["event"].partition(";")[0])
    expected = {key: there[key] for key in ("level", "keyword")}
    expected |= {key: there[key] for key in ("opcode", "id", "version", "tag") if there[key]}
    expected |= {f"{key}_id": there[key] for key in ("activity", "related") if key in there}
    assert {key: here[key] for key in expected} == expected
    fields = {plain(key): value for key, value in here.items()}
    for key, value in there["fields"].items():
        found = fields[plain(key.partition(";")[0])]
        assert is_same(value, found, int(key) if name.isdecimal() else HEX), (key, value, found)


def test_the_same_records_are_invalid() -> None:
    """But for four that are not here: two with another level than the tracepoint's, one with more
    than 255 fields, and one with a constant array of structs, whose length is read there as the second
    one's members. And for four that are not there: a struct without members, and members of an empty
    array that are invalid, twice each."""
    found = [("error" in there, "rest" in here) for data, there in LINES for _, _, here in records(data)]
    assert [found.count(pair) for pair in [(True, True), (True, False), (False, True)]] == [28, 4, 4]
