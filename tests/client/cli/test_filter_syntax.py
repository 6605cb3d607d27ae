"""Errors in a filter that do not depend on the event; the daemon's parser is the judge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs.cli.filter_syntax import SyntaxMistake, syntax_mistake
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter.errors import FilterError
from utracefs_protocol.filter.parse import is_no_filter, parse_filter

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
    assert syntax_mistake(text) is None


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
        ("()", "a field was expected", 1),
        ("", "Meaningless filter expression", 0),
        ("((a == 1)", "Too many '('", 0),
        ("a == 1)", "Too few '('", 6),
        ("path == \"x && a == 'y'", "Missing matching quote", 8),
    ],
)
def test_mistakes(text: str, message: str, column: int) -> None:
    assert syntax_mistake(text) == SyntaxMistake(message, column)


PIECES = ["a", "b", "s", "path", "CPU", "==", "!=", "~", "<", ">=", "&", "&&", "||", "!", "(", ")", "1", "-5"]
PIECES += ["0x1F", '"x*"', "'y'", "CPUS{0}", " ", "\t", ".", "=", "|", '"', "1.5", "ä", "0", ".ustring", ";"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20))
def test_what_is_refused_here_fits_no_event(text: str) -> None:
    data = text.encode()
    if "\0" in text or syntax_mistake(text) is None or is_no_filter(data):
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
    assert syntax_mistake(text) is None
