"""SIZE and TIME of the options."""

import pytest

from utracefs.cli.record.amount import Amount, amount


@pytest.mark.parametrize(
    ("text", "size", "seconds"),
    [
        ("1B", 1, 0),
        ("64M", 64 << 20, 0),
        ("3K", 3072, 0),
        ("2G", 2 << 30, 0),
        ("60s", 0, 60),
        ("5m", 0, 300),
        ("2h", 0, 7200),
        ("7d", 0, 604800),
    ],
)
def test_as_perf_spells_them(text: str, size: int, seconds: int) -> None:
    assert amount(text) == Amount(text, size, seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "64",
        "M",
        "0M",
        "0s",
        "-1M",
        "1.5M",
        "64k",
        "64MB",
        "1 M",
        "60S",
        "1e3s",
        "٣M",
        "9" * 16 + "B",
        "signal",
    ],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not SIZE"):
        amount(text)


def test_a_limit() -> None:
    with pytest.raises(ValueError):
        amount("999999999999G")


def test_words() -> None:
    assert amount("signal", "signal") == Amount("signal")
    with pytest.raises(ValueError, match="or `signal`"):
        amount("signals", "signal")
