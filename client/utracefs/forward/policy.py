"""The policy: a TOML file that says what may leave the host.

    events = ["user_events:http_*", "shop_order"]   # SYSTEM:NAME, NAME, or globs; default: all
    max_records_per_s = 50000                       # more are counted as lost; default: no limit
    hash_key = "/etc/utracefs/policy.key"           # at least 16 bytes

    [fields."user_events:login*"]
    password = "redact"
    user = "hash"

    [fleet]                                         # of `--fleet`
    max_wish_s = 3600                               # longer wishes are refused; default: a day
    lease_s = 60                                    # wishes hold so long without the server; default: 60
    triggers = ["hist"]                             # that wishes may have; default: KINDS

Applied before records reach the spool. Records of other events are dropped uncounted: their names stay here,
too. Values are hidden in their places, so they keep their size: redacted ones are zeros, hashed ones the
beginning of the HMAC-SHA256 of the field's name and the value, for texts as hexadecimal digits. The hash of a
short text or a small integer is short, too, so different values may have the same hash. Fields of EventHeader
are not in a fixed place: records of such a tracepoint are lost, by the cause `policy`, if it matches a table
of fields. So are those of an event whose table, without globs, names a field that it does not have, and those
of synthetic events, which may have fields of any event, unless `events` names them: `synthetic:NAME`. A table
for `user_events:login` also applies to the multi-format events `user_events_multi:login.0`, ...
"""

import hmac
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import attrs

from utracefs.forward._body import Edit
from utracefs.recordings.event_header import HeaderEvents
from utracefs.tree.event_names import EventName, matches
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.filter import parse_filter
from utracefs_protocol.hist.errors import Log
from utracefs_protocol.hist.parse import parse_parts, split_filter
from utracefs_protocol.text import bytes_of, text_of

_KEYS: Final = {"events", "fields", "fleet", "hash_key", "max_records_per_s"}
_SECONDS: Final = {"max_wish_s", "lease_s"}
_FLEET_KEYS: Final = {*_SECONDS, "triggers"}
_SHORTEST_KEY: Final = 16

KINDS: Final = frozenset(
    {"hist", "enable_hist", "disable_hist", "enable_event", "disable_event", "traceon", "traceoff"}
    | {"snapshot", "stacktrace"}
)
"""Kinds of triggers that change nothing outside the forwarder's instance."""
NAMED: Final = "name"
"""`name=` of a hist trigger: it shares its table with those of that name in all instances."""
TRACING: Final = "trace"
"""An action of a hist trigger that records a synthetic event, which all its consumers get."""
TRIGGER_WORDS: Final = KINDS | {NAMED, TRACING}


_COMMON: Final = frozenset(b"common_pid common_cpu cpu CPU common_timestamp hitcount".split())
_OPERAND: Final = (
    rb"(?:\d+|([A-Za-z_]\w*)(?:\.(?:hex|sym|execname|syscall|log2|buckets=\d+|usecs|percent|graph))?)"
)
_EXPRESSION: Final = re.compile(rb"(?:-\()?%b(?:[-+*/]%b)*\)?" % (_OPERAND, _OPERAND))
_ACTION: Final = re.compile(rb"(?:onmax|onchange)\(\$(\w+)\)\.(?:save\(([\w,]+)\)|snapshot\(\))")

Verdict: TypeAlias = bool | tuple[Edit, ...] | None
"""Whether an event's records may leave, or the fields to hide before. None: they may not, because a field
cannot be found."""


