"""`utracefs export --live`, `stream --json`: records of the running daemon as JSON lines, while they are
emitted.

Losses are printed where they were noticed, as in a file: {"lost": N}. Records are not stored; a reader that
is too slow loses some, and gets their number.
"""

from collections.abc import Collection
from typing import BinaryIO, Final

import utracefs
from utracefs.cli.common import Stopping, connect, tell, tell_absent
from utracefs.cli.filter_errors import about_the_requested_filter, check_syntax
from utracefs.cli.instance_option import TOP, Place
from utracefs.cli.losses import Losing
from utracefs.cli.run.page_stream import fitting_ring_bytes
from utracefs.cli.tables import counted
from utracefs.export import Exported
from utracefs.export._json_text import JsonText
from utracefs.recordings.partial_files import NO_ROOM
from utracefs.tree.event_names import ALL_USER_EVENTS

_PIECE_BYTES: Final = 64 << 10
_LOOK_S: Final = 0.2
"""Maximum delay of records below the watermark."""


def write_live(
    directory: str | None,
    out: BinaryIO,
    events: Collection[str] = (),
    *,
    filter: str | None = None,
    place: Place = TOP,
    cpus: Collection[int] | None = None,
    pids: Collection[int] = (),
    duration_s: float | None = None,
) -> Exported:
    """Run until SIGINT or SIGTERM, or for the given time. events: patterns; none: all. place: only events
    enabled in that instance. OSError: no daemon, or `out` cannot be written. Failure: the filter is invalid
    for all events."""
    check_syntax(", ".join(events), filter, ())
    with connect(directory, place) as tree:
        found = tree.directory
        tell_absent(tree, events, "yet; waiting for it")
    count = lost = times = unprinted = 0
    was_there = True
    losing = Losing(
        "live", ("before they were printed", "a faster reader, or UTRACEFS_RING_KB=65536 for the program")
    )
    with (
        Stopping(duration_s) as stopped,
        about_the_requested_filter(filter),
        utracefs.attach(
            list(events) or [ALL_USER_EVENTS],
            filter=filter,
            instances=() if place == TOP else [place.name],
            pids=list(pids) or None,
            cpus=cpus,
            directory=found,
            ring_bytes=fitting_ring_bytes(),
            timeout_s=_LOOK_S,
        ) as stream,
    ):
        while not stopped.has_come:
            for batch in stream.batches():
                if stream.attached_again != times:
                    times = stream.attached_again
                    tell("the daemon was restarted; records of that time may be missing")
                records = batch.records(release=True)
                text = JsonText(records)
                missing = sum(batch.lost.values())
                try:
                    with stopped.writing(out):
                        while piece := text.read(_PIECE_BYTES):
                            out.write(piece)
                        # Flush each batch: the reader of a pipe waits for lines, not for full buffers.
                        if missing > records.lost:  # behind the last record
                            out.write(b'{"lost":%d}\n' % (missing - records.lost))
                        out.flush()
                except OSError as error:
                    if error.errno in NO_ROOM:
                        records.events()  # counts the rest
                        tell(f"not printed: up to {counted(records.count, 'record')}, and all later ones")
                    raise
                if stopped.is_cut_off:
                    unprinted = records.count
                else:
                    count += records.count
                lost += max(missing, records.lost)
                losing.look(count + lost, {"before they were printed": lost})
                if stopped.has_come:
                    break
            if was_there and not stream.is_attached:
                tell("the daemon has ended; waiting for the next one")
            was_there = stream.is_attached
        # Records since the last look are not printed any more, but they must not be lost silently.
        stream.timeout_s = 0
        if (rest := next(stream.batches(), None)) is not None:
            records = rest.records()
            records.events()  # counts them
            lost += max(sum(rest.lost.values()), records.lost)
            unprinted += records.count
        if unprinted:
            tell(f"not printed when it ended: {unprinted} more")
        if not stream.is_attached:
            tell("no daemon came back; later records are missing")
        is_whole = stream.is_attached and not times
    return Exported(count, lost, lost_uncounted=not is_whole)
