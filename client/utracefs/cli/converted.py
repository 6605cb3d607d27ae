"""What `utracefs record -o` names: a trace.dat, or another format that is made of one at the end.

    out.dat      recorded as it is
    out.jsonl    out.jsonl.recorded.dat is recorded, converted, and removed

Recording costs the same either way, and nothing is lost where the conversion fails: the trace.dat stays, and
its name is told. What can be known to fail does so before anything is recorded.
"""

import os
from collections.abc import Mapping
from typing import Final

from utracefs.cli import Failure
from utracefs_protocol.errors import TraceError

__all__ = ["Target"]

_TRACE_DAT: Final = ("", ".dat")
"""Endings for which nothing else is imported."""


class Target:
    """Made before the recording begins: Failure for what cannot be written, UsageError for an unknown
    ending."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._kind = "trace.dat"
        if os.path.splitext(output)[1] not in _TRACE_DAT or output.endswith("/"):
            from utracefs.cli.export import check_target, format_of

            self._kind = format_of(output)
            if self.is_converted:
                check_target(self._kind, output)
        elif os.path.isdir(output):
            raise Failure(output, "is a directory; CTF goes into a new one")
        self.path: Final = f"{os.path.realpath(output)}.recorded.dat" if self.is_converted else output
        """Where to record to."""
        if self.is_converted and os.path.lexists(self.path):
            raise Failure(self.path, "is in the way: of a recording that was not converted")

    @property
    def is_converted(self) -> bool:
        return self._kind != "trace.dat"

    def finish(self, size: int, tgids: Mapping[int, int]) -> int:
        """Convert what was recorded; the size of what there is then, in bytes. tgids: threads to their
        processes. Failure, and the trace.dat stays: it cannot be written."""
        if not self.is_converted:
            return size
        import utracefs
        from utracefs.cli.export import convert
        from utracefs.export import Tracks

        try:
            with utracefs.open(self.path) as recording:
                recording.tgids = tgids
                convert(recording, self._kind, self._output, Tracks())
        except (OSError, TraceError, Failure, KeyboardInterrupt) as error:
            reason = {OSError: "strerror", TraceError: "text", Failure: "reason"}
            text = next(
                (getattr(error, name) for kind, name in reason.items() if isinstance(error, kind)), ""
            )
            why = text or "was interrupted"
            raise Failure(self._output, f"{why}; the recording is in {self.path}") from None
        os.unlink(self.path)
        return _size(self._output)


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(
        os.stat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names
    )
