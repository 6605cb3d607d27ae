"""The text of `events/SYSTEM/NAME/hist` as numbers.

    # event histogram
    #
    # trigger info: hist:keys=status:vals=hitcount,usec:sort=hitcount.descending:size=2048 [active]
    #

    { status:        200 } hitcount:         12  usec:      18340
    { status:        503 } hitcount:          1  usec:         70

    Totals:
        Hits: 13
        Entries: 2
        Dropped: 0

One such text for each hist trigger of the event (kernel/trace/trace_events_hist.c, hist_trigger_show()). The
line of the trigger names the columns; the modifier of a key determines its format. A text may contain
anything, also line breaks and text that looks like another key: it is at least as wide as STRING_WIDTH, and
numbers never are. That width is in bytes, so a byte is a character (Latin-1) until keys are told apart.
"""

import re
from collections.abc import Collection, Iterator

import attrs

from utracefs_protocol.text import bytes_of, text_of

STRING_WIDTH = 50
"""Bytes of a string key: `%-50s`."""

Value = int | float | str


@attrs.frozen
class Entry:
    """One line: records with the same keys."""

    keys: dict[str, Value]
    """By name, with the modifier if several keys have the name; a range or a stack trace is a str."""
    values: dict[str, Value]
    """By name, with `.percent` and `.graph`: `hitcount` first, unless it was left out."""


@attrs.frozen
class Histogram:
    """Counts of one hist trigger."""

    trigger: str
    """Its line in `trigger`, without the brackets at the end."""
    paused: bool
    entries: tuple[Entry, ...]
    """In the order of printing."""
    hits: int
    dropped: int
    """Records not counted: the table was full."""


_FLOAT = r"-?(?:inf|nan|[\d.]+(?:e[+-]\d+)?)"
_HEAD = re.compile(r"^# event histogram\n#\n# trigger info: ", re.MULTILINE)
_TOTALS = re.compile(r"\nTotals:\n    Hits: (\d+)\n    Entries: \d+\n    Dropped: (\d+)\n")


def parse_histograms(text: bytes, signed: Collection[str] = ()) -> list[Histogram]:
    """Parse the file; empty without a hist trigger. signed: names of signed fields, which the text prints as
    unsigned."""
    return [_parse(part, signed) for part in _HEAD.split(text.decode("latin-1"))[1:]]


def _decoded(text: str) -> str:
    return text_of(text.encode("latin-1"))


def _parse(text: str, signed: Collection[str]) -> Histogram:
    info, _, body = text.partition("\n#\n")
    trigger, _, state = _decoded(info).rpartition(" [")
    totals = list(_TOTALS.finditer(body))
    columns = _columns(trigger)
    if not totals or columns is None:
        return Histogram(trigger, state == "paused]", (), 0, 0)
    end = totals[-1]
    entries = tuple(_entries(body[: end.start() + 1], *columns, signed))
    return Histogram(trigger, state == "paused]", entries, int(end[1]), int(end[2]))


@attrs.frozen
class _Column:
    name: str
    modifier: str

    @property
    def full(self) -> str:
        return f"{self.name}.{self.modifier}" if self.modifier else self.name

    @property
    def title(self) -> str:
        """`usec`, besides `usec.percent`."""
        return self.full if self.modifier in ("percent", "graph") else self.name

    @property
    def pattern(self) -> str:
        """The name used in an entry. A number or an expression has none of its own."""
        if self.name in ("common_cpu", "cpu", "CPU"):
            return "(?:common_cpu|cpu|CPU)"
        if not re.fullmatch(r"[^\W\d][\w.]*", self.name):
            return r"[^:{}]*"
        return re.escape(bytes_of(self.name).decode("latin-1"))


