"""Shared by exporters: the result, progress, text for any reader."""

import errno
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeAlias

import attrs

from utracefs.recordings.partial_files import NoRoom
from utracefs.recordings.recording import Reading, Recording
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import clean

if TYPE_CHECKING:
    from utracefs.export.timelines._track_writer import TrackWriter


class SomePieces(Protocol):
    """Pieces, or an object with the same `read`."""

    def read(self, max_bytes: int) -> bytes: ...


Progress: TypeAlias = Callable[[float], None]
"""Called from time to time with the part of the recording read, 0 to 1."""

_PIECE_BYTES: Final = 64 << 10
"""Records without space are counted in pieces of this size."""
_encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@attrs.frozen
class Exported:
    """The result of an export."""

    records: int
    lost: int
    """Records lost according to the recording."""
    lost_uncounted: bool
    """An unknown number more was lost."""
    begins_without_end: int = 0
    """Slices without an end."""
    ends_without_begin: int = 0
    """Ends without a begin, shown as points."""
    no_room: int = 0
    """Records not written because the disk was full."""
    error: OSError | None = None
    """The system's text for that error."""
    only_counted: int = 0
    """Records without a row in an HTML page; its timeline counts them."""
    day_guessed: bool = False
    """The recording has no time of day: the file's last change is taken for the time of its last record, or
    its times are taken for times of day, if they count 31 years or more."""

    @classmethod
    def of(cls, reading: Reading, *, begins_without_end: int = 0, ends_without_begin: int = 0) -> "Exported":
        records = reading.records
        return cls(
            records.count, records.lost, records.lost_uncounted, begins_without_end, ends_without_begin
        )

    def plus(self, other: "Exported") -> "Exported":
        """The sum of two outputs."""
        return Exported(
            self.records + other.records,
            self.lost + other.lost,
            self.lost_uncounted or other.lost_uncounted,
            no_room=self.no_room + other.no_room,
            error=self.error or other.error,
            day_guessed=self.day_guessed or other.day_guessed,
        )

    def without(self, no_room: int, error: OSError | None) -> "Exported":
        """The same, less records without space."""
        if error is None:
            return self
        return attrs.evolve(self, records=self.records - no_room, no_room=no_room, error=error)


def write_pieces(
    reading: Reading, writer: SomePieces, write: Callable[[bytes], object], progress: Progress | None
) -> tuple[int, OSError | None]:
    """Write the output of `writer` for all records, with reports to `progress`. Without space (NoRoom) the
    rest is only counted: returns the number and the error. Other OSErrors are raised; TraceError at invalid
    data, after all before it is written."""
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


def write_timeline(
    reading: Reading,
    writer: "TrackWriter",
    out: BinaryIO,
    end: Callable[[], bytes],
    progress: Progress | None,
) -> Exported:
    """Write the records and then `end`, also after an error. Errors as write_pieces."""
    try:
        full = write_pieces(reading, writer, out.write, progress)
    finally:
        out.write(end())
    return Exported.of(
        reading, begins_without_end=writer.begins_without_end, ends_without_begin=writer.ends_without_begin
    ).without(*full)


def of_one_file(recording: Recording, path: str | os.PathLike[str], kind: str) -> None:
    """TraceError(EINVAL) about the path: the format has records of one host."""
    if recording.is_merged:
        text = f"a {kind} has the records of one host: write one for each file"
        raise TraceError(
            errno.EINVAL, f"{os.fsdecode(path)}: {text}; `trace-cmd report -i A.dat -i B.dat` merges"
        )


def write_parts(
    recording: Recording, write: Callable[[Recording, Progress | None], Exported], progress: Progress | None
) -> Exported:
    """Write the records of each file with `write`; the sums of what it returned. TraceError at invalid data
    in the first such file, after all files are written."""
    parts = recording.parts
    found = Exported(0, 0, False)
    broken: TraceError | None = None
    for number, part in enumerate(parts):
        report = None if progress is None else _part_of(progress, number, len(parts))
        try:
            found = found.plus(write(part, report))
        except TraceError as error:
            broken = broken or error
    if broken is not None:
        raise broken
    return found


def _part_of(progress: Progress, number: int, count: int) -> Progress:
    return lambda done: progress((number + done) / count)


def plain(value: Any) -> int | float | str:
    """A field for formats with numbers and text only: bytes in hex, lists as JSON, nothing as no text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return "" if value is None else json_text(value)


def json_text(value: Any) -> str:
    """JSON in ASCII, without spaces, and without a < that could end an enclosing <script>."""
    return _encode(value).replace("<", "\\u003c")
