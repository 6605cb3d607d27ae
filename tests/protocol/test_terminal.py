from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click.utils
import pytest

from utracefs_protocol.terminal import drop_unwritten, harmless, in_one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http_request\tusec=5\n", "http_request\tusec=5\n"),
        (
            "gr\u00fc\u00df \u65e5\u672c \u05e9\u05dc\u05d5\u05dd",
            "gr\u00fc\u00df \u65e5\u672c \u05e9\u05dc\u05d5\u05dd",
        ),
        ("\x1b]0;title\x07\r", "?]0;title??"),
        ("\x9b31m\x7f\0", "?31m??"),
        ("a\u202eb\u2066c\u2069\u2028", "a?b?c??"),
        ("\udc9b\udcff", "??"),
    ],
)
def test_what_steers_a_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_one_line() -> None:
    assert in_one_line("a\nb\r\n\tc\x1b") == "a?b??\tc\x1b"


@pytest.mark.parametrize("wrapped", [lambda stream: stream, click.utils._PacifyFlushWrapper])
def test_output_to_a_closed_pipe_is_dropped(
    monkeypatch: pytest.MonkeyPatch, wrapped: Callable[[object], object]
) -> None:
    """Also behind the wrapper that click puts around it when it meets EPIPE."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", wrapped(stream))
        stream.write("nobody reads this")
        drop_unwritten()
        stream.close()
        assert stream.closed
