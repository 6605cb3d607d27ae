"""A batch: records on their way to a target, with everything that decodes them without the daemon.

    Cutter: bodies ─▶ Batch ─▶ to_bytes ─▶ spool ─▶ from_bytes ─▶ Batch ─▶ Record, columns, Arrow, JSON

The header is a map of MessagePack, its members are listed in docs/forward.md. The body is raw records (see
`_body`). The fields of records are decoded by `recordings._records`, as those of a recording.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
import msgpack

from utracefs.export._json_text import JsonText
from utracefs.forward._body import BodyRecords
from utracefs.forward.losses import Loss
from utracefs.recordings import columns
from utracefs.recordings._columns import Batch as Columns
from utracefs.recordings._columns import ColumnBatches
from utracefs.recordings._records import EventDecoder, Record, Records, RecordSource
from utracefs.recordings.event_header import HeaderEvents
from utracefs.recordings.origin import ClockPair
from utracefs.tree.event_names import EventName
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.text import bytes_of, text_of

if TYPE_CHECKING:
    import pyarrow


VERSION: Final = 1
"""Version of the header."""

ARRIVED: Final = "arrived"
"""In place of a cause: records that are in the batch."""

LEFT_OUT: Final = ("instance", "lost")
"""Columns of recordings: records of a stream have no instance; losses are in tables of counts."""

_JSON_BYTES: Final = 1 << 20

_HEAD: Final = struct.Struct("<IHHQII")
"""Head of a raw record: size, kind, cpu, time, pid, length. include/stream_ring.h"""
_RECORD: Final = 0


class Formats:
    """Decoders of the events of batches, kept from one batch to the next."""

    def __init__(self) -> None:
        self._described: dict[int, tuple[str, bytes]] = {}
        self._decoders: dict[int, EventDecoder] = {}
        self._header_events = HeaderEvents()

    def records(self, batch: "Batch") -> Records:
        """ValueError: a format is invalid."""
        for id_, described in batch.events.items():
            known = self._described.get(id_)
            if known is None:
                self._add(id_, described)
            elif known != described:
                self._described.clear()
                self._decoders.clear()
                self._header_events = HeaderEvents()
                for one in batch.events.items():
                    self._add(*one)
                break
        source: RecordSource = BodyRecords(batch.body, dict(batch.comms), batch.is_after_gap)
        return Records(self._header_events.source(source), self._decoder)

    def _add(self, id_: int, described: tuple[str, bytes]) -> None:
        system, text = described
        event = parse_format(text).for_readers()
        self._described[id_] = described
        self._decoders[id_] = EventDecoder(system, text_of(event.name), event.fields)
        self._header_events.add(system, event)

    def _decoder(self, id_: int) -> EventDecoder | None:
        if id_ not in self._decoders and (found := self._header_events.events.get(id_)) is not None:
            self._decoders[id_] = found.decoder()
        return self._decoders.get(id_)


@attrs.frozen
class Batch:
    """An iterable of Record. `(forwarder, sequence)` is unique: a target that has stored a batch with these,
    or a later one of this forwarder, has stored it."""

    forwarder: str
    """Random, of one spool directory; after a crash of the system it has another one."""
    sequence: int
    """From 1 on; a missing number is a batch whose records are in `losses` of a later one."""
    host: str
    boot_id: str
    """The kernel's; times of different boots cannot be compared."""
    clock: ClockPair
    """CLOCK_MONOTONIC, the clock of all records, and the time of day when the batch was read."""
    events: Mapping[int, tuple[str, bytes]]
    """Event id in the raw records to system and the text of `format`."""
    comms: Mapping[int, str]
    """Thread id to name."""
    counts: Mapping[str, int]
    """`SYSTEM:NAME` of the tracepoint to number of records."""
    losses: Sequence[Loss]
    """Lost since the previous batch. A target writes them beside the records."""
    first_ns: int
    """Time of the first record; 0 without records."""
    last_ns: int
    is_after_gap: bool
    """An unknown number of records was lost in front of it; `losses` says that, too."""
    body: bytes = attrs.field(repr=False)
    formats: Formats = attrs.field(factory=Formats, eq=False, repr=False)

    @property
    def nr_records(self) -> int:
        return sum(self.counts.values())

    @property
    def unix_offset_ns(self) -> int:
        """To be added to a record's time: nanoseconds since 1970-01-01 UTC."""
        return self.clock.offset_ns

    def count_rows(self) -> list[tuple[str, str, int | None]]:
        """Rows of a table of counts: tracepoint, cause, number (None: unknown)."""
        arrived = [(event, ARRIVED, count) for event, count in self.counts.items()]
        return [*arrived, *((loss.event, loss.cause, loss.count) for loss in self.losses)]

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(self) -> Records:
        """The records for compiled readers. ValueError, also while iterating: the batch is invalid."""
        return self.formats.records(self)

    def cut(self, begin: int, end: int) -> Self:
        """Only those records, and the losses. ValueError: it does not have them."""
        body, at, number = self.body, 0, 0
        first = last = 0
        counts: Counter[int] = Counter()
        while at < len(body) and number < end:
            size, kind = _head(body, at)
            if number == begin and not counts:
                first = at
            if kind == _RECORD:
                if number >= begin:
                    counts[int.from_bytes(body[at + _HEAD.size : at + _HEAD.size + 2], "little")] += 1
                number += 1
            at += size
            last = at
        if number != end:
            raise ValueError("records are missing in the body")
        by_name: Counter[str] = Counter()
        for id_, count in counts.items():
            system, text = self.events[id_]
            by_name[str(EventName(system, text_of(parse_format(text).name)))] += count  # of all its layouts
        return attrs.evolve(
            self, body=body[first:last], counts=by_name, is_after_gap=self.is_after_gap and not begin
        )

    def columns(self) -> Iterator[Columns]:
        """The records as columns, by event."""
        return ColumnBatches(self.records())

    def to_arrow(self) -> dict[str, "list[pyarrow.RecordBatch]"]:
        """The same as record batches of Arrow, by `SYSTEM:NAME`. Events of EventHeader with one name may have
        different columns. ImportError: pyarrow is missing."""
        found: dict[str, list[pyarrow.RecordBatch]] = {}
        for one in self.columns():
            metadata = {"host": self.host, "boot_id": self.boot_id, "clock": "mono"}
            batch = columns.arrow_batch(one, columns.arrow_schema(one, metadata))
            found.setdefault(str(EventName(one.event.system, one.event.name)), []).append(batch)
        return found

    def to_json(self) -> bytes:
        """Lines of JSON, as `utracefs export --to jsonl` has them."""
        text = JsonText(self.records())
        return b"".join(iter(lambda: text.read(_JSON_BYTES), b""))

    def header(self) -> bytes:
        """As stored; names are bytes, since they need not be UTF-8."""
        packed: bytes = msgpack.packb(
            {
                "version": VERSION,
                "forwarder": self.forwarder,
                "sequence": self.sequence,
                "host": self.host,
                "boot_id": self.boot_id,
                "clock": [self.clock.clock_ns, self.clock.unix_ns, self.clock.uncertainty_ns],
                "events": {id_: [bytes_of(system), text] for id_, (system, text) in self.events.items()},
                "comms": {tid: bytes_of(comm) for tid, comm in self.comms.items()},
                "counts": {bytes_of(event): count for event, count in self.counts.items()},
                "losses": [[bytes_of(loss.event), loss.cause, loss.count] for loss in self.losses],
                "times": [self.first_ns, self.last_ns],
                "gap": self.is_after_gap,
            }
        )
        return packed

    @classmethod
    def of(cls, header: bytes, body: bytes, formats: Formats) -> Self:
        """ValueError: the header is invalid, or of a newer version."""
        try:
            members: dict[str, Any] = msgpack.unpackb(header, strict_map_key=False)
            if members["version"] != VERSION:
                raise KeyError(f"version {members['version']}, not {VERSION}")
            return cls(
                members["forwarder"],
                members["sequence"],
                members["host"],
                members["boot_id"],
                ClockPair(*members["clock"]),
                {id_: (text_of(system), text) for id_, (system, text) in members["events"].items()},
                {tid: text_of(comm) for tid, comm in members["comms"].items()},
                {text_of(event): count for event, count in members["counts"].items()},
                [Loss(text_of(event), cause, count) for event, cause, count in members["losses"]],
                members["times"][0],
                members["times"][1],
                members["gap"],
                body,
                formats,
            )
        except (
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            ValueError,
            msgpack.UnpackException,
        ) as error:
            raise ValueError(f"no header of a batch: {error!r}") from None


def _head(body: bytes, at: int) -> tuple[int, int]:
    """Size and kind. ValueError: it is none."""
    try:
        size, kind, *_ = _HEAD.unpack_from(body, at)
    except struct.error:
        size = kind = 0
    if not _HEAD.size < size <= len(body) - at:
        raise ValueError(f"no record at byte {at}")
    return size, kind
