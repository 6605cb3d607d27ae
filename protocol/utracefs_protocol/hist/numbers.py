"""Numbers in texts, as kstrtoull() of lib/kstrtox.c reads them with base 0."""

_MAX = (1 << 64) - 1


def parse_unsigned(text: bytes) -> int:
    """Decimal, 0x hexadecimal or 0 octal, with an optional leading `+`; one newline may follow.

    ValueError: anything else. OverflowError: more than 64 bits.
    """
    digits = text.removeprefix(b"+").removesuffix(b"\n")
    base = 10
    if digits[:2].lower() == b"0x" and len(digits) > 2:
        digits, base = digits[2:], 16
    elif digits[:1] == b"0":
        base = 8
    if not digits.isalnum():
        raise ValueError(f"{text[:40]!r} is not a number")
    value = int(digits, base)
    if value > _MAX:
        raise OverflowError(f"{text[:40]!r} has more than 64 bits")
    return value
