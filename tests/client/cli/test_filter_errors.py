"""Errors of a filter or a trigger: the place in the text."""

import pytest

from utracefs.cli import Failure
from utracefs.cli.filter_errors import about_the_filter, filter_refusal, logged_refusals, trigger_refusal
from utracefs.tree.event_names import EventName
from utracefs_protocol.filter import parse_filter

EVENT = EventName("user_events", "ev")


@pytest.mark.parametrize(
    ("shown", "reason", "detail"),
    [
        (
            b"stauts >= 500\n       ^\nparse_error: Field not found\n\n",
            "Field not found",
            "  stauts >= 500\n         ^",
        ),
        (b"a ==\n1 x\n    ^\nparse_error: Y\n\n", "Y", "  a ==\n  1 x\n      ^"),
        (b"\nError: (0)\n\n", "Invalid argument", "  stauts >= 500"),
        (b"none\n", "Invalid argument", "  stauts >= 500"),
        (b"", "Invalid argument", "  stauts >= 500"),
    ],
)
def test_filters(shown: bytes, reason: str, detail: str) -> None:
    refusal = filter_refusal("stauts >= 500", shown, "Invalid argument")
    failure = refusal.failure(EVENT)
    assert (failure.about, failure.reason) == ("user_events:ev", f"filter: {reason}")
    assert failure.detail == detail
    assert refusal.consequence == "recorded without the filter"


LOG = b"""\
[    1.000000] event filter parse error: error: Field not found
  Command: other == 1
                ^
[    2.500000] %s: error: Couldn't find field
  Command: %s
           %s^
"""


@pytest.mark.parametrize(
    ("text", "location", "command", "column"),
    [
        ("hist:keys=stauts", b"hist:user_events:ev", b"hist:keys=stauts", 10),
        ("traceoff if stauts == 1", b"event filter parse error", b"stauts == 1", 7),
    ],
)
def test_triggers(text: str, location: bytes, command: bytes, column: int) -> None:
    log = LOG % (location, command, b" " * column)
    refusal = trigger_refusal(text, log, "Invalid argument")
    assert refusal.reason == "Couldn't find field"
    assert refusal.detail == f"  {command.decode()}\n  {' ' * column}^"
    assert refusal.consequence == "has not the trigger"


def test_what_the_log_says_of_histograms() -> None:
    log = LOG % (b"hist:user_events:ev", b"hist:keys=a", b"     ")
    ((event, text, refusal),) = logged_refusals({"hist:keys=a", "other == 1"}, log)
    assert (event, text, refusal.reason) == ("user_events:ev", "hist:keys=a", "Couldn't find field")
    assert refusal.detail == "  hist:keys=a\n       ^"
    assert list(logged_refusals({"hist:keys=b"}, log)) == []
    log = log.replace(b"Couldn't find field", b"Hist trigger already exists")
    assert list(logged_refusals({"hist:keys=a"}, log)) == []


@pytest.mark.parametrize("log", [b"", LOG % (b"x", b"of another", b""), b"\n\n^\n"])
def test_triggers_of_which_the_log_says_nothing(log: bytes) -> None:
    refusal = trigger_refusal("nonsense", log, "there is no trigger 'nonsense'")
    assert (refusal.reason, refusal.detail) == ("there is no trigger 'nonsense'", "  nonsense")


def test_a_filter_for_a_file_is_shown_as_one_for_an_event() -> None:
    with pytest.raises(Failure) as error, about_the_filter("t.dat", "stauts >= 500"):
        parse_filter(b"stauts >= 500", ())
    assert (error.value.about, error.value.reason) == ("t.dat", "filter: Field not found")
    assert error.value.detail == "  stauts >= 500\n         ^"
