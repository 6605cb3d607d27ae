"""`utracefs fleet stream` and `record`: the records of all hosts whose forwarders send to JetStream."""

import fnmatch
import json
import sys
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, Final

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import EVENT_PATTERN, Stopping, duration_option, tell
from utracefs.cli.fleet.options import fleet_options
from utracefs.fleet.buckets import Fleet
from utracefs.forward.nats_messages import Arrived, Reader
from utracefs.nats.errors import NotFound
from utracefs.nats.jetstream import JetStream
from utracefs.tree.event_names import EventName, matches

_LOOK_S: Final = 0.2
_COMMON: Final = ("time_ns", "cpu", "pid", "tid", "comm")

_stream = click.argument("stream", metavar="STREAM")
_events = click.argument("events", metavar="[EVENT...]", type=EVENT_PATTERN, nargs=-1)
_host = click.option("--host", metavar="GLOB", default="*", help="Only of these hosts.")


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@_host
@duration_option("End after this time.")
@_stream
@_events
def stream(fleet: Fleet, host: str, duration_s: float | None, stream: str, events: tuple[str, ...]) -> None:
    """Print the records that arrive in STREAM as lines of JSON, until Ctrl-C.

    STREAM is that of `utracefs forward nats://HOST/STREAM`. EVENTs: patterns; none: all. A record is as of
    `utracefs export --to jsonl`, with `host`; `time_ns` is the time of day by the clock of its host; null:
    the program's own time is before 1970 or after 2262."""
    state = _state(fleet, stream)
    _read(fleet, stream, state, sys.stdout.buffer, events, host, duration_s, is_stored=False)


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@click.option("-o", "--output", metavar="FILE", required=True, help="A file of JSON lines.")
@_host
@click.option("--stored", "is_stored", is_flag=True, help="What STREAM has now, instead of what arrives.")
@duration_option("End after this time.")
@_stream
@_events
def record(
    fleet: Fleet,
    output: str,
    host: str,
    is_stored: bool,
    duration_s: float | None,
    stream: str,
    events: tuple[str, ...],
) -> None:
    """Write the records that arrive in STREAM to a file, until Ctrl-C; the last line counts them.

    For Parquet files let the hosts forward to `parquet:` (docs/forward.md)."""
    state = _state(fleet, stream)
    with open(output, "wb") as out:
        _read(fleet, stream, state, out, events, host, duration_s, is_stored)


def _state(fleet: Fleet, name: str) -> dict[str, Any]:
    """State of a stream."""
    try:
        state: dict[str, Any] = JetStream(fleet.connection).stream(name)["state"]
    except NotFound:
        raise Failure(name, "there is no such stream; hosts `forward nats://HOST/STREAM` to it") from None
    return state


def _read(
    fleet: Fleet,
    name: str,
    state: dict[str, Any],
    out: BinaryIO,
    events: Collection[str],
    host: str,
    duration_s: float | None,
    is_stored: bool,
) -> None:
    jetstream = JetStream(fleet.connection)
    last = int(state["last_seq"])
    hosts = set()
    count = lost = unknown = 0
    with Stopping(duration_s) as stopped, Reader(jetstream, name, after=0 if is_stored else last) as reader:
        at = int(state["first_seq"]) - 1 if is_stored else 0
        while not stopped.has_come and not (is_stored and at >= last):
            arrived = reader.next(_LOOK_S)
            if arrived is None:
                with stopped.writing(out):
                    out.flush()
                if is_stored and not reader.pending:
                    break
                continue
            at = arrived.at
            if not fnmatch.fnmatchcase(arrived.host, host):
                continue
            hosts.add(arrived.host)
            with stopped.writing(out):
                for line in _lines(arrived, events):
                    out.write(line)
                    count += 1
            for loss in arrived.losses:
                if _selects(events, loss.event):
                    lost += loss.count or 0
                    unknown += loss.count is None
        with stopped.writing(out):
            out.flush()
    missing = unknown + sum(reader.vanished.values())
    tell(
        f"{count} records of {len(hosts)} hosts, {lost} reported as lost"
        + (f", and {missing} times an unknown number" if missing else "")
        + (f"; {reader.invalid} messages are not records of utracefs" if reader.invalid else "")
    )


def _selects(events: Collection[str], event: str) -> bool:
    """Losses of any event, `*`, concern all."""
    return not events or event == "*" or any(matches(one, EventName(*event.split(":", 1))) for one in events)


def _lines(arrived: Arrived, events: Collection[str]) -> Iterator[bytes]:
    to_unix = arrived.clock.unix_ns - arrived.clock.clock_ns
    for event, tables in arrived.tables.items():
        if not _selects(events, event):
            continue
        for table in tables:
            for row in table.to_pylist():
                line: dict[str, Any] = {"host": arrived.host, **{key: row.pop(key) for key in _COMMON}}
                if (time_ns := line["time_ns"]) is not None:
                    time_ns += to_unix
                    line["time_ns"] = time_ns if 0 <= time_ns < 1 << 63 else None
                system, _, name = event.partition(":")
                line |= {"system": system, "name": name, "fields": row}
                yield json.dumps(line, default=_plain, separators=(",", ":")).encode() + b"\n"


def _plain(value: object) -> object:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
