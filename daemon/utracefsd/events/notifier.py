"""Enablers that the daemon cannot write: a connection is notified of their changes and acknowledges them.

    write_state ──> Notifier.note ──> changed ── next_message ──> unanswered ── written ──> acknowledged
                                     (latest value of each token)  (one message)

A connection that asks for it (`notify_enablers`) names bits by tokens of its own. At most one message is
unanswered; changes meanwhile are kept as the latest value of each token, so a connection that does not answer
costs a few bytes for each of its tokens.

**Operations wait.** In the kernel `echo 1 > enable` returns when the bits are set. So the changes of an
operation on the tree form a `Change`, and the operation's response waits until all its connections have
acknowledged, or ACKNOWLEDGE_NS have passed. A connection that has not answered by then is overdue: the log
names it, and no operation waits for it again before it answers. Nor do operations wait for connections of a
user who used up the wait budget (`WaitBudget`).

A message has tokens in the order in which they changed first, and a token keeps its place when it changes
again. So everything pending now is sent with the next ceil(n / MAX_CHANGES) messages, whatever changes later;
a Change knows the number of the last one (`Notifier.last_needed`).
"""

import errno
from collections.abc import Callable
from itertools import islice

import attrs

from utracefs_protocol.connection import encode_notification
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.data import MAX_CHANGES, EnablersChanged
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event
from utracefsd.machine.peer import Peer

ACKNOWLEDGE_NS = 1_000_000_000
"""How long an operation waits for acknowledgements. A running program needs less than a millisecond, but on
a machine with 20 runnable threads one that waits for a cpu needs some hundred."""

LOG_INTERVAL_NS = 1_000_000_000
"""Interval of log lines that name overdue processes."""

MOST_NAMED = 16
"""Processes that such a line names."""


@attrs.define(eq=False)
class NotifiedEnabler:
    """An enabler whose bit its connection sets."""

    token: int
    event: Event
    uid: int
    """The user charged for it."""
    _notifier: "Notifier"

    def write(self, value: bool) -> None:
        """Have the bit set or cleared."""
        self._notifier.note(self.token, value)


