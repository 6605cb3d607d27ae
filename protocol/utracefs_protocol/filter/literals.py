"""The right side of an operator: numbers, patterns and lists of cpus, with the kernel's rules."""

import re
from collections.abc import Iterator

from utracefs_protocol.filter._program import How
from utracefs_protocol.text import any_base

_WILDCARDS = frozenset(b"[?\\")

FLOAT = re.compile(rb"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?![0-9A-Za-z_.])")
"""The right side of a field that is a float, which no kernel has."""

_SEPARATORS = re.compile(rb"[,\t\n\v\f\r \xa0]+")
_CPU_NUMBER = rb"(N|[0-9]{1,10})"
_REGION = re.compile(
    rb"%b|(?:(?i:all)|%b-%b)(?::%b/%b)?" % (_CPU_NUMBER, _CPU_NUMBER, _CPU_NUMBER, _CPU_NUMBER, _CPU_NUMBER)
)


def parsed_number(text: bytes, *, signed: bool) -> int | None:
    """kstrtoll(), or kstrtoull(), in any base. None: EINVAL or ERANGE."""
    if not signed:
        return any_base(text)
    value = any_base(text.removeprefix(b"-"))
    value = -value if value is not None and text[:1] == b"-" else value
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def parsed_pattern(text: bytes) -> tuple[How, bytes, bool]:
    """filter_parse_regex(): kind of match, pattern, and whether the result is negated."""
    negated = text.startswith(b"!")
    text = text[negated:]
    if text[:1].isdigit():
        return How.FULL, text, negated  # in a comparison of functions it would be an address: no wildcards
    inner = text[1:-1] if len(text) > 1 else b""
    if b"*" in inner or not _WILDCARDS.isdisjoint(text):
        return How.GLOB, text, negated
    front, back = text.startswith(b"*"), text.endswith(b"*") and len(text) > 1
    how = {
        (False, False): How.FULL,
        (False, True): How.FRONT,
        (True, False): How.END,
        (True, True): How.MIDDLE,
    }[front, back]
    return how, text[front : len(text) - back], negated


def parsed_cpus(text: bytes, nr_cpus: int) -> int | None:
    """bitmap_parselist(): `0,2-5`, `all`, `N` for the last one, `0-7:1/2` for one of each two. A bit for each
    cpu; None: invalid."""
    if not text:
        return None
    mask = 0
    for region in _regions(text.partition(b"\n")[0]):
        match = _REGION.fullmatch(region)
        if match is None:
            return None
        single, first, last, used, of = (_cpu_number(text, nr_cpus) for text in match.groups())
        if single is not None:
            first = last = single
        elif first is None or last is None:
            first, last = 0, nr_cpus - 1
        if used is None or of is None:
            used = of = last + 1
        assert first is not None and last is not None
        if first > last or last >= nr_cpus or of == 0 or used > of:
            return None
        for start in range(first, last + 1, of):
            mask |= ((1 << min(last - start + 1, used)) - 1) << start
    return mask


def _cpu_number(text: bytes | None, nr_cpus: int) -> int | None:
    return None if text is None else nr_cpus - 1 if text == b"N" else int(text)


def _regions(text: bytes) -> Iterator[bytes]:
    return (region for region in _SEPARATORS.split(text) if region)
