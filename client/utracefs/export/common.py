"""What exporters share: the result, progress, text that any reader takes."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from utracefs.recording import Reading, Record
from utracefs_protocol.text import bytes_of

__all__ = ["Exported", "Progress", "clean", "json_text", "plain", "watched"]

Progress: TypeAlias = Callable[[float], None]
"""Is told now and then which part of the recording was read, 0 to 1."""

_RECORDS_A_REPORT: Final = 4096
_encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@attrs.frozen
class Exported:
    """What was written."""

    records: int
    lost: int
    """Records that the recording says were lost."""
    lost_uncounted: bool
    """More were lost; nobody knows how many."""

    @classmethod
    def of(cls, reading: Reading) -> "Exported":
        records = reading.records
        return cls(records.count, records.lost, records.lost_uncounted)


def watched(reading: Reading, progress: Progress | None) -> Iterator[Record]:
    """The records, with reports to `progress`."""
    if progress is None:
        yield from reading
        return
    for number, record in enumerate(reading):
        if not number % _RECORDS_A_REPORT:
            progress(reading.done)
        yield record


def clean(text: str) -> str:
    """With U+FFFD for each byte that is not UTF-8."""
    return text if text.isascii() else bytes_of(text).decode("utf-8", "replace")


def plain(value: int | str | bytes) -> int | str:
    """A field for formats that have numbers and text only: bytes in hex."""
    if isinstance(value, int):
        return value
    return clean(value) if isinstance(value, str) else value.hex()


def json_text(value: Any) -> str:
    """ASCII, without spaces, and without a < that could end a <script> which it is put into."""
    return _encode(value).replace("<", "\\u003c")
