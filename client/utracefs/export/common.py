"""What exporters share: the result, progress, text that any reader takes."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeAlias

import attrs

from utracefs.recordings.partial_files import NoRoom
from utracefs.recordings.recording import Reading, Record
from utracefs_protocol.text import clean

__all__ = ["Exported", "Progress", "json_text", "plain", "watched", "write_pieces"]


class SomePieces(Protocol):
    """Pieces, or what is read as they are."""

    def read(self, max_bytes: int) -> bytes: ...


Progress: TypeAlias = Callable[[float], None]
"""Is told now and then which part of the recording was read, 0 to 1."""

_RECORDS_A_REPORT: Final = 4096
_PIECE_BYTES: Final = 64 << 10
"""What does not fit is given up in pieces of this size."""
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
    no_room: int = 0
    """Records that are not in the file: the disk is full."""
    error: OSError | None = None
    """That, as the system says it."""
    only_counted: int = 0
    """Records that a page has no row for; its timeline counts them."""
    day_guessed: bool = False
    """The recording does not know the time of day: its last change is taken for that of its last record, or
    its times are taken for times of day, where they count 31 years and more."""

    @classmethod
    def of(cls, reading: Reading, *, begins_without_end: int = 0, ends_without_begin: int = 0) -> "Exported":
        records = reading.records
        return cls(
            records.count, records.lost, records.lost_uncounted, begins_without_end, ends_without_begin
        )

    def without(self, no_room: int, error: OSError | None) -> "Exported":
        """The same, less records that found no room."""
        if error is None:
            return self
        return attrs.evolve(self, records=self.records - no_room, no_room=no_room, error=error)


def write_pieces(
    reading: Reading, writer: SomePieces, write: Callable[[bytes], object], progress: Progress | None
) -> tuple[int, OSError | None]:
    """`write` all that `writer` makes of the records, with reports to `progress`. When there is no room
    (NoRoom) the rest is only counted: how many records that were, and the error. Another OSError is raised;
    TraceError at what is broken, after all before it is written."""
    kept = 0
    full: OSError | None = None
    try:
        while piece := writer.read(_PIECE_BYTES):
            if full is None:
                try:
                    write(piece)
                    kept = reading.records.count
                except NoRoom as error:
                    full = error
            if progress is not None:
                progress(reading.done)
    except ValueError as error:
        raise reading.broken(error) from None
    return (0, None) if full is None else (reading.records.count - kept, full)


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
