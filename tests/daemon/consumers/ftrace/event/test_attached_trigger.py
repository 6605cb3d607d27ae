"""The line of an attached trigger, and its entry in the state."""

import pytest

from utracefsd.consumers.ftrace.event.attached_trigger import count_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, b":count=0"),
        (1, b":count=1"),
        ((1 << 63) - 1, b":count=9223372036854775807"),
        (1 << 63, b":count=-9223372036854775808"),
        ((1 << 64) - 2, b":count=-2"),
        ((1 << 64) - 1, b":unlimited"),
    ],
)
def test_counts(count: int, text: bytes) -> None:
    assert count_text(count) == text
