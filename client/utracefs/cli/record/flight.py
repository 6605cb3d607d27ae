"""`record --flight`: keep the last records in the ring buffer, for weeks, and write them when something
happens.

    SIGUSR2, a request (requests.py), the end
        │
    snapshot: swap ──▶ snapshot_raw ──▶ FILE.YYYYMMDDhhmmssNN      then the spare is cleared
        │
    recording continues in the other half

So a swap begins the next file at once: no record is lost in between, and none is in two files. A file has the
records since the one before it, as far back as the ring buffer reaches.

Only this process swaps. If a file cannot be written, its records stay in the spare, and the next request
writes them first. If the daemon ends meanwhile, the next one has the other half and the unread part of the
snapshot, and the file continues with that.
"""

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs

from utracefs.cli import Failure, error_text
from utracefs.cli.common import buffer_numbers, cpu_numbers, cpus_of, tell
from utracefs.cli.event_options import CHECK_S, Wanted, WantedEvents
from utracefs.cli.instance_option import TOP
from utracefs.cli.losses import (
    AS_FAR_AS_REPORTED,
    IN_DATA_RINGS,
    TOO_LARGE,
    TOO_LARGE_IN_RING_BUFFER,
    Losing,
    disk_was_full,
    lost_text,
    refused_text,
)
from utracefs.cli.record.amount import Amount
from utracefs.cli.record.job import Job
from utracefs.cli.record.kept_files import KeptFiles
from utracefs.cli.record.requests import SUFFIX, TRIGGER_SUFFIX, Requests, is_snapshot
from utracefs.cli.record.target import Target
from utracefs.cli.run.ledger import Account, Ledger
from utracefs.cli.run.own_instance import own_instance
from utracefs.cli.run.recorder import TEXTS_S, Recorder
from utracefs.cli.run.texts import Texts
from utracefs.cli.run.watch import Watch, come_back
from utracefs.cli.tables import counted, sized
from utracefs.recordings.partial_files import dumped_name
from utracefs.tree.event_names import ALL_USER_EVENTS
from utracefs.tree.tracefs import Tracefs

_DEFAULT_MOST: Final = 10
"""Default of --max-files."""
_DEFAULT_SIZE: Final = 64 << 20
"""Default size of all cpus' buffers for `--flight TIME`."""


def flight_settings(tree: Tracefs, window: Amount) -> dict[str, str]:
    """Values of its instance's files: buffers of `window.size` for all cpus together."""
    size_kb = (window.size or _DEFAULT_SIZE) // len(cpus_of(tree, TOP)) // 1024
    return {"buffer_size_kb": str(max(size_kb, 1)), "options/overwrite": "1"}


def _split_triggers(wanted: Sequence[Wanted]) -> tuple[list[Wanted], list[Wanted]]:
    """The same events without `snapshot` triggers, and with these alone."""
    parts = []
    for wants in (False, True):
        parts.append(
            [
                attrs.evolve(one, triggers=tuple(t for t in one.triggers if is_snapshot(t) is wants))
                for one in wanted
            ]
        )
    return parts[0], parts[1]


@attrs.frozen
class _Taken:
    """A snapshot that is to be written."""

    entries: int
    overwritten: int
    """Records before them, which were overwritten."""
    since: int
    """Time of the begin of the window, 0: all."""
    full: tuple[int, ...]
    """cpus whose ring overwrote records."""


