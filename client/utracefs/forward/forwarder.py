"""The forwarder: a daemon's records into a spool, and from there to a target.

    daemon ─▶ stream ring ─▶ thread "read": Cutter, policy ─▶ Spool ─▶ thread "send" ─▶ Target

The reader never waits for the target, and for the disk only while it writes. Each second the thread that runs
`run` syncs the spool and writes the status."""

import contextlib
import json
import os
import random
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from utracefs.forward._body import Cutter, Edit
from utracefs.forward.batch import Batch
from utracefs.forward.losses import LIMIT, POLICY, RING, SAMPLE, Marks, Selection
from utracefs.forward.policy import Policy, Rate, Verdict
from utracefs.forward.spool import SEGMENTS, Spool
from utracefs.forward.target import Refused, Target, TryAgain, reason
from utracefs.recordings.origin import Origin, read_clocks
from utracefs.streaming import Batch as RingBatch
from utracefs.streaming import Stream, attach
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.places import TRACEFS_SOCKET
from utracefs_protocol.text import text_of

RING_BYTES: Final = 8 << 20
"""Size of the stream's ring: an eighth of a second of a million records a second."""

STATUS_FILE: Final = "status.json"
"""In the spool's directory."""

GATHER_S: Final = 1.0
"""Longest interval of reading records, and greatest age of the status."""

BACK_OFF_S: Final = (0.2, 30.0)
"""Delays after failures of the target: the first one, doubled each time up to the last one, each multiplied
by a random number from 0.5 to 1."""

WAIT_FOR_DAEMON_S: Final = 0.5

_LAST_READ_S: Final = 0.1
"""Time limit for emptying the ring at the end: programs may emit without a pause."""

_END_S: Final = 5.0
"""Time limit of the reader's end if the daemon hangs."""

_QUIET_S: Final = 60.0
"""Losses of the spool are reported again after that time without any."""

_LOOK_S: Final = 0.2
"""Interval at which the sender checks for the end."""


@attrs.frozen
class Wanted:
    """The records to forward; see `utracefs.attach`."""

    events: Sequence[str] = ()
    """Empty: those of the policy."""
    filter: str | None = None
    instances: Sequence[str] = ()
    directory: str | None = None
    filtered: bool = False
    """The filters are in the instance (there is one), which another thread makes: wait for it."""


