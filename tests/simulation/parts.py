"""The parts of the model: records, programs, readers, actions and instances.

model.py has the rules, and the daemon of which these are parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

FTRACE, PERF, OTHER = 1, 2, 128

PLUG_IN = "plug"
"""Name of the plug-in."""

HISTS, BUFFERS, SETTINGS = "hists", "buffers", "settings"

SWITCH = {"0": b"0\n", "1": b"1\n"}
PLAIN: dict[str, dict[str, bytes]] = {
    "buffer_percent": {"50": b"50\n", "0": b"0\n", "7": b"7\n", "100": b"100\n"},
    "options/stacktrace": SWITCH,
    "options/event-fork": SWITCH,
    "set_event_notrace_pid": {"": b"", "1 2": b"1\n2\n", "3": b"3\n"},
    "standing_events": {"": b"", "zz*\n": b"zz*\n", "zy*\n": b"zy*\n"},
    "standing_filters": {"": b"", "zz* k > 1\n": b"zz* k > 1\n"},
    "standing_triggers": {"": b"", "zz* traceoff\n": b"zz* traceoff\n"},
}
"""Files of an instance that keep what is written: texts, and how each is shown; first the default."""

KINDS = RECORDED, FILTERED, LOST = "recorded", "filtered", "lost"

SYNTHETIC = "s0", "s1"
"""Names of synthetic events."""
SYNTHETIC_FIELDS = "u64 n; u32 k"
APART = 1_000_000_000
"""More than the numbers of records that programs emit."""

MANY = 1 << 30
DROPPED = -1
"""In place of the k of records for which a histogram had no room."""
FIRST_ID = 32768
"""The lowest id of an event: the kernel's have lower ones."""
MOST_EVENTS = 2
MOST_FIELDS = 3
"""The fields of each user's events, beyond FREE_FIELDS of each: two wide events have more."""
FREE_FIELDS = 8

_BEGIN = rb"^.{16}-(\d+)(?: +\([\d -]+\))? +\[(\d+)\]"
ANY_LINE = re.compile(_BEGIN, re.MULTILINE)
LINE = re.compile(
    _BEGIN + rb" .{5} +(\d+)\.(\d+): (\w+): n=(?:0x[0-9a-f]+ \()?(\d+)\)? k=(?:0x[0-9a-f]+ \()?(\d+)",
    re.MULTILINE,
)
"""A line of `trace`: pid, cpu, seconds, microseconds, event, n, k."""

Texts = dict[str, bytes]
"""Contents of files by path."""


class Wrong(AssertionError):
    """The daemon contradicts the model."""


class Record:
    """`n` is the record's number, given out once. Records never change, so copies of a model share them."""

    def __init__(
        self,
        n: int,
        name: str,
        k: int,
        cpu: int,
        time: int,
        pid: int,
        *,
        valid: bool,
        in_ring: bool,
        index: int,
        size: int,
    ) -> None:
        self.n, self.name, self.k, self.cpu, self.time, self.pid = n, name, k, cpu, time, pid
        self.valid, self.in_ring, self.index, self.size = valid, in_ring, index, size

    def __repr__(self) -> str:
        return f"{self.name}#{self.n} k={self.k} cpu{self.cpu} of {self.pid}"


def duplicate(value: Any) -> Any:
    """A copy that shares what never changes: records, texts, numbers."""
    copy = _COPIES.get(type(value))
    return value if copy is None else copy(value)


def _copy_of_counts(counts: Counter[Any]) -> Counter[Any]:
    copy = Counter.__new__(Counter)  # its own copy counts once more
    dict.update(copy, counts)
    return copy


_COPIES: dict[type, Callable[[Any], Any]] = {
    Counter: _copy_of_counts,
    dict: lambda values: {key: duplicate(value) for key, value in values.items()},
    list: list.copy,
    set: set.copy,
}
"""By type: functions that copy a value. Others never change."""


class Part:
    """A part of a model, equal to one with the same contents."""

    SHARED: frozenset[str] = frozenset()
    """Attributes that copies have in common."""

    def __init_subclass__(cls) -> None:
        _COPIES[cls] = cls.copy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and self.__dict__ == other.__dict__

    def copy(self) -> Self:
        other = object.__new__(type(self))
        for name, value in self.__dict__.items():
            copy = None if name in self.SHARED else _COPIES.get(type(value))
            other.__dict__[name] = value if copy is None else copy(value)
        return other


