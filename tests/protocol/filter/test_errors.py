"""The texts of errors."""

import errno
from typing import Any

import pytest

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import errors
from utracefs_protocol.filter.errors import FilterError

MESSAGES: dict[str, Any] = {
    name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)
}


@pytest.mark.parametrize("message", [*MESSAGES.values(), ""])
def test_each_message_says_what_to_do(message: str) -> None:
    error = FilterError(message, 3)
    assert isinstance(error, TraceError)
    where, _, advice = error.text.partition(": ")
    assert where == f"{message or 'not a filter'} at column 3"
    assert len(advice) > 10


def test_the_kernel_has_no_more() -> None:
    assert len(MESSAGES) == 19
    assert FilterError("").errno == errno.EINVAL


@pytest.mark.parametrize(
    ("position", "column"), [(None, 0), (0, 0), (1, 1), (6, 6), (7, 7), (8, 7), (999, 7)]
)
def test_the_caret_stays_below_the_text(position: int | None, column: int) -> None:
    shown = FilterError(errors.INVALID_OPERATOR, position).shown(b"abc\ndef")
    assert shown == b"abc\ndef\n" + b" " * column + b"^\nparse_error: Invalid operator\n"
