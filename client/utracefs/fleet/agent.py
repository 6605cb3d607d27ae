"""The loop of a host: reads wishes from the bucket, carries them out in the daemon, and reports.

    a message, or each PERIOD_S ─▶ the bucket's state ─▶ new values ─▶ wishes that select this host
    each LOOK_S                 ─▶ Plan ─▶ PlannedInstance, events that are registered since
    a change, or PERIOD_S       ─▶ report

A wish ends `duration_s` after the server stored it, measured by CLOCK_MONOTONIC here: neither the host's time
of day nor the operator's matters. If the bucket is unreachable or gone for longer than the lease, all wishes
are suspended until it is back.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

import utracefs
from utracefs.fleet import report
from utracefs.fleet.buckets import Fleet, State
from utracefs.fleet.instance import PlannedInstance
from utracefs.fleet.plan import Choice, Plan, choose
from utracefs.fleet.wish import NAME, Wish, check_labels, key_of
from utracefs.forward.policy import Policy
from utracefs.forward.target import reason
from utracefs.nats.bucket import Value
from utracefs.nats.errors import ApiError, NotFound
from utracefs.tree.event_names import EventName, matches

LOOK_S: Final = 1.0
BACK_OFF_S: Final = (1.0, 30.0)
"""Delays after failures of the server: the first, doubled up to the last."""

OFFSET_S: Final = 60.0
"""Interval of reading the server's clock."""

END_S: Final = 5.0
"""Time limit of the end if the server hangs."""

MAX_READ: Final = 1000
"""Limit of the wishes that a host reads; further ones are ignored, which the report says. Deleted and ended
ones do not count."""

_SAID: Final = 32
"""Limit of the wishes of one kind in a report."""


@attrs.frozen
class _Selected:
    wish: Wish
    sequence: int
    end_s: float
    """CLOCK_MONOTONIC."""


@attrs.define
class _Reading:
    """The part of the bucket that was read."""

    created: str = ""
    after: int = 0
    keys: dict[str, int] = attrs.field(factory=dict[str, int])
    """Key to its sequence, also for deleted keys."""
    live: dict[str, float] = attrs.field(factory=dict[str, float])
    """Keys that count for MAX_READ, and when they end."""
    selected: dict[str, _Selected] = attrs.field(factory=dict[str, _Selected])
    invalid: dict[str, str] = attrs.field(factory=dict[str, str])
    """To reason."""
    is_cut: bool = False


