"""The `hist` file: what hist_show() of trace_events_hist.c prints for a trigger."""

import struct
from collections.abc import Callable, Iterable, Sequence

import attrs

from utracefsd.consumers.ftrace.hist.definition import Definition, SortKey
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField
from utracefsd.consumers.ftrace.hist.syscalls import syscall_name

__all__ = ["Contents", "hist_text", "key_text", "sort_entries"]

_MASK = (1 << 64) - 1
_BAR = 20
"""Columns of `.graph`."""

Entry = tuple[bytes, tuple[int, ...]]
"""A key and its words: hits, then a sum for each value."""


@attrs.frozen
class Contents:
    """What a table holds."""

    entries: Sequence[Entry]
    """In any order."""

    hits: int
    """Records that were counted."""

    drops: int
    """Records that found it full."""


def hist_text(
    definition: Definition,
    contents: Contents,
    line: bytes,
    comm: Callable[[int], bytes],
    *,
    more: Callable[[Entry], bytes] = lambda entry: b"",
    below: bytes = b"",
) -> bytes:
    """One trigger's part of the file. line: of `trigger`, with its state and newline.

    comm: the name of a thread. more: what actions add to an entry. below: what they add to all.
    """
    stats = [
        (max(column), sum(column) & _MASK)
        for column in zip(*(words for _, words in contents.entries), strict=True)
    ]
    out = [b"# event histogram\n#\n# trigger info: ", line, b"#\n\n"]
    for entry in sort_entries(definition, contents.entries):
        out.append(_entry_text(definition, entry, stats, comm))
        out.append(more(entry))
        out.append(b"\n")
    out.append(below)
    out.append(
        b"\nTotals:\n    Hits: %d\n    Entries: %d\n    Dropped: %d\n"
        % (contents.hits, len(contents.entries), contents.drops)
    )
    return b"".join(out)


def sort_entries(definition: Definition, entries: Iterable[Entry]) -> list[Entry]:
    """By the definition's sort keys; what ties in all of them stays in its order."""
    result = list(entries)
    for key in reversed(definition.sort):
        result.sort(key=_sort_value(definition, key), reverse=key.descending)
    return result


def _sort_value(definition: Definition, key: SortKey) -> Callable[[Entry], int | bytes]:
    """What to compare: sums unsigned, strings by their bytes, numbers of keys by their size and sign."""
    if key.index <= len(definition.values):
        return lambda entry: entry[1][key.index]
    field = definition.column(key)
    if Flag.STACKTRACE in field.flags:
        return lambda entry: 0
    start, end = field.offset, field.offset + field.size
    if field.field is not None and field.field.is_string and Flag.CPU not in field.flags:
        return lambda entry: entry[0][start:end].partition(b"\0")[0]
    size, signed = field.size, field.signed
    if field.field is not None and Flag.CPU not in field.flags:
        size, signed = field.field.size, field.field.signed
    return lambda entry: int.from_bytes(entry[0][start : start + size], "little", signed=signed)


def _entry_text(
    definition: Definition,
    entry: Entry,
    stats: Sequence[tuple[int, int]],
    comm: Callable[[int], bytes],
) -> bytes:
    """hist_trigger_entry_print()."""
    key, words = entry
    text = key_text(definition, key, comm)
    if not definition.parts.no_hitcount:
        text += b" hitcount: %10d" % words[0]
    for value, word, (most, total) in zip(definition.values, words[1:], stats[1:], strict=False):
        if Flag.EXPR not in value.flags:
            text += b"  " + _value_text(value, word, most, total)
    return text


def key_text(definition: Definition, key: bytes, comm: Callable[[int], bytes]) -> bytes:
    """`{ pid:         11 }` (hist_trigger_print_key())."""
    several_lines = any(Flag.STACKTRACE in field.flags for field in definition.keys)
    parts = [
        _one_key_text(field, key[field.offset : field.offset + field.size], comm) for field in definition.keys
    ]
    return b"{ %s%s}" % (b", ".join(parts), b"" if several_lines else b" ")


def _one_key_text(field: HistField, key: bytes, comm: Callable[[int], bytes]) -> bytes:
    name, flags = field.shown_name(), field.flags
    (number,) = struct.unpack_from("<Q", key)
    if Flag.HEX in flags:
        return b"%s: %x" % (name, number)
    if Flag.SYM in flags:
        # What no kernel symbol lies at; the field width is that of what %ps prints then.
        return b"%s: [%x] %-45s" % (name, number, b"0x%x" % number)
    if Flag.SYM_OFFSET in flags:
        return b"%s: [%x] %-55s" % (name, number, b"0x%x" % number)
    if Flag.EXECNAME in flags:
        return b"%s: %-16s[%10d]" % (name, comm(number), number)
    if Flag.SYSCALL in flags:
        return b"%s: %-30s[%3d]" % (name, syscall_name(number), number)
    if Flag.STACKTRACE in flags:
        return b"common_stacktrace:\n"
    if Flag.LOG2 in flags:
        return b"%s: ~ 2^%-2d" % (name, number)
    if Flag.BUCKET in flags:
        return b"%s: ~ %d-%d" % (name, number, (number + field.buckets - 1) & _MASK)
    if field.is_string:
        return b"%s: %-50s" % (name, key.partition(b"\0")[0])
    return b"%s: %10d" % (name, number)


def _value_text(field: HistField, value: int, most: int, total: int) -> bytes:
    """hist_trigger_print_val()."""
    name = field.shown_name()
    if Flag.PERCENT in field.flags:
        part = _percentage(value, total)
        if part is None:
            return b"%s (%%):[ERROR]" % name
        return b"%s (%%): %3d.%02d" % (name, part // 100, part % 100)
    if Flag.GRAPH in field.flags:
        part = _percentage(value, most)
        bar = b"[ERROR]" if part is None else b"#" * min(_BAR, part * _BAR // 10000)
        return b"%s: %s" % (name, bar.rjust(_BAR) if part is None else bar.ljust(_BAR))
    if Flag.HEX in field.flags:
        return b"%s: %10x" % (name, value)
    return b"%s: %10d" % (name, value)


def _percentage(value: int, total: int) -> int | None:
    """Hundredths of a percent; None: undefined (__get_percentage())."""
    if total and value < _MASK // 10000:
        return (value * 10000 // total) & 0xFFFFFFFF
    total //= 10000
    if total:
        return (value // total) & 0xFFFFFFFF
    return None if value else 0
