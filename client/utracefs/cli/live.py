"""`utracefs export --live`: records of the running daemon as JSON lines, as they come.

Losses stand where they were noticed, as in a file: {"lost": N}. Nothing is kept; a reader that is too slow
loses, and is told how much.
"""

import contextlib
import signal
import time
from collections.abc import Collection
from types import FrameType
from typing import BinaryIO, Final

import utracefs
from utracefs.event_names import ALL_USER_EVENTS
from utracefs.export import Exported
from utracefs.export._json_text import JsonText

__all__ = ["write_live"]

_PIECE_BYTES: Final = 256 << 10
_LOOK_S: Final = 0.2
"""How long records below the watermark wait."""


def write_live(
    directory: str | None,
    out: BinaryIO,
    events: Collection[str],
    cpus: Collection[int] | None,
    pids: Collection[int],
    duration_s: float | None,
) -> Exported:
    """Until SIGINT or SIGTERM, or for that long. OSError: no daemon is there, or `out` cannot be written."""
    end = None if duration_s is None else time.monotonic() + duration_s
    count = lost = 0
    stopped = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, stop))
        stream = stack.enter_context(
            utracefs.attach(
                list(events) or [ALL_USER_EVENTS],
                pids=list(pids) or None,
                cpus=cpus,
                directory=directory,
                timeout_s=_LOOK_S,
            )
        )
        while not stopped and (end is None or time.monotonic() < end):
            for batch in stream.batches():
                records = batch.records()
                text = JsonText(records)
                told = 0
                while piece := text.read(_PIECE_BYTES):
                    out.write(piece)
                out.flush()
                count += records.count
                told = records.lost
                missing = sum(batch.lost.values())
                if missing > told:  # behind the last record
                    out.write(b'{"lost":%d}\n' % (missing - told))
                lost += max(missing, told)
                if stopped or (end is not None and time.monotonic() >= end):
                    break
    return Exported(count, lost, stream.attached_again > 0)
