"""W3C traceparent: what is taken, and what is ignored as the specification wants it."""

import pytest

from utracefs.producer.tracing.http_requests import parsed, traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "text", [f"00-{TRACE}-{SPAN}-01", f" 00-{TRACE}-{SPAN}-00 ", f"cc-{TRACE}-{SPAN}-01-new"]
)
def test_valid(text: str) -> None:
    assert parsed(text) == (TRACE, 0xF067AA0BA902B7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}g-01",
        f"0x-{TRACE}-{SPAN}-01",
    ],
)
def test_invalid(text: str) -> None:
    assert parsed(text) is None


def test_without_a_request_there_is_none() -> None:
    assert traceparent() == ""
