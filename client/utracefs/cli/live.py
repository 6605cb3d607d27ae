"""`utracefs stream --json`: records of a stream, a JSON line each (export/_json_text)."""

import sys
from collections.abc import Sequence

import click

import utracefs
from utracefs.cli.common import connect
from utracefs.cli.place import TOP, Place
from utracefs.cli.wanted import Wanted
from utracefs.event_names import ALL_USER_EVENTS
from utracefs.export._json_text import JsonText

__all__ = ["live_json"]

_PIECE_BYTES = 1 << 18


def live_json(directory: str | None, place: Place, wanted: Sequence[Wanted], cpu: int | None) -> None:
    """Until an exception ends it, KeyboardInterrupt for one; what was lost is told then, on stderr."""
    filters = {one.filter for one in wanted}
    if len(filters) > 1 or any(one.triggers for one in wanted):
        raise click.UsageError("--json takes one --filter for all -e, and no --trigger")
    with connect(directory, place) as tree:
        found = tree.directory
    stream = utracefs.attach(
        [one.pattern for one in wanted] or ALL_USER_EVENTS,
        filter=next(iter(filters), "") or None,
        instances=() if place == TOP else [place.name],
        cpus=None if cpu is None else [cpu],
        directory=found,
    )
    out = sys.stdout.buffer
    times = 0
    try:
        with stream:
            for batch in stream.batches():
                if stream.attached_again != times:
                    times = stream.attached_again
                    click.echo("utracefs: the daemon was away; records of that time may be missing", err=True)
                text = JsonText(batch.records())
                while piece := text.read(_PIECE_BYTES):
                    out.write(piece)
                out.flush()
    finally:
        for event, count in sorted(stream.lost.items()):
            click.echo(f"utracefs: {event}: {count} records lost", err=True)