@attrs.frozen
class Policy:
    events: tuple[str, ...] = ("*:*",)
    max_records_per_s: float | None = None
    fields: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict[str, dict[str, str]])
    """Pattern of events to field to `redact` or `hash`."""
    key: bytes = attrs.field(default=b"", repr=False)
    max_wish_s: float = 86400.0
    lease_s: float = 60.0
    triggers: frozenset[str] = KINDS
    """Some of TRIGGER_WORDS that wishes may have."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. ValueError: the file is invalid; the text says where. OSError, also for the file of
        the key."""
        text = path.read_bytes()
        try:
            return cls._of(tomllib.loads(text.decode()), path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def _of(cls, given: Mapping[str, Any], folder: Path) -> Self:
        if unknown := sorted(given.keys() - _KEYS):
            raise ValueError(f"{unknown[0]!r} is not known; there are: {', '.join(sorted(_KEYS))}")
        events = given.get("events", ["*:*"])
        if not isinstance(events, list) or not all(isinstance(one, str) and one for one in events):
            raise ValueError('`events` is not a list of texts: events = ["user_events:*"]')
        rate = given.get("max_records_per_s")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0):
            raise ValueError("`max_records_per_s` is not a number above 0")
        fields = given.get("fields", {})
        if not isinstance(fields, dict) or not all(isinstance(table, dict) for table in fields.values()):
            raise ValueError('`fields` has no table for each event: [fields."user_events:login"]')
        actions = [action for table in fields.values() for action in table.values()]
        for action in actions:
            if action not in ("redact", "hash"):
                raise ValueError(f"{action!r} is not redact or hash")
        key = b""
        if "hash" in actions:
            if not isinstance(given.get("hash_key"), str):
                raise ValueError("hash needs `hash_key`, the name of a file")
            key = (folder / given["hash_key"]).read_bytes()
            if len(key) < _SHORTEST_KEY:
                raise ValueError(f"{given['hash_key']} has less than {_SHORTEST_KEY} bytes")
        return cls(tuple(events), rate, fields, key, **_fleet(given.get("fleet", {})))

    @property
    def hidden(self) -> set[str]:
        """Names of all hidden fields."""
        return {name for table in self.fields.values() for name in table}

    @property
    def is_limited(self) -> bool:
        """Something may not leave."""
        return bool(self.fields) or "*:*" not in self.events

    def allows_histogram(self, format: EventFormat, trigger: str) -> bool:
        """Whether the table of a hist trigger of an allowed event may leave. Only if all of its text is
        understood, and has no more than open fields of this event: no table that others fill (`name=`),
        variable of another trigger, or synthetic event."""
        if not self.is_limited:
            return True
        fields = [field for field in format.fields if text_of(field.name) not in self.hidden]
        try:
            text, filter_text = split_filter(bytes_of(trigger.removeprefix("hist:")), log := Log(b""))
            parts = parse_parts(text, log)
            if filter_text is not None:
                parse_filter(filter_text, fields)
        except TraceError:
            return False
        variables = [one.partition(b"=") for part in parts.assignments for one in part.split(b",")]
        own = {name for name, _, _ in variables}
        used = [*parts.keys.split(b","), *(parts.values or b"hitcount").split(b",")]
        used += [expression for _, _, expression in variables]
        for action in parts.actions:
            if (found := _ACTION.fullmatch(action)) is None or found[1] not in own:
                return False
            used += found[2].split(b",") if found[2] else ()
        names = {field.name for field in fields} | _COMMON
        return parts.name is None and all(
            _EXPRESSION.fullmatch(one) and names.issuperset(filter(None, re.findall(_OPERAND, one)))
            for one in used
        )

    def allows(self, event: EventName) -> bool:
        return any(matches(pattern, event) for pattern in self.events)

    def verdict(self, event: EventName, format: EventFormat) -> Verdict:
        if not self.allows(event):
            return False
        actions: dict[str, str] = {}
        is_open = not self.is_limited or any(one.startswith("synthetic") for one in self.events)
        if self.missing(event, format) or (event.system == "synthetic" and not is_open):
            return None
        names = [event]
        if event.system == "user_events_multi":  # of which a program may have as many as it likes
            names.append(EventName("user_events", event.name.rpartition(".")[0]))
        for pattern, table in self.fields.items():
            if any(_is_of(pattern, name) for name in names):
                # Redaction wins.
                actions |= {name: what for name, what in table.items() if actions.get(name) != "redact"}
        if not actions:
            return True
        header_events = HeaderEvents()
        header_events.add(event.system, format)
        if header_events.tracepoints:
            return None
        return tuple(
            Edit(field, self._digest(field) if actions[name] == "hash" else None)
            for field in format.fields
            if (name := text_of(field.name)) in actions
        )

    def missing(self, event: EventName, format: EventFormat) -> set[str]:
        """Fields that the event does not have, of tables of this event alone: they may be misspelt."""
        names = {name for key in (event.name, str(event)) for name in self.fields.get(key, ())}
        return names - {text_of(field.name) for field in format.fields}

    def _digest(self, field: Field) -> Callable[[bytes], bytes]:
        is_text = field.is_string or (field.kind is FieldKind.CHAR_ARRAY)

        def digest(value: bytes) -> bytes:
            made = hmac.digest(self.key, b"%s\0%s" % (field.name, value), "sha256")
            return made.hex().encode() if is_text else made

        return digest


def _is_of(pattern: str, event: EventName) -> bool:
    """Whether a table is the event's: by its name, be it `a[1]`, which as a glob is another, or as a glob."""
    return pattern in (event.name, str(event)) or matches(pattern, event)


def _fleet(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or given.keys() - _FLEET_KEYS:
        raise ValueError(f"`fleet` is a table of {', '.join(sorted(_FLEET_KEYS))}")
    for name in given.keys() & _SECONDS:
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise ValueError(f"`{name}` is not a number of seconds above 0")
    triggers = given.get("triggers", [])
    if not isinstance(triggers, list) or not all(
        isinstance(one, str) and one in TRIGGER_WORDS for one in triggers
    ):
        raise ValueError(f"`triggers` is not a list of: {', '.join(sorted(TRIGGER_WORDS))}")
    return {name: frozenset(value) if name == "triggers" else value for name, value in given.items()}


class Rate:
    """At most per_s records a second, and that many at once after a pause; None: any number."""

    def __init__(self, per_s: float | None, now: float) -> None:
        self._per_s: Final = per_s
        self._left = per_s or 0.0
        self._at = now

    def room(self, now: float) -> int:
        """Records that may pass now."""
        if self._per_s is None:
            return 2**62
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        return int(self._left)

    def take(self, records: int) -> None:
        self._left -= records
