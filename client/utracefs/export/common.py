"""What exporters share: the result, progress, text that any reader takes."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from utracefs._pieces import Pieces
from utracefs.recording import Reading, Record
from utracefs_protocol.text import clean

__all__ = ["Exported", "Progress", "json_text", "plain", "watched", "write_pieces"]

Progress: TypeAlias = Callable[[float], None]
"""Is told now and then which part of the recording was read, 0 to 1."""

_RECORDS_A_REPORT: Final = 4096
_PIECE_BYTES: Final = 256 << 10
_encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@attrs.frozen
class Exported:
    """What was written."""

    records: int
    lost: int
    """Records that the recording says were lost."""
    lost_uncounted: bool
    """More were lost; nobody knows how many."""
    begins_without_end: int = 0
    """Slices that began, and stay open."""
    ends_without_begin: int = 0
    """Records that would end a slice, and are points: none had begun."""

    @classmethod
    def of(cls, reading: Reading, *, begins_without_end: int = 0, ends_without_begin: int = 0) -> "Exported":
        records = reading.records
        return cls(
            records.count, records.lost, records.lost_uncounted, begins_without_end, ends_without_begin
        )


def write_pieces(
    reading: Reading, writer: Pieces, write: Callable[[bytes], object], progress: Progress | None
) -> None:
    """`write` all that `writer` makes of the records, with reports to `progress`. OSError from `write`;
    TraceError at what is broken, after all before it is written."""
    try:
        while piece := writer.read(_PIECE_BYTES):
            write(piece)
            if progress is not None:
                progress(reading.done)
    except ValueError as error:
        raise reading.broken(error) from None


def watched(reading: Reading, progress: Progress | None) -> Iterator[Record]:
    """The records, with reports to `progress`."""
    if progress is None:
        yield from reading
        return
    for number, record in enumerate(reading):
        if not number % _RECORDS_A_REPORT:
            progress(reading.done)
        yield record


def plain(value: int | str | bytes) -> int | str:
    """A field for formats that have numbers and text only: bytes in hex."""
    if isinstance(value, int):
        return value
    return clean(value) if isinstance(value, str) else value.hex()


def json_text(value: Any) -> str:
    """ASCII, without spaces, and without a < that could end a <script> which it is put into."""
    return _encode(value).replace("<", "\\u003c")
