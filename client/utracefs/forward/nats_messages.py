"""Messages of the target `nats`: batches to messages, and back.

The payload is several streams of Arrow's IPC format, one behind the other: first COUNTS (`tracepoint`,
`cause`, `count`), then the records, a stream for each table of `Batch.to_arrow`. Headers say which batch it
is:

| header | value |
|---|---|
| `Utracefs-Version` | 1 |
| `Utracefs-Host`, `Utracefs-Boot`, `Utracefs-Forwarder` | as in the batch; the host is percent-encoded |
| `Utracefs-Sequence` | of the batch |
| `Utracefs-Previous` | sequence of the batch that was stored before, 0: none, or it is unknown |
| `Utracefs-Records` | `BEGIN-END/ALL`: which records of the batch; a large one is several messages |
| `Utracefs-Losses` | only if the next message has more losses of the batch: how many are in those so far |
| `Utracefs-Clock` | CLOCK_MONOTONIC, CLOCK_REALTIME, uncertainty of the pair, limit of the error; ns |

In COUNTS the cause `arrived` has the records of this message; other rows are losses of the batch, which its
first messages have.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, unquote

import attrs

from utracefs.forward.batch import ARRIVED, LEFT_OUT, Batch
from utracefs.forward.losses import Loss
from utracefs.nats.jetstream import JetStream, Stored
from utracefs.recordings import columns
from utracefs.recordings.origin import ClockPair, Origin

if TYPE_CHECKING:
    import pyarrow


VERSION: Final = 1

COMPRESSIONS: Final = ("lz4", "zstd", "none")

_POLL_S: Final = 0.25
"""Interval of looking for new messages."""

MOST_TABLES: Final = 1 << 16
"""Limit of tables in a message that is read."""


@attrs.frozen
class Part:
    """The records of a batch from `begin` to `end`. losses: so many are in this part and those before; None:
    all."""

    begin: int
    end: int
    payload: "pyarrow.Buffer" = attrs.field(repr=False)
    losses: int | None = None


class Encoder:
    """ImportError: pyarrow is missing."""

    def __init__(self, compression: str) -> None:
        self._pa: Final = columns.library("pyarrow")
        self._options: Final = self._pa.ipc.IpcWriteOptions(
            compression=None if compression == "none" else compression,
            use_threads=False,  # the host's other cores are for its programs
        )
        self._counts: Final = self._pa.schema(
            {"tracepoint": self._pa.string(), "cause": self._pa.string(), "count": self._pa.uint64()}
        )

    def parts(
        self, batch: Batch, limit: int, stored: tuple[int, int | None] = (0, 0)
    ) -> tuple[list[Part], Counter[str]]:
        """Payloads of at most `limit` bytes, and by tracepoint the records that cannot be sent: those larger
        than that, or that cannot be decoded. The last part ends with the batch. stored: so many records and
        losses (None: all) of it are stored already. One loss alone may be larger than `limit`."""
        begin, first_loss = stored
        parts: list[Part] = []
        refused: Counter[str] = Counter()
        bare = attrs.evolve(batch, losses=())
        try:
            if batch.losses and stored == (0, 0) and (whole := self._encoded(batch)).size <= limit:
                return [Part(0, batch.nr_records, whole)], refused
            if begin:
                list(self._split(bare, 0, begin, limit, refused))
            if begin < batch.nr_records or not batch.losses:
                parts += self._split(bare, begin, batch.nr_records, limit, refused)
        except ValueError:
            parts, refused = [], Counter(batch.counts)
        end = parts[-1].end if parts else begin
        if end < batch.nr_records:
            parts.append(Part(end, batch.nr_records, self._losses_alone(bare, ())))
        if first_loss is not None:
            parts[:0] = self._split_losses(batch, first_loss, len(batch.losses), limit)
        return parts, refused

    def _split_losses(self, batch: Batch, begin: int, end: int, limit: int) -> Iterator[Part]:
        payload = self._losses_alone(batch, batch.losses[begin:end])
        if payload.size > limit and end - begin > 1:
            middle = (begin + end) // 2
            yield from self._split_losses(batch, begin, middle, limit)
            yield from self._split_losses(batch, middle, end, limit)
        elif begin < end:
            yield Part(0, 0, payload, end if end < len(batch.losses) else None)

    def _losses_alone(self, batch: Batch, losses: Sequence[Loss]) -> "pyarrow.Buffer":
        return self._encoded(attrs.evolve(batch, body=b"", counts={}, losses=losses))

    def _split(self, batch: Batch, begin: int, end: int, limit: int, refused: Counter[str]) -> Iterator[Part]:
        part = batch if (begin, end) == (0, batch.nr_records) else batch.cut(begin, end)
        payload = self._encoded(part)
        if payload.size <= limit:
            yield Part(begin, end, payload)
        elif end - begin > 1:
            middle = (begin + end) // 2
            yield from self._split(batch, begin, middle, limit, refused)
            yield from self._split(batch, middle, end, limit, refused)
        else:
            refused.update(part.counts)

    def _encoded(self, batch: Batch) -> "pyarrow.Buffer":
        """ValueError: records cannot be decoded."""
        out = self._pa.BufferOutputStream()
        rows = batch.count_rows()
        values = zip(*rows, strict=True) if rows else ((), (), ())
        arrays = [
            self._pa.array(map(_clean, one) if n < 2 else one, field.type)
            for n, (one, field) in enumerate(zip(values, self._counts, strict=True))
        ]
        tables = [self._pa.RecordBatch.from_arrays(arrays, schema=self._counts)]
        for table in (table for found in batch.to_arrow().values() for table in found):
            tables.append(table.select([name for name in table.schema.names if name not in LEFT_OUT]))
        if sum(table.num_rows for table in tables[1:]) != batch.nr_records:
            raise ValueError("records are missing in the body")
        for table in tables:
            with self._pa.ipc.new_stream(out, table.schema, options=self._options) as writer:
                writer.write_batch(table)
        return out.getvalue()


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()


# Headers


@attrs.frozen
class Position:
    """Position of a message among those of its forwarder."""

    sequence: int
    end: int
    """Records of the batch that this message and earlier ones have."""
    all: int
    """Records of the batch."""
    boot_id: str = ""
    clock_ns: int = 0
    """CLOCK_MONOTONIC of the batch."""
    losses: int | None = None
    """As of `Part`."""
    begin: int = 0
    """Records of the batch that earlier messages have."""

    @property
    def is_whole(self) -> bool:
        """The batch ends with the message."""
        return self.end == self.all and self.losses is None

    def is_of_a_copy(self, batch: Batch) -> bool:
        """Whether a copy of the batch's spool, with the same id, wrote this message: the spool numbers its
        batches in the order of their clocks and boots."""
        if batch.sequence == self.sequence:
            return (batch.boot_id, batch.clock.clock_ns) != (self.boot_id, self.clock_ns)
        if batch.sequence > self.sequence:
            return False
        if batch.boot_id == self.boot_id:
            return batch.clock.clock_ns > self.clock_ns
        return batch.boot_id == Origin.here("mono").boot_id  # the last boot


def headers(batch: Batch, part: Part, previous: int) -> dict[str, str]:
    clock = batch.clock
    losses = {} if part.losses is None else {"Utracefs-Losses": str(part.losses)}
    return losses | {
        "Utracefs-Version": str(VERSION),
        "Utracefs-Host": quote(batch.host, safe=" ", errors="surrogateescape"),
        "Utracefs-Boot": quote(batch.boot_id),
        "Utracefs-Forwarder": batch.forwarder,
        "Utracefs-Sequence": str(batch.sequence),
        "Utracefs-Previous": str(previous),
        "Utracefs-Records": f"{part.begin}-{part.end}/{batch.nr_records}",
        "Utracefs-Clock": f"{clock.clock_ns} {clock.unix_ns} {clock.uncertainty_ns}"
        + (f" {clock.error_ns}" if clock.error_ns is not None else ""),
    }


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise ValueError(f"{text[:30]!r} is no number")
    return int(text)


def _range(text: str) -> tuple[int, int, int]:
    ends, _, all_ = text.partition("/")
    begin, _, end = ends.partition("-")
    found = _number(begin), _number(end), _number(all_)
    if not found[0] <= found[1] <= found[2]:
        raise ValueError(f"{text[:60]!r} is no range")
    return found


def position(found: Mapping[str, str]) -> Position:
    """Position from the headers of a message. ValueError: another program published it."""
    try:
        begin, end, all_ = _range(found["Utracefs-Records"])
        boot_id, clock = unquote(found["Utracefs-Boot"]), found["Utracefs-Clock"].partition(" ")[0]
        losses = _number(found["Utracefs-Losses"]) if "Utracefs-Losses" in found else None
        return Position(
            _number(found["Utracefs-Sequence"]), end, all_, boot_id, _number(clock), losses, begin
        )
    except KeyError as error:
        raise ValueError(f"no header {error}") from None


# Reading


@attrs.frozen
class Arrived:
    """A message that was read. Times of records are those of `clock.clock_ns`."""

    host: str
    forwarder: str
    position: Position
    previous: int
    clock: ClockPair
    counts: Mapping[str, int]
    """Tracepoint to number of records in this message."""
    losses: tuple[Loss, ...]
    tables: Mapping[str, "list[pyarrow.RecordBatch]"] = attrs.field(repr=False)
    """As of `Batch.to_arrow`."""
    at: int = 0
    """Sequence of the message in its stream."""

    @classmethod
    def of(cls, stored: Stored) -> Self:
        """ValueError: it is no such message, or of a newer version."""
        found = stored.headers
        try:
            if found["Utracefs-Version"] != str(VERSION):
                raise ValueError(f"version {found['Utracefs-Version'][:20]}, not {VERSION}")
            clock = [_number(word) for word in found["Utracefs-Clock"].split()]
            if not 3 <= len(clock) <= 4 or not ClockPair(*clock).is_sane:
                raise ValueError("no clock")
            counts, losses, tables = _decoded(stored.payload)
            return cls(
                unquote(found["Utracefs-Host"], errors="surrogateescape"),
                found["Utracefs-Forwarder"],
                position(found),
                _number(found["Utracefs-Previous"]),
                ClockPair(*clock),
                counts,
                losses,
                tables,
                stored.sequence,
            )
        except KeyError as error:
            raise ValueError(f"message {stored.sequence}: no header {error}") from None
        except ValueError as error:
            raise ValueError(f"message {stored.sequence}: {error}") from None


def _decoded(payload: bytes) -> tuple[dict[str, int], tuple[Loss, ...], dict[str, list[Any]]]:
    """ValueError, also of Arrow."""
    pa = columns.library("pyarrow")
    source = pa.BufferReader(payload)
    streams: list[list[pyarrow.RecordBatch]] = []
    try:
        while source.tell() < len(payload):
            streams.append(list(pa.ipc.open_stream(source)))
            if len(streams) > MOST_TABLES:
                raise ValueError("too many tables")
        for table in (table for stream in streams for table in stream):
            table.validate(full=True)
        counts: dict[str, int] = {}
        losses = []
        for row in (row for table in streams[0] for row in table.to_pylist()):
            if row["cause"] == ARRIVED:
                counts[row["tracepoint"]] = row["count"]
            else:
                losses.append(Loss(row["tracepoint"], row["cause"], row["count"]))
        tables: dict[str, list[pyarrow.RecordBatch]] = {}
        for table in (table for stream in streams[1:] for table in stream):
            about = table.schema.metadata
            event = f"{about[b'utracefs.system'].decode()}:{about[b'utracefs.event'].decode()}"
            tables.setdefault(event, []).append(table)
    except (pa.ArrowException, OSError, KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"no records of utracefs: {error}") from None
    return counts, tuple(losses), tables


class Reader:
    """Messages of a stream in their order. A context manager. after: begin behind this message."""

    def __init__(self, jetstream: JetStream, stream: str, *, after: int = 0) -> None:
        self.vanished: Counter[str] = Counter()
        """Host to number of gaps: the server had stored batches and lost them, or discarded them while this
        was reading. Their number of records is unknown."""
        self.invalid = 0
        """Number of messages of other programs, or damaged ones."""
        self.pending = 0
        """Most messages that are not read yet, as the server last reported."""
        self._jetstream: Final = jetstream
        self._stream: Final = stream
        self._at = after
        self._created = ""
        """The stream."""
        self._generation = -1
        """The connection."""
        self._last: dict[str, int] = {}
        """Forwarder to sequence."""

    def __enter__(self) -> Self:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left at the server."""

    def _look(self) -> None:
        found = self._jetstream.stream(self._stream)
        if self._created not in ("", found["created"]):
            self._at = 0  # another stream of that name
        self._created, self._generation = found["created"], self._jetstream.connection.generation
        state = found["state"]
        self.pending = max(0, min(state["last_seq"] - self._at, state["messages"]))

    def next(self, timeout_s: float) -> Arrived | None:
        """The next message; None: none came in time. OSError, ApiError: call again later, nothing is
        missed."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._generation != self._jetstream.connection.generation:
                self._look()
            stored = self._jetstream.next(self._stream, ">", self._at)
            if stored is None:
                self._look()
                self.pending = 0
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                time.sleep(min(left, _POLL_S))
                continue
            self.pending = max(0, self.pending - 1)
            self._at = stored.sequence
            try:
                arrived = Arrived.of(stored)
            except ValueError:
                self.invalid += 1
                continue
            last = self._last.get(arrived.forwarder)
            if last is not None and arrived.previous > last:
                self.vanished[arrived.host] += 1
            self._last[arrived.forwarder] = arrived.position.sequence
            return arrived
