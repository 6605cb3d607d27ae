"""`record --switch-output`: successive files of one recording, as perf record(1) has them.

    trace_pipe_raw ──▶ trace.dat.part ──▶ trace.dat.YYYYMMDDhhmmssNN     at a size, a time, SIGUSR2
                  └──▶ trace.dat.part.2 ──▶ ...

A page goes into one file, so no record is lost or written twice at a switch. A thread writes the finished
file, since it may be large, while the next one is recorded. One file at a time: a switch waits for it.

Without space for the next file the present one continues, and loses what does not fit, as any recording.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from utracefs.cli import Failure, error_text
from utracefs.cli.common import tell
from utracefs.cli.losses import AS_FAR_AS_REPORTED, LOSSES, disk_was_full, lost_text, refused_text
from utracefs.cli.record.amount import Amount
from utracefs.cli.record.kept_files import KeptFiles
from utracefs.cli.run.recorder import About, Recorder, Summary
from utracefs.cli.tables import counted, sized
from utracefs.recordings.partial_files import NO_ROOM, dumped_name
from utracefs.tree.closing import Closing

_NICE: Final = 10
_SIZE_S: Final = 0.02
"""Time between looks at the size of the file."""
RETRY_S: Final = 1.0
"""Time until the next attempt, when there was no space for the next file."""


def _yield_to_the_reader() -> None:
    """Lower the priority of this thread: compressing must not keep the reader from the ring buffer."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class Rotation(Closing):
    """A context manager: at its end the last file but one is complete."""

    def __init__(self, recorder: Recorder, output: str, at: Amount, most: int | None, about: About) -> None:
        self._recorder = recorder
        self._output = output
        self._at = at
        self._about = about
        self._files = KeptFiles(most)
        self._thread = ThreadPoolExecutor(1, initializer=_yield_to_the_reader)
        self._writing: Future[tuple[str, Summary]] | None = None
        self._begun = time.monotonic()
        self._retry_at = 0.0
        self._asked = False
        self.written: Final[list[int]] = [0, 0, 0]
        """Files, records and bytes of complete files."""
        self._losses = dict.fromkeys((loss.name for loss in LOSSES), 0)
        self._refused: dict[str, int] = {}
        self.error: Exception | None = None
        """Why a file could not be written."""

    def close(self) -> None:
        self._thread.shutdown()

    def ask(self) -> None:
        """Switch at the next step: SIGUSR2."""
        self._asked = True

    def step(self) -> float:
        """Call it after each step of the recorder: switches if it is time. Returns the longest time until the
        next call, in seconds."""
        now = time.monotonic()
        if self._writing is not None and self._writing.done():
            self._collect()
        left = self._begun + self._at.seconds - now if self._at.seconds else 1.0
        due = (
            self._asked
            or (self._at.size and self._recorder.writer.size >= self._at.size and self._recorder.has_records)
            or (self._at.seconds and left <= 0)
        )
        if due and self._writing is None and now >= self._retry_at:
            self._switch(now)
        return max(min(left, _SIZE_S) if self._at.size else left, 0.01)

    def _switch(self, now: float) -> None:
        try:
            finish = self._recorder.switch(self._about)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if not self._retry_at:
                tell(f"{self._output}: {error.strerror}; the present file continues")
            self._retry_at = now + RETRY_S
            return
        self._asked = False
        self._retry_at = 0.0
        self._begun = now
        self._writing = self._thread.submit(self._write, finish)

    def _write(self, finish: Callable[[Callable[[], str]], Summary]) -> tuple[str, Summary]:
        """In the thread."""
        names: list[str] = []

        def name() -> str:
            names.append(dumped_name(self._output))
            return names[-1]

        summary = finish(name)
        return names[-1], summary

    def _collect(self) -> None:
        """Take the result of the thread."""
        assert self._writing is not None
        writing, self._writing = self._writing, None
        try:
            path, summary = writing.result()
        except OSError as error:
            self.error = self.error or error
            tell(error_text(error))
        else:
            self._note(path, summary)

    def _note(self, path: str, summary: Summary) -> None:
        self._files.add(path)
        for index, count in enumerate((1, summary.records, summary.size)):
            self.written[index] += count
        for name, count in summary.losses.items():
            self._losses[name] += count
        for reason, count in summary.refused.items():
            self._refused[reason] = self._refused.get(reason, 0) + count
        lost = f", {lost_text(summary.losses)}" if summary.lost else ""
        tell(f"{path}: {counted(summary.records, 'record')}, {sized(summary.size)}{lost}")

    def finish(self) -> None:
        """Write the last file, and print the totals. OSError."""
        if self._writing is not None:
            self._collect()
        self._note(*self._write(lambda name: self._recorder.finish(self._about, name)))
        files, records, size = self.written
        removed = f" ({self._files.removed} removed, --max-files)" if self._files.removed else ""
        known = AS_FAR_AS_REPORTED if self._recorder.came_back else ""
        tell(
            f"{self._output}.*: {counted(records, 'record')} in {counted(files, 'file')}{removed},"
            f" {sized(size)}, {lost_text(self._losses)}{known}{refused_text(self._refused)}"
        )

    def failure(self, status: int) -> Failure | None:
        """Why not all records are in the files."""
        if self.error is not None:
            return Failure(self._output, "a file could not be written; see above", status or 1)
        if no_room := self._losses["no_room"]:
            return disk_was_full(self._output, no_room, status or 1)
        return None