class Program(Part):
    """One that has a connection, or waits for the next daemon."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.events: list[str] = []
        """By write_index; "": it has no event."""
        self.tokens: dict[int, str] = {}
        """Events of its enablers that are notified."""
        self.words: dict[int, str] = {}
        """Events of its enable words, by place, in the order of registration."""
        self.connected = True
        self.ring: list[Record] | None = None
        """Committed and not taken in; None: it has no ring."""
        self.adopted = True
        """This daemon reads its ring."""
        self.early = False
        """Records of its ring wait for their registrations."""
        self.waits_no_more = False
        """But for this daemon, since its user may not register more."""
        self.has_waited = False
        """Others may have been taken in before its oldest record."""
        self.ended = False
        """The daemon has yet to read its ring."""
        self.lost: Counter[int] = Counter()
        """By write_index: records that found its ring full, and that no daemon has counted."""
        self.orphan: list[str] | None = None
        """Events by which the daemon reads its ring without a connection: the store has kept it, or it has an
        unfinished record of a program that lives."""
        self.waiting: list[Record] = []
        """Sent over its socket while rings may come back: taken in behind those."""
        self.stopped = 0
        """The number of a record in its ring that a thread is still writing; < 0: its length is not known."""
        self.is_stranger = False
        """It had ended before it connected, so a later daemon cannot know whether it lives."""

    @property
    def known(self) -> list[str]:
        """Events of the records in its ring."""
        return self.events if self.orphan is None else self.orphan

    def release(self) -> list[str]:
        """Its connection has ended: its events, in the order in which they are released."""
        notified, self.tokens = reversed(dict.fromkeys(self.tokens.values())), {}
        last, self.words = [*reversed(dict.fromkeys(self.words.values()))], {}
        first = (name for name in notified if name not in self.events and name not in last)
        return [*first, *(name for name in self.known if name not in last), *last]

    def take(self) -> list[Record]:
        """Records that a daemon takes in, out of its ring. An unfinished one is waited for while its program
        lives."""
        ring = self.ring if self.ring and self.adopted else []
        known = len(self.known) if self.early and not self.waits_no_more else 1 << 16
        at = next((i for i, r in enumerate(ring) if r.n == abs(self.stopped)), len(ring))
        if self.ended and at < len(ring):
            del ring[at : len(ring) if self.stopped < 0 else at + 1]
            at = len(ring)
        end = next((i for i, r in enumerate(ring[:at]) if r.index >= known), at)
        taken = ring[:end]
        del ring[:end]
        return taken


class Reader(Part):
    """A stream, a perf event, a plug-in, a file `event_counts`, or a stream of the pages of an instance."""

    def __init__(self, kind: str, name: str, instance: str | None = None) -> None:
        self.kind, self.name, self.instance = kind, name, instance
        self.bit = PERF if kind in ("perf", "count", "freq") else OTHER
        self.consumer = kind if kind != "plugin" else PLUG_IN
        """In `stats`; others get their name when they are attached."""
        self.due: list[int] = []
        """Numbers of records since it read."""
        self.due_lost = 0
        """The same of losses before they reached the daemon: a stream gets their number."""
        self.count = 0
        self.by_process: Counter[tuple[int, str]] = Counter()
        """By pid: records, bytes and losses in data rings."""
        self.is_vague = False
        """It has got records that are not known."""

    def accepts_pages(self, numbers: list[int], *, is_all: bool) -> bool:
        """Each record once; those of a cpu are in order because those of its pages are. is_all: none is left
        in the buffer."""
        return len(set(numbers)) == len(numbers) and (not is_all or sorted(numbers) == sorted(self.due))

    def accepts(self, numbers: list[int], all_lost: int, *, is_full: bool) -> bool:
        lost = all_lost - self.due_lost
        if lost and (lost < 0 or not is_full):
            return False
        rest = iter(self.due)
        if self.kind == "freq":  # a period that the daemon chooses, which begins with 1
            is_first = self.count == len(self.due)
            if is_first and not is_full and numbers[:1] != self.due[:1]:
                return False
        elif len(numbers) + lost != len(self.due):
            return False
        return all(n in rest for n in numbers)


class Action(Part):
    """A histogram with an action that records a synthetic event, or with a variable for another action."""

    def __init__(self, handler: str, target: str, matched: str = "") -> None:
        self.handler = handler
        """onchange, onmax or onmatch; "": it has but the variable."""
        self.target = target
        """The synthetic event; "": none."""
        self.matched = matched
        """With onmatch: the event with the variable."""
        self.apart = APART * (1 << SYNTHETIC.index(target) + 2 * bool(matched)) if target else 0
        """Added to the number of a record: that of the synthetic one. All of these sums differ."""
        self.hits: Counter[int] = Counter()
        self.largest: dict[int, int] = {}
        """By k, with onmax."""
        self.unread: dict[int, int] = {}
        """By k: the variable where it is set; reading it unsets it."""
        self.has_forgotten = False
        """Where it is set is not known."""
        self.is_vague = False
        """Its table is not known, so which records it makes; also which variables are set."""

    def command(self) -> str:
        if not self.target:
            return "hist:keys=k:t=n:size=128"
        subject, variables = "$y", f"y=n+{self.apart},kk=k,t=n"
        if self.matched:
            subject = f"{system_of(self.matched)}.{self.matched}"
            variables = f"y=$t+{self.apart},kk=k"
        return f"hist:keys=k:{variables}:size=128:{self.handler}({subject}).trace({self.target},$y,$kk)"

    def number(self, r: Record, matched: Self | None) -> int:
        """The number of the synthetic record; 0: there is none."""
        value = r.n
        if matched is not None:
            if r.k not in matched.unread:
                return 0  # nor is it counted
            value = matched.unread.pop(r.k)
        else:
            self.unread[r.k] = value
        self.hits[r.k] += 1
        if self.handler == "onmax":
            if value <= self.largest.get(r.k, 0):
                return 0
            self.largest[r.k] = value
        return value + self.apart if self.target else 0


class Instance(Part):
    def __init__(self) -> None:
        self.on = True
        self.plain = {file: next(iter(values.values())) for file, values in PLAIN.items()}
        self.subbuf_kb = 4
        self.size: bytes | None = None
        """As `buffer_size_kb` shows it; None: the next look tells."""
        self.enable: set[str] = set()
        self.filters: dict[str, int] = {}
        """Event: records with a larger k pass."""
        self.hist: dict[str, Counter[int]] = {}
        self.removed_hist: dict[str, Counter[int]] = {}
        """By event: the most that a histogram has counted which was removed since the daemon began."""
        self.actions: dict[str, Action] = {}
        """By event: of one in one instance."""
        self.attached: dict[str, bool] = {}
        """Events that were ever attached here, since they exist; False: perhaps."""
        self.is_marked: bool | None = False
        """One of them was removed: the next removal of a synthetic event clears the buffer. None: perhaps."""
        self.traceoff: set[str] = set()
        """Events with the trigger `traceoff if k == 3`."""
        self.snapper: set[str] = set()
        """Events with the trigger `snapshot if k == 99`, which never fires."""
        self.kept: list[Record] = []
        """All that was recorded since it was cleared, also what was overwritten since."""
        self.spare: list[Record] | None = None
        self.exact = True
        """Nothing but overwriting took records out of `kept`."""
        self.spare_exact = True
        self.late = 0
        """Late records that were seen in `kept`."""
        self.spare_late = 0
        """At most so many are in `spare`, where nothing counts them."""
        self.went_off = False
        """By its trigger, since rings were read last: losses may have been counted before or after that."""
        self.has_pages = False
        """A reader takes its pages out of the buffer."""
        self.disturbed = False
        """And others have taken some out, or put some in."""

    def attaches(self, name: str) -> bool:
        return (
            name in self.enable
            or name in self.hist
            or name in self.traceoff
            or name in self.snapper
            or name in self.actions
        )

    def turn(self, kind: str, name: str, *, on: bool) -> None:
        """Enable an event, or add a trigger; or the opposite."""
        found = getattr(self, kind)
        if on:
            self.attached[name] = True
        if not on and kind == "hist":
            self.removed_hist[name] = self.removed_hist.get(name, Counter()) | found.pop(name, Counter())
        elif not on:
            found.discard(name)
        elif kind == "hist":
            self.hist[name] = Counter()
        else:
            found.add(name)
            if kind == "snapper":
                self.make_spare()

    def make_spare(self) -> None:
        self.spare = [] if self.spare is None else self.spare

    def set_filter(self, name: str, k: int | None) -> None:
        self.filters.pop(name, None)
        if k is not None:
            self.filters[name] = k

    def act(self, name: str, action: Action) -> None:
        """The event gets it."""
        self.attached[name] = True
        self.actions[name] = action

    def is_vague(self, name: str) -> bool:
        """Which records the action of this event makes is not known."""
        action = self.actions[name]
        return action.is_vague or bool(action.matched and self.actions[action.matched].has_forgotten)

    def is_read(self, name: str) -> bool:
        """Another action needs that of this event."""
        return any(action.matched == name for action in self.actions.values())

    def clear(self) -> None:
        self.kept.clear()
        if self.is_marked and self.spare:
            self.is_marked = True if self.spare_exact else None
        else:
            self.is_marked = False
        self.exact = not self.has_pages
        self.disturbed = True

    def snapshot(self, code: int) -> None:
        self.disturbed = True
        if code == 1:
            self.kept, self.spare = self.spare or [], self.kept
            self.exact, self.spare_exact = self.spare_exact, self.exact
            self.late, self.spare_late = self.spare_late, self.late
            self.exact = self.exact and not self.has_pages
        elif code == 0 or self.spare is not None:
            self.spare, self.spare_exact, self.spare_late = [] if code else None, True, 0

    def set_size(self, kb: int) -> None:
        """Whole sub-buffers, at least two, without their headers."""
        payload = 1024 * self.subbuf_kb - 16
        self.size = b"%d\n" % (max(2, -(-1024 * kb // payload)) * payload // 1024)

    def resize(self, kb: int) -> None:
        """Sub-buffers of another size: the buffer begins empty."""
        self.disturbed = True
        if self.subbuf_kb != kb:
            self.size = None
            self.kept, self.spare, self.subbuf_kb = [], None if self.spare is None else [], kb


def system_of(name: str) -> str:
    return "synthetic" if name in SYNTHETIC else "user_events"


def place_of(name: str) -> str:
    """The beginning of the paths of an event."""
    return f"events/{system_of(name)}/{name}/"


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"{what} is {found!r}, must be {wanted!r}")
