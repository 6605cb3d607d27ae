"""The output of `utracefs record -o`: a trace.dat, or another format that is converted from one at the end.

    out.dat      recorded directly
    out.jsonl    out.jsonl.recorded.dat is recorded, converted, and removed

Recording costs the same either way, and no record is lost if the conversion fails: the trace.dat stays, and
its name is printed. Errors that can be known in advance are reported before recording.
"""

import os
from collections.abc import Mapping
from typing import Final

import click

from utracefs.cli import Failure
from utracefs.cli.run.run_loop import Interrupted, interruptible
from utracefs_protocol.errors import TraceError

_TRACE_DAT: Final = ("", ".dat")
"""Endings that need no further import."""


class Target:
    """Created before the recording begins: Failure for an output that cannot be written, UsageError for an
    unknown ending and for stdout."""

    def __init__(self, output: str, like: str | None = None) -> None:
        """like: a path whose ending gives the format instead."""
        if output == "-":
            raise click.UsageError("-o needs a file that can be renamed into place, not stdout")
        self.output: Final = output
        ending = output if like is None else like
        self._kind = "trace.dat"
        if os.path.splitext(ending)[1] not in _TRACE_DAT or ending.endswith("/"):
            from utracefs.cli.convert.export import check_target, format_of

            self._kind = format_of(ending)
            if self.is_converted:
                check_target(self._kind, output)
        elif os.path.isdir(output):
            raise Failure(output, "is a directory; CTF goes into a new one")
        self.path: Final = f"{os.path.realpath(output)}.recorded.dat" if self.is_converted else output
        if self.is_converted and os.path.lexists(self.path):
            raise Failure(self.path, "is in the way: of a recording that was not converted")

    @property
    def is_converted(self) -> bool:
        return self._kind != "trace.dat"

    def check_clock(self, clock: str) -> None:
        """TraceError: the format cannot express its times."""
        if self.is_converted:
            from utracefs.cli.convert.export import FORMATS

            if check := FORMATS[self._kind].check_clock:
                check(self.output, clock)

    def finish(self, size: int, tgids: Mapping[int, int]) -> int:
        """Convert the recording; returns the size of the output in bytes. tgids: threads to their processes.
        Failure, and the trace.dat stays: it cannot be written, or a signal came (128 + N)."""
        if not self.is_converted:
            return size
        import utracefs
        from utracefs.cli.convert.conversion import tell_if_moved
        from utracefs.cli.convert.export import convert
        from utracefs.cli.losses import no_room
        from utracefs.export import Tracks

        try:
            with interruptible(), utracefs.open(self.path) as recording:
                recording.files[0].tgids = tgids
                tell_if_moved(self.output, recording.origin)
                done = convert(recording, self._kind, self.output, Tracks())
            if done.error is not None:
                raise no_room(self.output, done.error, done.no_room, "records")
        except (OSError, TraceError, Failure, Interrupted) as error:
            reason = {OSError: "strerror", TraceError: "text", Failure: "reason"}
            text = next(
                (getattr(error, name) for kind, name in reason.items() if isinstance(error, kind)), ""
            )
            why = text or "was interrupted"
            status = 128 + error.number if isinstance(error, Interrupted) else 1
            raise Failure(
                self.output, f"{why}; the recording is in {self.path}, `utracefs export` converts it", status
            ) from None
        os.unlink(self.path)
        return _size(self.output)


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(
        os.stat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names
    )