class Flight:
    """Call `step` while it runs, `dump` to write the records, `finish` at the end."""

    def __init__(self, job: Job, requests: Requests) -> None:
        tree, place, window = job.tree, job.place, job.long.flight
        assert window is not None
        self._tree = tree
        self._place = place
        self._requests = requests
        self._output = job.target.output.rstrip("/")
        self._like = job.target.output
        self._window = window
        self._compression = job.long.compression
        self.texts = Texts(tree, place)
        self._about = job.about(self.texts)
        self._files = KeptFiles(job.long.most or _DEFAULT_MOST)
        self._ledger = Ledger(tree, place)
        self._losing = Losing(self._output, IN_DATA_RINGS, TOO_LARGE_IN_RING_BUFFER)
        self._account = Account()
        self._reported = Account()
        self._taken: _Taken | None = None
        self._unfinished: tuple[Target, Recorder] | None = None
        """A file whose snapshot was being read when the daemon ended."""
        self._texts_due = 0.0
        self._records = self._older = self.no_room = self._number = 0
        self._missed = 0
        """Records that the ended daemon had removed from a snapshot and that did not reach this process."""
        self._came_back = False
        tree.write_file(place.path("snapshot"), b"1\n")  # makes the spare: ENOMEM would come now
        if window.seconds and self._now_ns() is None:
            raise Failure(
                "trace_clock", f"{self.texts.clock} does not count time; --flight needs a SIZE with it"
            )

    def come_back(self) -> None:
        """Call it when the tree is connected to the next daemon: writes the records of the ended one."""
        self._came_back = True
        gone = self._ledger.come_back()
        if self._taken is None:  # perhaps the daemon swapped before it ended
            spare = self._snapshot(*self._window_now())
            self._taken = spare if spare.entries else None
            if gone and self._taken is None:
                self._missed += gone
                tell(f"{self._output}: the ring buffer did not come back; {counted(gone, 'record')} lost")
        self._try(self.dump)

    def step(self) -> float:
        """Read texts, carry out requests; returns the seconds until the next call."""
        now = time.monotonic()
        if now >= self._texts_due:
            self._read_texts()
            self._texts_due = now + TEXTS_S
        ids = self._requests.read()
        if ids is not None:
            text = self._try(self.dump)
            self._requests.answer(ids, text)
        return CHECK_S

    def _try(self, dump: Callable[[], str]) -> str:
        """Its text; a file that cannot be written ends nothing."""
        try:
            return dump()
        except (ConnectionError, TimeoutError):
            raise
        except (Failure, OSError) as error:
            text = error_text(error)
        tell(text)
        return f"failed: {text}"

    def _read_texts(self) -> None:
        self.texts.read()
        self._account = self._ledger.read()
        emitted = self._account.recorded + self._account.lost
        self._losing.look(
            emitted, {"in data rings": self._account.in_rings, TOO_LARGE: self._account.too_large}
        )

    def dump(self) -> str:
        """Write the records since the last file; returns the text of the summary, which is also printed.
        Failure, OSError: not written."""
        self._read_texts()
        texts = []
        if self._taken is not None:
            texts.append(self._write(self._taken))
        self._taken = self._swap()
        texts.append(self._write(self._taken))
        return "; ".join(filter(None, texts))

    def _swap(self) -> _Taken:
        window = self._window_now()
        self._tree.write_file(self._place.path("snapshot"), b"1\n")
        return self._snapshot(*window)

    def _window_now(self) -> tuple[int, tuple[int, ...]]:
        """`since` and `full` of a snapshot."""
        now_ns = self._now_ns() if self._window.seconds else None
        since = 0 if now_ns is None else max(now_ns - self._window.seconds * 10**9, 0)
        found = cpu_numbers(self._tree, self._place)
        return since, tuple(cpu for cpu, counts in found.items() if counts.get("overrun"))

    def _snapshot(self, since: int, full: tuple[int, ...]) -> _Taken:
        """The snapshot that the spare holds now."""
        handle = self._tree.open(self._place.path("snapshot"))
        try:
            head = self._tree.read(handle, 4096)
        finally:
            self._tree.close_handle(handle)
        found = re.search(rb"entries-in-buffer/entries-written: (\d+)/(\d+)", head)
        entries, written = (int(found[1]), int(found[2])) if found else (0, 0)
        return _Taken(entries, written - entries, since, full)

    def _now_ns(self) -> int | None:
        """Present time of the clock, to the microsecond; None: it does not count nanoseconds."""
        text = self._tree.read_file(self._place.path("per_cpu/cpu0/stats"))
        found = re.search(rb"^now ts: *(\d+)\.(\d{6})$", text, re.MULTILINE)
        return int(found[1]) * 10**9 + int(found[2]) * 1000 if found else None

    def _write(self, taken: _Taken) -> str:
        """Write a snapshot, and clear it."""
        if not taken.entries:
            self._end(taken, 0)
            text = f"{self._output}: no record since the last file, so none is written"
            tell(text)
            return text
        target, recorder = self._unfinished or self._new_file(taken)
        self._unfinished = None
        with contextlib.ExitStack() as stack:
            stack.enter_context(recorder)
            try:
                recorder.drain()
                self._end(taken, recorder.left_out)
            except (ConnectionError, TimeoutError):
                stack.pop_all()
                self._unfinished = target, recorder
                raise
            self._reported = recorder.account
            return self._complete(taken, target, recorder)

    def _new_file(self, taken: _Taken) -> tuple[Target, Recorder]:
        target = Target(dumped_name(self._output), like=self._like)
        return target, Recorder(
            self._tree,
            target.path,
            self._place,
            snapshot=True,
            texts=self.texts,
            since=taken.since,
            ledger=self._ledger,
            reported=self._reported,
            compression=self._compression,
        )

    def _complete(self, taken: _Taken, target: Target, recorder: Recorder) -> str:
        """Write the file; returns its text. Sends no request to the daemon."""
        found = recorder.finish(self._about, entries=taken.entries)
        size = target.finish(found.size, self.texts.tgids)
        self._files.add(target.output)
        self._number += 1
        self._records += found.records
        self.no_room += found.no_room
        self._missed += found.overwritten
        older = taken.overwritten + recorder.left_out
        text = (
            f"{target.output}: {counted(found.records, 'record')}, {sized(size)}, {lost_text(found.losses)}"
        )
        text += f"; {counted(older, 'older record')} overwritten" if older else ""
        if late := [cpu for cpu in taken.full if recorder.begins.get(cpu, 0) > taken.since > 0]:
            text += f"; {counted(len(late), 'cpu')} had no space for {self._window.text}: -b KB"
        tell(text)
        return text

    def give_up(self) -> None:
        """No daemon comes back: complete the unfinished file with the part of its snapshot that was read."""
        if self._unfinished is not None and self._taken is not None:
            with self._unfinished[1]:
                self._complete(self._taken, *self._unfinished)

    def _end(self, taken: _Taken, left_out: int) -> None:
        """The records of the snapshot have been read."""
        self._tree.write_file(self._place.path("snapshot"), b"2\n")
        self._account = self._ledger.read()  # of the other half
        self._taken = None
        self._older += taken.overwritten + left_out

    def finish(self, *, write: bool, why_not: str) -> None:
        """Call it when recording has stopped; prints the totals. write: write the last records. Failure,
        OSError: they could not be written."""
        failure: Failure | OSError | None = None
        ids = self._requests.read()
        self._read_texts()
        left = 0
        if write or ids is not None or self._taken is not None:
            try:
                text = self.dump()
            except (ConnectionError, TimeoutError):
                raise
            except (Failure, OSError) as error:
                failure, text, why_not = error, "failed", "the file could not be"
                left = buffer_numbers(self._tree, self._place)["entries"]
                left += self._taken.entries if self._taken else 0
            self._requests.answer(ids or (), text)
        else:
            taken = self._swap()
            left = taken.entries
            self._older += taken.overwritten
        losses = {"in_rings": self._account.in_rings, "no_room": self.no_room, "overwritten": self._missed}
        losses["too_large"] = self._account.too_large
        text = f"{self._output}.*: {counted(self._records, 'record')} in {counted(self._number, 'file')}"
        text += f" ({self._files.removed} removed, --max-files)" if self._files.removed else ""
        known = AS_FAR_AS_REPORTED if self._came_back else ""
        text += f", {lost_text(losses)}{known}{refused_text(self._account.refused)}"
        text += f"; {counted(self._older, 'older record')} overwritten" if self._older else ""
        text += f"; the last {counted(left, 'record')} not written: {why_not}" if left else ""
        tell(text)
        if failure is not None:
            raise failure