def _columns(trigger: str) -> tuple[list[_Column], list[_Column]] | None:
    """Keys and values of the line of a trigger."""
    definition = trigger.partition(" if ")[0]
    found = {}
    for part in definition.split(":"):
        name, _, words = part.partition("=")
        if name in ("keys", "vals") and name not in found:
            found[name] = [_Column(*word.partition(".")[::2]) for word in words.split(",") if word]
    return (found["keys"], found.get("vals", [])) if "keys" in found else None


def _key_pattern(key: _Column) -> str:
    if key.name in ("common_stacktrace", "stacktrace") or key.modifier == "stacktrace":
        return rf"{key.pattern}:\n((?: {{9}}.*\n)*)"
    match key.modifier.partition("=")[0]:
        case "hex":
            text = r"([0-9a-f]+)"
        case "log2":
            text = r"~ 2\^(\d+) *"
        case "buckets" | "bucket":
            text = r"~ (\d+-\d+)"
        case "execname" | "syscall":
            text = r"((?s:.*?)\[ *\d+\])"
        case "sym" | "sym-offset":
            text = r"(\[[0-9a-f]+\] (?s:.*?))"
        case _:
            text = rf"( *(?:\d+|{_FLOAT})|(?s:.{{{STRING_WIDTH},}}?))"
    return rf"{key.pattern}: {text}"


def _value_pattern(value: _Column) -> str:
    blanks = " " if value.name == "hitcount" and not value.modifier else "  ?"
    match value.modifier:
        case "percent":
            return rf"(?:{blanks}{value.pattern} \(%\): +([\d.]+|\[ERROR\]))?"
        case "graph":
            return rf"(?:{blanks}{value.pattern}: ([# ]{{20}}))?"
        case "hex":
            return rf"(?:{blanks}{value.pattern}: +([0-9a-f]+))?"
        case _:
            return rf"(?:{blanks}{value.pattern}: +(\d+))?"


def _entries(
    body: str, keys: list[_Column], values: list[_Column], signed: Collection[str]
) -> Iterator[Entry]:
    pattern = re.compile(
        r"^\{ " + ", ".join(map(_key_pattern, keys)) + r" ?\}" + "".join(map(_value_pattern, values)) + r"$",
        re.MULTILINE,
    )
    names = [key.name for key in keys]
    titles = [key.full if names.count(key.name) > 1 else key.name for key in keys]
    for found in pattern.finditer(body):
        texts = iter(found.groups())
        yield Entry(
            {title: _key(key, next(texts), signed) for title, key in zip(titles, keys, strict=True)},
            {
                value.title: _number(value, text, signed)
                for value in values
                if (text := next(texts)) is not None
            },
        )


def _key(key: _Column, text: str, signed: Collection[str]) -> Value:
    match key.modifier.partition("=")[0]:
        case "hex":
            return int(text, 16)
        case "log2":
            return f"2^{text}"
        case "buckets" | "bucket":
            return text
        case "execname" | "syscall":
            name, _, number = text.rpartition("[")
            return f"{_decoded(name).rstrip()}[{number[:-1].strip()}]"
        case "":
            if text.startswith(" " * 9) and "\n" in text:
                return "\n".join(line.strip() for line in _decoded(text).splitlines())
            if len(text) < STRING_WIDTH:
                return _plain(text.strip(), key.name in signed)
    return _decoded(text).rstrip()


def _plain(text: str, signed: bool) -> Value:
    """JSON has no number for nan and inf."""
    if text.isascii() and text.isdigit():
        return _with_sign(int(text), signed)
    return float(text) if text.strip("-") not in ("", "nan", "inf") else text


def _number(value: _Column, text: str, signed: Collection[str]) -> Value:
    match value.modifier:
        case "percent":
            return float(text) if text != "[ERROR]" else text
        case "graph":
            return text.rstrip()
        case "hex":
            return int(text, 16)
    return _with_sign(int(text), value.name in signed)


def _with_sign(number: int, signed: bool) -> int:
    return number - (1 << 64) if signed and number >= 1 << 63 else number
