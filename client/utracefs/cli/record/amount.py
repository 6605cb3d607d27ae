"""SIZE and TIME of `--flight` and `--switch-output`, spelled as perf does: 64M, 60s."""

import re
from functools import partial
from typing import Final

import attrs

from utracefs.cli import Parsed
from utracefs_protocol.text import TIME_UNITS

_SIZES: Final = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MAX: Final = 1 << 50
"""Limit of bytes and of seconds."""


@attrs.frozen
class Amount:
    """Bytes or seconds; one of them is 0. Both: at a signal only."""

    text: str
    """As given."""
    size: int = 0
    seconds: int = 0


def amount(text: str, word: str = "") -> Amount:
    """Parse a number and a unit, or `word`, which has no amount. ValueError."""
    if word and text == word:
        return Amount(text)
    found = re.fullmatch(r"([0-9]{1,15})([BKMGsmhd])", text)
    number = int(found[1]) * (_SIZES | TIME_UNITS)[found[2]] if found else 0
    if not found or not 0 < number <= _MAX:
        more = f", or `{word}`" if word else ""
        raise ValueError(f"{text!r} is not SIZE (B, K, M, G) or TIME (s, m, h, d), like 64M or 60s{more}")
    return Amount(text, size=number) if found[2] in _SIZES else Amount(text, seconds=number)


def amount_type(word: str = "") -> Parsed:
    return Parsed("amount", partial(amount, word=word))
