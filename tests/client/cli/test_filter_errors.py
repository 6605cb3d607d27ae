"""Errors of a filter or a trigger: the place in the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs.cli import Failure
from utracefs.cli.filter_errors import (
    about_the_filter,
    filter_refusal,
    logged_refusals,
    syntax_refusal,
    trigger_refusal,
)
from utracefs.tree.event_names import EventName
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import FilterError, parse_filter
from utracefs_protocol.filter.parse import is_no_filter

EVENT = EventName("user_events", "ev")

ADVICE = "; the event's `format` lists its fields"


@pytest.mark.parametrize(
    ("shown", "reason", "detail"),
    [
        (
            b"stauts >= 500\n       ^\nparse_error: Field not found\n\n",
            f"Field not found{ADVICE}",
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
    assert refusal.consequence == "is without the trigger"


def test_what_the_log_says_of_histograms() -> None:
    log = LOG % (b"hist:user_events:ev", b"hist:keys=a", b"     ")
    ((event, text, refusal),) = logged_refusals({"hist:keys=a", "other == 1"}, log)
    assert (event, text, refusal.reason) == ("user_events:ev", "hist:keys=a", "Couldn't find field")
    assert refusal.detail == "  hist:keys=a\n       ^"
    assert list(logged_refusals({"hist:keys=b"}, log)) == []
    of_filter = LOG % (b"event filter parse error", b"a == 1", b"")
    ((event, text, refusal),) = logged_refusals({"hist:keys=a if a == 1"}, of_filter)
    assert (event, text, refusal.reason) == ("", "hist:keys=a if a == 1", "Couldn't find field")
    assert list(logged_refusals({"hist:keys=a if b == 1", "hist:keys=a"}, of_filter)) == []
    log = log.replace(b"Couldn't find field", b"Hist trigger already exists")
    assert list(logged_refusals({"hist:keys=a"}, log)) == []


@pytest.mark.parametrize("log", [b"", LOG % (b"x", b"of another", b""), b"\n\n^\n"])
def test_triggers_of_which_the_log_says_nothing(log: bytes) -> None:
    refusal = trigger_refusal("nonsense", log, "there is no trigger 'nonsense'")
    assert (refusal.reason, refusal.detail) == ("there is no trigger 'nonsense'", "  nonsense")


def test_a_filter_for_a_file_is_shown_as_one_for_an_event() -> None:
    with pytest.raises(Failure) as error, about_the_filter("t.dat", "stauts >= 500"):
        parse_filter(b"stauts >= 500", ())
    assert (error.value.about, error.value.reason) == (
        "t.dat",
        "filter: Field not found; `utracefs sql t.dat` lists the fields",
    )
    assert error.value.detail == "  stauts >= 500\n         ^"


# Errors that do not depend on the event; the daemon's parser is the judge.

FIELDS = parse(b"ev u32 a; s64 b; char[8] s; __rel_loc char[] path").fields


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "a == 1",
        ' !a==0x1f&&(b<-5 || !(s ~ "x*" ))',
        's != \'it "is" (\' && path == "&& )"',
        "a & 3 || CPU == CPUS{0-1}",
        "((((a > 1))))",
        "!!a != 1",
        "nosuch == 'x'",
        "nosuch > 1.5 && (nosuch<-2.5e-3||nosuch != 1E+9)",
    ],
)
def test_what_may_be_right(text: str) -> None:
    assert syntax_refusal(text, "filter") is None


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("status => 500", "Invalid operator", 7),
        ("status = 500", "Invalid operator", 7),
        ("status", "Invalid operator", 6),
        ("a == ", "Invalid value (did you forget quotes)?", 5),
        ("path == x", "Invalid value (did you forget quotes)?", 8),
        ("a == 1 and b == 2", "Too many terms in predicate expression", 7),
        ("a == 1 & b == 2", "Too many terms in predicate expression", 7),
        ("a == 1 &&", "Meaningless filter expression", 9),
        ("== 1", "a field was expected", 0),
        ("a == 1 && && b == 2", "a field was expected", 10),
        ("()", "a field was expected", 2),
        ("", "a field was expected", 0),
        ("((a == 1)", "Too many '('", 0),
        ("a == 1)", "Too few '('", 6),
        ("path == \"x && a == 'y'", "Missing matching quote", 8),
    ],
)
def test_mistakes(text: str, message: str, column: int) -> None:
    found = syntax_refusal(text, "filter")
    assert found is not None
    assert (found.reason, found.detail) == (message, f"  {text}\n  {' ' * column}^")


PIECES = ["a", "b", "s", "path", "CPU", "==", "!=", "~", "<", ">=", "&", "&&", "||", "!", "(", ")", "1", "-5"]
PIECES += ["0x1F", '"x*"', "'y'", "CPUS{0}", " ", "\t", ".", "=", "|", '"', "1.5", "ä", "0", ".ustring", ";"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20))
def test_what_is_refused_here_fits_no_event(text: str) -> None:
    data = text.encode()
    if "\0" in text or syntax_refusal(text, "filter") is None or is_no_filter(data):
        return
    with pytest.raises(FilterError):
        parse_filter(data, FIELDS)


PREDICATES = st.sampled_from(["a == 1", "b<-5", '!s ~ "x*"', "path != 'a && ('", "CPU & CPUS{0}", "a&3"])


@given(
    st.recursive(
        PREDICATES,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["&&", " || "]), inner).map("".join),
            inner.map("( {} )".format),
            inner.map("!({})".format),
        ),
        max_leaves=8,
    )
)
def test_what_fits_is_not_refused_here(text: str) -> None:
    parse_filter(text.encode(), FIELDS)
    assert syntax_refusal(text, "filter") is None