def record_flight(job: Job) -> int:
    """Run until the command or the recording ends; returns the exit status. The instance of `job` has the
    flight_settings."""
    plain, triggers = _split_triggers(job.wanted or (Wanted(ALL_USER_EVENTS),))
    has_triggers = any(one.triggers for one in triggers)
    with contextlib.ExitStack() as stack:
        places = [
            stack.enter_context(
                own_instance(job.tree, "flight", job.place.name + suffix, returns=job.returns)
            )
            for suffix in (SUFFIX, TRIGGER_SUFFIX)[: 1 + has_triggers]
        ]
        requests = Requests(job.tree, places[0], places[1] if has_triggers else None, triggers)
        asked = WantedEvents(job.tree, job.place, plain)
        flight = Flight(job, requests)
        job.target.check_clock(flight.texts.clock)
        asked.begin()
        requests.wanted.begin()
        job.tell_that_it_runs()
        back = partial(come_back, job.tree, job.place, *places)
        watch = Watch(flight, asked, back if job.returns else None)
        if job.ends_with_pids:
            watch.after_step.append(job.until_pids_end)

        def dump() -> None:
            with watch.until_the_daemon_goes():
                flight.dump()

        status = watch.run(lambda step: job.run(step, dump))
        with watch.until_the_daemon_goes():
            job.tree.write_file(job.place.path("tracing_on"), b"0\n")
            flight.finish(write=bool(status) or not job.command, why_not="the command did not fail")
            asked.check()
            asked.check_registrations()
    status = status or asked.finish() or requests.wanted.finish()
    if watch.error is not None:
        flight.give_up()
        reason = f"{watch.error.strerror}; the records since the last file are lost"
        raise Failure(str(watch.error.filename), reason, status or 1)
    if flight.no_room:
        raise disk_was_full(job.target.output, flight.no_room, status or 1)
    return status