class Notifier:
    """The notifications of one connection. speak_up: called when `next_message` has a message."""

    def __init__(self, notifiers: "Notifiers", peer: Peer, speak_up: Callable[[], None]) -> None:
        self.peer = peer
        self.enablers: dict[int, NotifiedEnabler] = {}
        """By token."""
        self.overdue = False
        """It did not acknowledge in time; no operation waits for it until it does."""
        self._notifiers = notifiers
        self._speak_up = speak_up
        self._changed: dict[int, bool] = {}
        self._seq = 0
        self._unanswered = False
        self._waiting: dict[Change, int] = {}
        """Waiting changes, and the message whose acknowledgement each needs; the numbers never decrease."""
        self._closed = False

    @property
    def has_news(self) -> bool:
        """Whether `next_message` has a message now."""
        return bool(self._changed) and not self._unanswered

    @property
    def last_needed(self) -> int:
        """The message whose acknowledgement covers all changes until now."""
        return self._seq + -(-len(self._changed) // MAX_CHANGES)

    @property
    def up_to_date(self) -> bool:
        """All changes are sent and acknowledged."""
        return not self._changed and not self._unanswered

    def note(self, token: int, value: bool) -> None:
        """The state of an enabler has changed."""
        if self._closed:
            return
        self._changed[token] = value
        self._notifiers.touched[self] = None
        if not self._unanswered and len(self._changed) == 1:
            self._speak_up()

    def forget(self, token: int, now_ns: int) -> None:
        """The enabler is removed: drop its pending change. The rest may be complete now."""
        del self.enablers[token]
        if self._changed.pop(token, None) is not None:
            most = self.last_needed
            for change, needed in self._waiting.items():
                self._waiting[change] = min(needed, most)
            self._tell_waiting(self._seq - self._unanswered, now_ns)

    def next_message(self) -> bytes | None:
        """`enablers_changed`; None: nothing has changed, or the last one is not answered."""
        if not self.has_news:
            return None
        changes = list(islice(self._changed.items(), MAX_CHANGES))
        for token, _ in changes:
            del self._changed[token]
        self._seq += 1
        self._unanswered = True
        return encode_notification(EnablersChanged.METHOD, EnablersChanged(self._seq, changes).to_params())

    def written(self, seq: int, now_ns: int) -> None:
        """`enablers_written`. TraceError(EPROTO): it is not the answer to the last message."""
        if not self._unanswered or seq != self._seq:
            wanted = f"{self._seq} is unanswered" if self._unanswered else "no enablers_changed is unanswered"
            raise TraceError(errno.EPROTO, f"enablers_written {seq}, but {wanted}; answer each one once")
        self._unanswered = False
        self.overdue = False
        self._tell_waiting(seq, now_ns)

    def close(self, now_ns: int) -> None:
        """The connection is closed: nothing waits for it. A second call is harmless."""
        self._closed = True
        self._changed.clear()
        self._unanswered = False
        self._speak_up = lambda: None
        self._tell_waiting(self._seq, now_ns)
        self._notifiers.discard(self)

    def wait_for(self, change: "Change") -> None:
        """Call `change.acknowledged` when all changes until now are acknowledged."""
        self._waiting[change] = self.last_needed

    def is_late(self) -> None:
        """It did not acknowledge in time: nothing waits for it any more."""
        self.overdue = True
        waiting, self._waiting = self._waiting, {}
        for change in waiting:
            change.wait_no_more(self)

    def wait_no_more(self, change: "Change") -> None:
        self._waiting.pop(change, None)

    def _tell_waiting(self, seq: int, now_ns: int) -> None:
        """All messages up to `seq` are acknowledged."""
        up_to_date = self.up_to_date
        while self._waiting:
            change, needed = next(iter(self._waiting.items()))
            if needed > seq and not up_to_date:
                return
            del self._waiting[change]
            change.acknowledged(self, now_ns)


class Change:
    """The changes of one operation: the connections whose acknowledgement it waits for, and its deadline."""

    def __init__(self, notifiers: "Notifiers", waiting: list[Notifier], deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns
        self._notifiers = notifiers
        self._waiting = dict.fromkeys(waiting)
        for notifier in waiting:
            notifier.wait_for(self)

    @property
    def done(self) -> bool:
        """There is no connection to wait for."""
        return not self._waiting

    def acknowledged(self, notifier: Notifier, now_ns: int) -> None:
        """One of the connections has acknowledged, or is closed."""
        self.wait_no_more(notifier)
        if not self._waiting:
            self._count(notifier, min(now_ns, self.deadline_ns))

    def wait_no_more(self, notifier: Notifier) -> None:
        """Do not wait for it, whatever it does."""
        self._waiting.pop(notifier, None)

    def give_up(self, now_ns: int) -> None:
        """The deadline has passed: connections that did not acknowledge are overdue."""
        late = list(self._waiting)
        for notifier in late:
            self._count(notifier, self.deadline_ns)
            notifier.is_late()
        if late:
            self._notifiers.log_overdue([notifier.peer.pid for notifier in late], now_ns)

    def forget(self) -> None:
        """The result is not needed any more."""
        for notifier in self._waiting:
            notifier.wait_no_more(self)
        self._waiting.clear()

    def _count(self, notifier: Notifier, until_ns: int) -> None:
        self._notifiers.wait_budget.waited(notifier.peer, self.deadline_ns - ACKNOWLEDGE_NS, until_ns)


class Notifiers:
    """All connections of a daemon that are notified of their enablers."""

    def __init__(self) -> None:
        self.wait_budget = WaitBudget()
        self.touched: dict[Notifier, None] = {}
        """Notifiers with an enabler that changed since `begin`."""
        self._overdue_pids: dict[int, None] = {}
        """Overdue processes that the log has not named yet."""
        self._next_log_ns = 0

    def add(self, peer: Peer, speak_up: Callable[[], None]) -> Notifier:
        """A notifier for a connection of `peer`."""
        return Notifier(self, peer, speak_up)

    def discard(self, notifier: Notifier) -> None:
        """Its connection is closed."""
        self.touched.pop(notifier, None)

    def begin(self) -> None:
        """An operation begins: earlier changes do not count for it."""
        self.touched.clear()

    def take(self, now_ns: int) -> Change | None:
        """The changes since `begin`; None when there is no connection to wait for."""
        touched, self.touched = self.touched, {}
        waiting = [
            notifier
            for notifier in touched
            if not notifier.overdue
            and not notifier.up_to_date
            and self.wait_budget.is_left(notifier.peer, now_ns)
        ]
        return Change(self, waiting, now_ns + ACKNOWLEDGE_NS) if waiting else None

    def log_overdue(self, pids: list[int], now_ns: int) -> None:
        """Log the processes that did not acknowledge in time: now, or together with those of the next
        second."""
        self._overdue_pids.update(dict.fromkeys(pids))
        if now_ns < self._next_log_ns:
            return
        self._next_log_ns = now_ns + LOG_INTERVAL_NS
        overdue, self._overdue_pids = list(self._overdue_pids), {}
        named = ", ".join(map(str, overdue[:MOST_NAMED]))
        more = f" and {len(overdue) - MOST_NAMED} more" if len(overdue) > MOST_NAMED else ""
        daemon_log("enable-bits-overdue", after_ms=ACKNOWLEDGE_NS // 1_000_000, pids=named, more=more)


FREE_NS = 100_000_000
"""The longest delay of every operation on an event that a user's programs can cause."""

MOST_NS = 2_000_000_000
"""Two of the longest waits. A wait may begin while any budget is left, so one user's stopped programs delay
administrators by up to three seconds at once."""

REFILL_DIVISOR = 10
"""The budget refills by one nanosecond in this many."""


@attrs.define
class _Waited:
    until_ns: int
    """Waits before this time are counted."""
    full_ns: int
    """When the budget is full again."""
    is_logged: bool = False
    """The log says that operations no longer wait."""


class WaitBudget:
    """A budget per user but administrators for the time that operations wait for the user's programs.

    A user could register an event on many connections, acknowledge nothing, and so slow down every operation
    on that event. So the waits are added up per user: MOST_NS at once, and the budget refills at 1/10 of
    elapsed time. A user without budget is notified like others, but no operation waits. Simultaneous waits of
    several operations count once.
    """

    def __init__(self) -> None:
        self._waited: dict[int, _Waited] = {}

    def __len__(self) -> int:
        """Users whose budget was not full at the last counted wait."""
        return len(self._waited)

    def is_left(self, peer: Peer, now_ns: int) -> bool:
        """Whether an operation waits for this peer's program."""
        waited = self._waited.get(peer.share)
        return waited is None or peer.privileged or waited.full_ns - now_ns < MOST_NS * REFILL_DIVISOR

    def waited(self, peer: Peer, from_ns: int, until_ns: int) -> None:
        """An operation waited for this peer's program from `from_ns` to `until_ns`."""
        if until_ns - from_ns <= FREE_NS or peer.privileged:
            return
        self._waited = {share: one for share, one in self._waited.items() if one.full_ns > from_ns}
        waited = self._waited.setdefault(peer.share, _Waited(from_ns, from_ns))
        counted_ns = max(0, until_ns - max(from_ns, waited.until_ns))
        waited.until_ns = max(waited.until_ns, until_ns)
        waited.full_ns = max(waited.full_ns, until_ns) + counted_ns * REFILL_DIVISOR
        if not waited.is_logged and not self.is_left(peer, until_ns):
            waited.is_logged = True
            daemon_log("enable-bits-slow", uid=peer.share, took_ms=MOST_NS // 1_000_000)