class Agent:
    """Carries out wishes on this host. tell: prints a line. ValueError: the host's name or a label is
    invalid."""

    def __init__(
        self,
        fleet: Fleet,
        host: str,
        labels: Mapping[str, str],
        *,
        policy: Policy = Policy(),  # noqa: B008 (frozen)
        directory: str | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        key_of(host)
        self._labels: Final = {**labels, "host": host}
        check_labels(self._labels)
        self.fleet: Final = fleet
        fleet.watch_wishes()
        self._status: Callable[[], dict[str, Any]] = lambda: {"attached": False}
        self._host: Final = host
        self._policy: Final = policy
        self._directory: Final = directory
        self._tell: Final = tell
        self._end: Final = threading.Event()
        self._reading = _Reading()
        self._instance: PlannedInstance | None = None
        self._choice = Choice({}, {})
        self._plan = Plan(())
        self._applied: Plan | None = None
        self._applied_at = math.inf
        self._offset_s: float | None = None
        """Time of the server less CLOCK_MONOTONIC."""
        self._offset_at = -OFFSET_S
        self._is_known = False
        """Whether the bucket was seen: the first `fleet enable` makes both."""
        self._last_ok: float | None = None
        """When the bucket was last read."""
        self._ask_at = 0.0
        self._pause = BACK_OFF_S[0]
        self._report_at = 0.0
        self._has_news = True
        self._errors: dict[str, str] = {}

    def sample(self, event: EventName) -> int:
        """The N of `one of N records is forwarded`. May be called by other threads."""
        return max(1, self._plan.sample(event))

    @contextlib.contextmanager
    def running(self, status: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Run in a separate thread until the end of the context. status: of the host's forwarder."""
        self._status = status
        thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(END_S)

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._step()
                self._wait()
            self._report(is_last=True)
        finally:
            self._drop_instance()
            self.fleet.close()

    def _step(self) -> None:
        now = time.monotonic()
        if now >= self._ask_at:
            self._guarded("server", self._ask, self._server_failed)
        self._guarded("daemon", self._follow, self._drop_instance)
        if self._has_news or time.monotonic() >= self._report_at:
            self._report()

    def _guarded(self, what: str, act: Callable[[], None], failed: Callable[[], None]) -> None:
        """Tell each error once."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 (no content of the bucket ends the loop)
            is_known = isinstance(error, OSError | ApiError)
            text = f"fleet: {what}: {reason(error) if is_known else f'{type(error).__name__}: {error}'}"
            if self._errors.get(what) != text:
                self._errors[what] = text
                self._tell(text)
                self._has_news = True
            failed()
        else:
            if self._errors.pop(what, None) is not None:
                self._tell(f"fleet: {what}: answers again")

    def _wait(self) -> None:
        connection = self.fleet.connection
        if not connection.is_open:
            self._end.wait(LOOK_S)
            return
        try:
            if connection.has_message(LOOK_S):
                self._ask_at = 0.0
        except OSError:
            self._ask_at = 0.0

    # The bucket

    def _ask(self) -> None:
        now = time.monotonic()
        self._ask_at = now + report.PERIOD_S
        # Not for ever, as wishes neither end nor are suspended meanwhile.
        with self.fleet.connection.within(max(self.fleet.connection.timeout_s, self._policy.lease_s)):
            try:
                state = self.fleet.state(self.fleet.wishes)
            except NotFound:
                if self._is_known:
                    raise
                return
            self._is_known = True
            if self._offset_s is None:
                self._report()
            self._read(state)
        self._last_ok = time.monotonic()
        self._pause = BACK_OFF_S[0]

    def _server_failed(self) -> None:
        self.fleet.close()
        self._ask_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, BACK_OFF_S[1], max(BACK_OFF_S[0], self._policy.lease_s / 4))

    def _read(self, state: State) -> None:
        reading = self._reading
        if (
            state.created != reading.created
            or state.last < reading.after
            or (state.last == reading.after and state.messages != len(reading.keys))
            or (reading.is_cut and state.last != reading.after)
        ):
            reading = _Reading(state.created)
        if reading.is_cut or (state.last == reading.after and reading is self._reading):
            return
        for value in self.fleet.wishes.values(reading.after):
            reading.after = value.sequence
            reading.keys[value.key] = value.sequence
            self._take(reading, value)
            if len(reading.live) > MAX_READ:
                now = time.monotonic()
                reading.live = {key: end_s for key, end_s in reading.live.items() if end_s > now}
            if len(reading.live) > MAX_READ:
                reading.selected.pop(value.key, None)
                reading.is_cut, reading.after = True, state.last
                break
        reading.after = max(reading.after, state.last)  # markers may be purged
        self._reading = reading
        self._has_news = True

    def _take(self, reading: _Reading, value: Value) -> None:
        reading.selected.pop(value.key, None)
        reading.invalid.pop(value.key, None)
        reading.live.pop(value.key, None)
        if value.is_deleted:
            return
        try:
            if not NAME.fullmatch(value.key):
                raise ValueError("its name is not valid for a wish")
            wish = Wish.from_bytes(value.data)
        except ValueError as error:
            reading.invalid[value.key] = str(error)
            reading.live[value.key] = math.inf
            return
        offset_s = self._offset_s if self._offset_s is not None else time.time() - time.monotonic()
        end_s = value.time_s + wish.duration_s - offset_s
        if time.monotonic() < end_s:
            reading.live[value.key] = end_s
        elif len(reading.selected) >= MAX_READ:
            return
        if wish.selects(self._labels):
            reading.selected[value.key] = _Selected(wish, value.sequence, end_s)

    # The daemon

    def _follow(self) -> None:
        now = time.monotonic()
        is_held = self._last_ok is not None and now - self._last_ok <= self._policy.lease_s
        live = sorted(
            (one.sequence, name, one.wish)
            for name, one in self._reading.selected.items()
            if is_held and now < one.end_s
        )
        choice = choose({name: wish for _, name, wish in live}, self._policy)
        if choice != self._choice:
            self._choice, self._has_news = choice, True
            self._plan = Plan(choice.obeyed.values(), self._policy)
        if self._instance is None:
            self._instance, self._applied = PlannedInstance(self._directory), None
        if self._applied != self._plan:
            if not self._status()["attached"]:
                return  # so that no record is in front of the stream
            self._instance.apply(self._plan)
            self._applied, self._has_news = self._plan, True
            self._applied_at = time.monotonic()
        elif self._instance.look():
            self._has_news = True

    def _drop_instance(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    # The report

    def _report(self, *, is_last: bool = False) -> None:
        self._report_at = time.monotonic() + report.PERIOD_S
        if not self.fleet.connection.is_open or not self._is_known:
            return  # `_ask` has met the error, or nobody asks yet
        self._has_news = False
        self._guarded("report", lambda: self._store(report.pack(self._members(is_last))), lambda: None)

    def _store(self, data: bytes) -> None:
        now = time.monotonic()
        if now - self._offset_at < OFFSET_S:
            self.fleet.hosts.put(key_of(self._host), data)
        else:
            self._offset_s, self._offset_at = self.fleet.report(self._host, data), now

    def _misfits(self, wish: Wish) -> str:
        """The filter and triggers of a wish that are invalid for some events, and the reasons."""
        found = "; ".join(
            f"{event} {reason}"
            for event, refused in (self._instance.refused if self._instance else {}).items()
            if self._policy.allows(event) and any(matches(word, event) for word in wish.events)
            for text, reason in refused.items()
            if text == wish.filter or text in wish.triggers
        )
        return f", not by {found[:500]}" if found else ""

    def _members(self, is_last: bool) -> dict[str, Any]:
        status = self._status()
        instance, reading = self._instance, self._reading
        events, enabled = (
            # Names of the others stay here.
            [str(event) for event in found if self._policy.allows(event)]
            for found in ((instance.events, instance.enabled) if instance else ((), ()))
        )
        wishes = {name: "obeyed" + self._misfits(wish) for name, wish in self._choice.obeyed.items()}
        for name in list(reading.selected.keys() - wishes.keys() - self._choice.refused.keys())[:_SAID]:
            wishes[name] = "ended"
        for texts in (self._choice.refused, reading.invalid):
            wishes |= {name[:64]: f"refused: {text}" for name, text in list(texts.items())[:_SAID]}
        if reading.is_cut:
            wishes["*"] = f"refused: the bucket has more than {MAX_READ} wishes, the newest are not read"
        return {
            "host": self._host,
            "labels": self._labels,
            "utracefs": utracefs.__version__,
            "time": time.time(),
            "is_ended": is_last,
            "is_new": time.monotonic() - self._applied_at < report.PERIOD_S,
            "wishes": wishes,
            "events": events,
            "enabled": enabled,
            "forwarded": status.get("events", {}),
            "error": next(iter(self._errors.values()), "") or status.get("last_error", ""),
            **{
                name: status.get(name)
                for name in ("attached", "records_read", "records_sent", "lost", "lost_unknown", "lag_s")
            },
        }