class Forwarder:
    """tell: gets lines for people. watch: gets the status each second. drain_s: at the end, how long to send.
    host: its name, if not the system's. sample: event to n, of which one of n records is forwarded. The spool
    and the target remain the caller's."""

    def __init__(
        self,
        target: Target,
        spool: Spool,
        wanted: Wanted,
        *,
        policy: Policy | None = None,
        address: str = "",
        drain_s: float = 5.0,
        host: str = "",
        sample: Callable[[EventName], int] | None = None,
        tell: Callable[[str], None] = lambda _: None,
        watch: Callable[[dict[str, Any]], None] = lambda _: None,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self._target: Final = target
        self.spool: Final = spool
        self._policy: Final = policy or Policy()
        self._wanted: Final = wanted
        self._address: Final = address
        self.drain_s: Final = drain_s
        # Each batch carries host and boot, so that a target can tell the times of two boots apart.
        here = Origin.here("mono")
        self.host: Final = Origin(host or here.host).host  # without bytes that are not UTF-8
        self._boot_id: Final = here.boot_id
        self._sample: Final = sample
        self._tell: Final = tell
        self._watch: Final = watch
        self._ring_bytes: Final = ring_bytes
        # For the thread that reads: what it may take, and how it cuts batches.
        self._rate: Final = Rate(self._policy.max_records_per_s, time.monotonic())
        self._described: dict[int, tuple[str, bytes]] = {}
        self._events: dict[int, tuple[EventName, Verdict]] = {}
        """Event id to name, and what the policy says about it."""
        self._is_after_gap = False
        self._lost_at = -_QUIET_S
        """When a batch could not be stored."""
        self._restarts = 0
        # It is stored with the marks, too: records of other events are not lost while no forwarder runs.
        self._selection: Final = Selection(
            wanted.events or [e for e in self._policy.events if e != "*:*"] or [ALL_USER_EVENTS],
            self._policy.events,
            is_whole=wanted.filter is None and not wanted.instances,
        )
        # Not larger than what a full spool drops at once, whatever the target would take.
        self._cutter: Final = Cutter(
            self._allows,
            target.limits.records,
            min(target.limits.bytes, spool.size // SEGMENTS),
            None if sample is None else self._every,
        )
        # For the three threads: one reads, one sends, and the caller's waits in `run` for both.
        self._is_ending = False
        self._is_asked = False
        """Whether to print the status."""
        self._bell = -1
        """Wakes `run`. No Event: a handler may interrupt its methods, which have a lock then."""
        self.read_over: Final = threading.Event()
        self._keeps_up = threading.Event()
        """Not set while much of the ring waits for the reader: sending would keep it from the interpreter."""
        self._keeps_up.set()
        self._give_up = threading.Event()
        """Set when the time to drain is over."""
        self._fatal: BaseException | None = None
        # Counts and texts for `status`, since the start.
        self._read = self._sent = self._batches = 0
        self._read_of: Counter[str] = Counter()
        self._last_error = ""
        self._noted = ""
        """The last note of the target that people saw."""
        self._last_sent = 0.0
        self._is_attached = False

    def stop(self) -> None:
        """End `run`. For signal handlers and other threads, as `tell_status`."""
        self._is_ending = True
        self._ring()

    def tell_status(self) -> None:
        self._is_asked = True
        self._ring()

    def _ring(self) -> None:
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def run(self, duration_s: float | None = None) -> None:
        """Forward until `stop` is called, or for that time. OSError: the daemon refuses the stream."""
        end = None if duration_s is None else time.monotonic() + duration_s
        if self.spool.error:
            self._tell(self.spool.error)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        reader, sender = (
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("read", self._reading), ("send", self._sending))
        )
        reader.start()
        sender.start()
        try:
            while not self._is_ending:
                left = GATHER_S if end is None else min(GATHER_S, end - time.monotonic())
                if left <= 0:
                    break
                if select.select([self._bell], [], [], left)[0]:
                    os.eventfd_read(self._bell)
                self._look_after()
        finally:
            self._is_ending = True
            reader.join(_END_S)
            self.read_over.set()
            sender.join(self.drain_s)
            self._give_up.set()
            # It is in the middle of a request: its batches are sent again by the next forwarder.
            sender.join(1)
            self._look_after()
            bell, self._bell = self._bell, -1
            os.close(bell)
        if self._fatal is not None:
            raise self._fatal

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 (raised by `run`)
            self._fatal = self._fatal or error
            self.stop()

    def _look_after(self) -> None:
        if self._is_asked:
            self._is_asked = False
            for name, value in self.status().items():
                self._tell(f"{name}: {_shown(value)}")
        self.spool.sync()
        self._watch(self.status())
        path = self.spool.directory / STATUS_FILE
        with contextlib.suppress(OSError):  # the disk is full: the last status is old
            path.with_suffix(".new").write_text(json.dumps(self.status()) + "\n")
            path.with_suffix(".new").replace(path)

    def status(self) -> dict[str, Any]:
        """Counts since the start; docs/forward.md describes the members."""
        return {
            "version": 1,
            "pid": os.getpid(),
            "target": self._address,
            "forwarder": self.spool.forwarder,
            "time": time.time(),
            "attached": self._is_attached,
            "records_read": self._read,
            "events": dict(self._read_of),
            "records_sent": self._sent,
            "batches_sent": self._batches,
            "lost": self.spool.lost,
            "lost_unknown": self.spool.lost_unknown,
            "spool_bytes": self.spool.used_bytes,
            "spool_size": self.spool.size,
            "lag_s": round(self.spool.lag_s, 3),
            "last_sent": self._last_sent,
            "last_error": self._last_error or self.spool.error,
        }

    # Reading

    def _reading(self) -> None:
        stream = attach(
            self._selection.patterns,
            filter=self._wanted.filter,
            instances=self._wanted.instances,
            directory=self._wanted.directory,
            ring_bytes=self._ring_bytes,
            watermark=max(1, min(self._target.limits.bytes * 7 // 8, RING_BYTES // 8)),  # mostly one batch
            timeout_s=GATHER_S,
            filtered=self._wanted.filtered,
            raw_eventheader=True,  # else their filter would be the reader's, which does not decode here
        )
        with contextlib.ExitStack() as stack:
            if not self._attach(stack, stream):
                return
            self._resume(stream)
            enough = 0.0
            until: int | None = None
            while True:
                is_last = self._is_ending
                if is_last:
                    stream.timeout_s = _LAST_READ_S
                    enough = time.monotonic() + _LAST_READ_S
                for batch in stream.batches():
                    self._look_for_restart(stream)
                    self._take(batch, stream)
                    if not is_last:
                        if self._is_ending:
                            break
                    elif time.monotonic() >= enough:
                        until = batch.ring.head if until is None else until
                        if batch.ring.position > until:
                            break  # programs emit without a pause
                self._look_for_restart(stream)
                if is_last:
                    self._pass_filtered(stream)
                if self.spool.has_losses:
                    self.spool.append(self._batch())
                if is_last:
                    return

    def _look_for_restart(self, stream: Stream) -> None:
        """If the daemon was restarted, read formats again and report the records that were emitted before."""
        if stream.attached_again != self._restarts:
            self._restarts = stream.attached_again
            self._described.clear()
            self._events.clear()
            self._resume(stream)

    def _resume(self, stream: Stream) -> None:
        """The stream is attached: report the records that were emitted before."""
        missed = stream.missed_before
        self._is_after_gap |= self.spool.resume(None if missed is None else Marks.at(missed, self._selection))

    def _pass_filtered(self, stream: Stream) -> None:
        """Do not count the records that the filter excluded as lost."""
        if not self._selection.is_whole and stream.missed_before is not None:
            before = {one.event: one.count for one in stream.missed_before.events}
            with contextlib.suppress(OSError):
                events = stream.missed().events
                self.spool.pass_over(
                    {text_of(one.event): one.count - before.get(one.event, 0) for one in events}
                )

    def _attach(self, stack: contextlib.ExitStack, stream: Stream) -> bool:
        """Wait for the daemon; False: the end came first."""
        while not self._is_ending:
            try:
                stack.enter_context(stream)
            except (FileNotFoundError, ConnectionError, TimeoutError, BlockingIOError) as error:
                if str(error.filename).endswith(TRACEFS_SOCKET):
                    self._note(f"{error.filename}: no daemon answers there; waiting for it")
                elif not self._wanted.filtered:
                    raise  # no such instance
                time.sleep(WAIT_FOR_DAEMON_S)
            else:
                self._is_attached = True
                return True
        return False

    def _take(self, batch: RingBatch, stream: Stream) -> None:
        """A batch of the ring into the spool."""
        ring = batch.ring
        if ring.head - ring.position > self._ring_bytes // 4:
            self._keeps_up.clear()
        else:
            self._keeps_up.set()
        for id_, described in stream.described.items():
            if self._described.get(id_) is not described:
                format = parse_format(described[1])
                name = EventName(described[0], text_of(format.name))
                self._described[id_] = described
                self._events[id_] = (name, verdict := self._policy.verdict(name, format))
                if verdict is None and (missing := self._policy.missing(name, format)):
                    fields = ", ".join(sorted(missing))
                    self._tell(
                        f"{name} has no field {fields}, which the policy hides: its records do not leave"
                    )
        for event, count in batch.lost.items():
            if self._policy.allows(EventName(*event.split(":", 1))):
                self.spool.lose(event, RING, count)
        for id_, count in ring.counts().items():
            if id_ in self._events and self._events[id_][1] is None:
                self.spool.lose(str(self._events[id_][0]), POLICY, count)
        parts, above = self._cutter.cut(ring, self._rate.room(time.monotonic()))
        for cause, those in ((LIMIT, above), (SAMPLE, self._cutter.sampled)):
            for id_, count in those.items():
                self.spool.lose(str(self._events[id_][0]), cause, count)
        for body, counts, tids, first_ns, last_ns in parts:
            nr_records = sum(counts.values())
            self._rate.take(nr_records)
            self._read += nr_records
            by_event: Counter[str] = Counter()
            for id_, count in counts.items():
                by_event[str(self._events[id_][0])] += count  # of all layouts of the event
            self._read_of.update(by_event)
            self._append(
                self._batch(
                    events={id_: self._described[id_] for id_ in counts},
                    comms={tid: ring.comms[tid] for tid in tids if tid in ring.comms},
                    counts=by_event,
                    first_ns=first_ns,
                    last_ns=last_ns,
                    is_after_gap=self._is_after_gap,
                    body=body,
                )
            )
            self._is_after_gap = False

    def _append(self, batch: Batch) -> None:
        if not self.spool.append(batch):
            before, self._lost_at = self._lost_at, time.monotonic()
            if self._lost_at - before > _QUIET_S:
                self._tell(f"records are lost: {self.spool.error}")

    def _allows(self, id_: int) -> bool | tuple[Edit, ...]:
        known = self._events.get(id_)
        return known is not None and known[1] is not None and known[1]

    def _every(self, id_: int) -> int:
        assert self._sample is not None
        known = self._events.get(id_)
        return 1 if known is None else self._sample(known[0])

    def _batch(self, **members: Any) -> Batch:
        """A batch of this host, now; the spool adds the missing members."""
        empty = {"events": {}, "comms": {}, "counts": {}, "first_ns": 0, "last_ns": 0, "body": b""}
        clock = read_clocks("mono")
        assert clock is not None
        return Batch(
            forwarder="",
            sequence=0,
            losses=(),
            host=self.host,
            boot_id=self._boot_id,
            clock=clock,
            **{"is_after_gap": False, **empty, **members},
        )

    # Sending

    def _sending(self) -> None:
        limits = self._target.limits
        is_reported = False
        while not self._give_up.is_set():
            is_last = self.read_over.is_set()
            if not is_last:
                self._keeps_up.wait(_LOOK_S)
            batches = self.spool.take(limits, _LOOK_S, at_once=self._is_ending)
            if batches:
                if not self._deliver(batches):
                    return
            elif is_last and self.spool.has_losses and not is_reported:
                self.spool.append(self._batch())
                is_reported = True
            elif is_last:
                return

    def _deliver(self, batches: Sequence[Batch]) -> bool:
        """Send them until the target has them or refuses them; False: the end came first."""
        pause, longest = BACK_OFF_S
        while not self._give_up.is_set():
            after_s = None
            try:
                refused = self._target.send(batches)
            except Refused as error:
                self._note(f"the target refuses {_counted(batches)}: {error}")
                self.spool.done(all_refused=True)
                return True
            except (TryAgain, OSError) as error:
                self._note(f"records wait in the spool: {reason(error)}")
                after_s = error.after_s if isinstance(error, TryAgain) else None
            except Exception as error:  # noqa: BLE001 (another's code; the next batches may be taken)
                self._note(f"the target cannot take {_counted(batches)}: {type(error).__name__}: {error}")
                self.spool.done(is_unknown=True)
                return True
            else:
                self.spool.done(refused)
                self._batches += len(batches)
                self._sent += sum(batch.nr_records for batch in batches) - sum(
                    n or 0 for n in refused.values()
                )
                self._last_sent = time.time()
                note = getattr(self._target, "note", "")
                if self._last_error not in ("", self._noted):
                    self._tell("the target takes records again")
                if note and note != self._noted:
                    self._noted = note
                    self._tell(note)
                self._last_error = note
                return True
            self._give_up.wait(max(after_s or 0.0, pause * random.uniform(0.5, 1)))
            pause = min(2 * pause, longest)
        return False

    def _note(self, text: str) -> None:
        """An error, for people; repeated ones once."""
        if text != self._last_error:
            self._last_error = text
            self._tell(text)


def _shown(value: object) -> str:
    """For people: `web ring 5, spool 3` for a dict of dicts."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items()) or "-"
    return str(value)


def _counted(batches: Sequence[Batch]) -> str:
    return f"{sum(batch.nr_records for batch in batches)} records"
