"""A wish: events that an operator wants from some hosts, for some time. JSON in the bucket, by name:

    {"version": 1, "events": ["http_*"], "filter": "status >= 500", "sample": 1,
     "triggers": ["hist:keys=status"],
     "labels": {"site": "north", "host": "web*"}, "duration_s": 3600, "owner": "alice"}

A host trusts none of it: sizes are limited, and an invalid wish is refused with a reason.
"""

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, Self

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_names import check_length
from utracefs_protocol.filter import FilterError, parse_filter
from utracefs_protocol.filter.parse import FIELD_NOT_FOUND
from utracefs_protocol.text import bytes_of

VERSION: Final = 1

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Name of a wish, which is its key in the bucket."""

MAX_BYTES: Final = 8192
"""Limit of a wish as JSON."""

MAX_EVENTS: Final = 8
"""Words of a wish: each is compared with every event that a host registers."""

MAX_FILTER: Final = 1024
"""Bytes."""

MAX_TRIGGERS: Final = 8
MAX_TRIGGER: Final = 1024
"""Bytes."""

MAX_LABELS: Final = 16
MAX_TEXT: Final = 128
"""Characters of a label, its value, an owner."""

MAX_SAMPLE: Final = 1_000_000
MAX_DURATION_S: Final = 366 * 86400.0

_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MEMBERS: Final = frozenset(
    {"version", "events", "filter", "sample", "triggers", "labels", "duration_s", "owner"}
)


@attrs.frozen
class Wish:
    """An operator's request. ValueError: a member is invalid; the text names it."""

    events: tuple[str, ...]
    """SYSTEM:NAME, NAME, or globs of either."""
    duration_s: float
    """Duration, counted from the moment when the server stored it."""
    filter: str = ""
    """Empty: all records. Events for which it is invalid are left out."""
    sample: int = 1
    """N of `forward one of N records`."""
    labels: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Label to glob of its value: hosts that match all of them; `host` is the name."""
    owner: str = ""
    triggers: tuple[str, ...] = ()
    """As written to the tree's file `trigger`; for the same events, whatever `filter` says."""

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.events) <= MAX_EVENTS:
            raise ValueError(f"{len(self.events)} events: a wish has 1 to {MAX_EVENTS}")
        for word in self.events:
            _check_word(word)
        if not 0 < self.duration_s <= MAX_DURATION_S:
            raise ValueError(f"its duration is not between 0 and {MAX_DURATION_S:.0f} s")
        if not 1 <= self.sample <= MAX_SAMPLE:
            raise ValueError(f"its sample is not between 1 and {MAX_SAMPLE}")
        _check_filter(self.filter)
        check_labels(self.labels)
        if len(self.owner) > MAX_TEXT or not self.owner.isprintable():
            raise ValueError("its owner is not a short text")
        if len(self.triggers) > MAX_TRIGGERS:
            raise ValueError(f"{len(self.triggers)} triggers: a wish has at most {MAX_TRIGGERS}")
        for text in self.triggers:
            _check_trigger(text)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a host with these labels."""
        return all(name in labels and fnmatchcase(labels[name], glob) for name, glob in self.labels.items())

    def to_bytes(self) -> bytes:
        """ValueError: too long."""
        data = json.dumps({"version": VERSION, **attrs.asdict(self)}).encode()
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes: a wish has at most {MAX_BYTES}")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes: a wish has at most {MAX_BYTES}")
        try:
            members = json.loads(data)
        except (ValueError, RecursionError):
            raise ValueError("it is not JSON") from None
        if type(members) is not dict or members.get("version") != VERSION:
            raise ValueError(f"it is not a wish of version {VERSION}")
        if unknown := sorted(members.keys() - _MEMBERS):
            raise ValueError(f"it has an unknown member {unknown[0][:MAX_TEXT]!r}")
        labels = _member(members, "labels", dict, {})
        events, triggers = (_member(members, name, list, []) for name in ("events", "triggers"))
        for name, texts in (("labels", labels.values()), ("events", events), ("triggers", triggers)):
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"its {name} are not texts")
        duration_s: Any = members.get("duration_s")
        if type(duration_s) not in (int, float) or not 0 < duration_s <= MAX_DURATION_S:
            raise ValueError(f"its duration_s is no number between 0 and {MAX_DURATION_S:.0f}")
        return cls(
            tuple(events),
            float(duration_s),
            _member(members, "filter", str, ""),
            _member(members, "sample", int, 1),
            labels,
            _member(members, "owner", str, ""),
            tuple(triggers),
        )


def _member(members: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = members.get(name, default)
    if type(value) is not kind:
        raise ValueError(f"its {name} is no {kind.__name__}")
    return value


def _check_word(word: str) -> None:
    try:
        data = bytes_of(word)
        check_length(data)
    except (UnicodeEncodeError, TraceError):
        data = b""
    if not data or re.search(r"[\s\x00-\x1f]", word) or word.startswith("!") or word.count(":") > 1:
        raise ValueError(f"{word[:40]!r} is no event: SYSTEM:NAME, NAME, or a glob of either")


def _check_filter(text: str) -> None:
    """Whether it can be valid for any event."""
    if not text:
        return
    data = _bytes_of(text, "filter", MAX_FILTER)
    try:
        parse_filter(data, ())
    except FilterError as error:
        if error.message != FIELD_NOT_FOUND:
            raise ValueError(f"its filter is invalid: {error.text}") from None


def _check_trigger(text: str) -> None:
    _bytes_of(text, f"trigger {text[:40]!r}", MAX_TRIGGER)
    if text != text.strip() or text.startswith("!"):
        raise ValueError(f"its trigger {text[:40]!r} is not KIND[:PARAM][ if FILTER]")


def _bytes_of(text: str, what: str, most: int) -> bytes:
    """Encode a line for a file of the tree. ValueError: blank, too long, a control character, or no UTF-8."""
    if not text.strip() or re.search(r"[\x00-\x1f]", text):
        raise ValueError(f"its {what} has control characters, or is blank")
    try:
        data = bytes_of(text)
    except UnicodeEncodeError:
        raise ValueError(f"its {what} is no UTF-8") from None
    if len(data) > most:
        raise ValueError(f"its {what} has more than {most} bytes")
    return data


def check_labels(labels: Mapping[str, str]) -> None:
    """Check the labels of a host or a wish. ValueError."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{len(labels)} labels: there are at most {MAX_LABELS}")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is not a label: letters, digits, _ . -")
        if not 0 < len(value) <= MAX_TEXT or not value.isprintable():
            raise ValueError(f"{value[:40]!r} is no value of the label {name}: 1 to {MAX_TEXT} characters")


def key_of(host: str) -> str:
    """A host's name as one word of a subject, reversibly: other bytes than letters, digits, - and _ are =XX.
    So no name is a pattern, or has several words. ValueError: too long, or empty."""
    data = host.encode("utf-8", "surrogateescape")
    if not 0 < len(data) <= 255:
        raise ValueError(f"{host[:40]!r} is not the name of a host: 1 to 255 bytes")
    return "".join(chr(b) if re.match(rb"[A-Za-z0-9_-]", bytes([b])) else f"={b:02X}" for b in data)


def name_of(key: str) -> str:
    """The host's name."""
    found = re.sub(r"=([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), key)
    return found.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
