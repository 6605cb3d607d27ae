"""Declaring spans: by a name with values, by a declaration, by an event."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.daemons.real_daemon import Work
from utracefs import Session
from utracefs.producer.tracing.spans import declare


def test_a_name_with_values(session: Session) -> None:
    span = declare(
        session, "shop.order", {"order": 7, "who": "x", "paid": True, "raw": b"", "none": None, "f": 0.5}
    )
    own = "s64 order; __rel_loc char[] who; struct bool paid 1; __rel_loc u8[] raw"
    own += "; __rel_loc char[] none; struct double f 8"
    assert span.name == "shop_order"
    assert span.begin.declaration == f"shop_order_begin u64 span_id; u64 parent_id; {own}"
    assert span.end.declaration == (
        f"shop_order_end u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error; {own}"
    )
    assert span.values == (7, "x", True, b"", None, 0.5)
    again = declare(
        session, "shop.order", {"order": "other", "who": 1, "paid": 0, "raw": 0, "none": 0, "f": 1}
    )
    assert again.begin is span.begin
    assert again.values == ("other", 1, 0, 0, 0, 1)
    assert declare(session, "shop.pay", {}).begin.declaration == "shop_pay_begin u64 span_id; u64 parent_id"


def test_a_declaration_and_an_event(session: Session) -> None:
    event = session.event("order u16 id; char[4] kind")
    by_event = declare(session, event, {})
    assert by_event.begin is declare(session, "order u16 id; char[4] kind", {}).begin
    assert by_event.fields == ("id", "kind")
    assert by_event.values is None
    assert declare(session, event, {"kind": "a", "id": 1}).values == (1, "a")


def test_mistakes_are_reported_at_once(session: Session) -> None:
    with pytest.raises(TypeError, match="x is list"):
        declare(session, "shop", {"x": []})
    with pytest.raises(TypeError, match=r"values for kind; its fields are id"):
        declare(session, "shop u16 id", {"kind": 1})
    with pytest.raises(ValueError, match="every span has a field 'error'"):
        declare(session, "shop u16 error", {})
    with pytest.raises(ValueError, match="wrong"):
        declare(session, "shop wrong id", {})
    for without_name in (len, None, " "):  # `@span` above a function, without parentheses
        with pytest.raises(TypeError, match=r'a span has a name: @utracefs.span\("NAME"\)'):
            declare(session, without_name, {})


PROCESS = """
import utracefs
assert utracefs.current_span() is None
first, second = (utracefs.span("test.spans", order=n) for n in (1, 2))
assert first.values == (1,)
assert second.values == (2,)
assert utracefs.span("test.spans", order=[]).values == ([],)
assert second.begin is first.begin
assert not utracefs.span("test.spans", order=1)(parent_id=5)
try:
    utracefs.span(len)
except TypeError as error:
    assert error.__context__ is None, "its traceback is about it alone"
"""


def test_the_functions_of_the_process(directory: Path) -> None:
    subprocess.run([sys.executable, "-c", PROCESS], check=True)


def test_a_duration_is_the_difference_of_the_records_times(work: Work) -> None:
    """Also while the times are counts of the TSC, whose rate the daemon tells after its first 10 ms."""
    work.run("""
        import time
        from utracefs.tree.tracefs import Tracefs

        order = utracefs.span("order")
        wait_for(lambda: not order)
        with Tracefs() as tree:
            tree.write_file("events/user_events/enable", b"1")
        until, count = time.monotonic_ns() + 50_000_000, 0
        while time.monotonic_ns() < until or count < 20:
            with order():
                count += 1
            assert utracefs.flush(60)
    """)
    text = work.tree.read_file("trace").decode()
    ends = re.findall(r" (\d+)\.(\d{6}): order_(begin|end): .*?(?:duration_ns=(0x[0-9a-f]+|\d+)|\n)", text)
    assert len(ends) > 20
    for begin, end in zip(ends[::2], ends[1::2], strict=True):
        took_us = (int(end[0]) - int(begin[0])) * 1_000_000 + int(end[1]) - int(begin[1])
        assert (begin[2], end[2]) == ("begin", "end")
        assert abs(int(end[3], 0) / 1000 - took_us) < 2 + took_us / 1000
