"""Spans: what is written, who is the parent, and what happens when events are switched in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import gc
import itertools
import os
import pickle
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.protocol.events.plain_layout import Layout
from utracefs import Session
from utracefs.producer._event import Event
from utracefs.producer._span import Span, current
from utracefs.producer.declarations.checking import check_declaration
from utracefs.producer.declarations.declaring import make_event
from utracefs.producer.tracing.spans import declare

Records = Callable[[Span], tuple[list[dict[str, Any]], list[dict[str, Any]]]]
Declare = Callable[..., Span]


def switch(daemon: FakeDaemon, event: Event, on: bool) -> None:
    daemon.set_status(event.declaration.encode(), int(on))
    wait_for(lambda: bool(event) is on)


@pytest.fixture
def off(daemon: FakeDaemon, session: Session) -> Declare:
    def make(what: str, **values: Any) -> Span:
        span = declare(session, what, values)
        wait_for(lambda: span.begin.registered and span.end.registered)
        return span

    return make


@pytest.fixture
def on(daemon: FakeDaemon, off: Declare) -> Iterator[Declare]:
    """Declares a span, and enables both of its events."""

    def make(what: str, **values: Any) -> Span:
        span = off(what, **values)
        for event in (span.begin, span.end):
            daemon.enable(event.declaration.encode())
            wait_for(functools.partial(bool, event))
        return span

    yield make
    assert current() is None


@pytest.fixture
def records(daemon: FakeDaemon, session: Session) -> Records:
    def read(span: Span) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        assert session.flush(60)
        found = []
        for event in (span.begin, span.end):
            layout = Layout(check_declaration(event.declaration.encode()).fields)
            payloads = daemon.last.payloads(event.declaration.encode())
            found.append([dict(layout.unpack(payload)) for payload in payloads])
        return found[0], found[1]

    return read


def test_begin_and_end(on: Declare, records: Records) -> None:
    order = on("order u64 order; __rel_loc char[] who")
    with order(7, who="x") as running:
        assert current() is running
        assert running
        running.set(who="y")
    (begin,), (end,) = records(order)
    assert begin == {"span_id": running.span_id, "parent_id": 0, "order": 7, "who": "x"}
    assert 0 < end.pop("duration_ns") < 10**10
    assert end == {"span_id": running.span_id, "parent_id": 0, "error": "", "order": 7, "who": "y"}
    assert 0 < running.span_id < 1 << 63


def test_nested_spans_have_parents(on: Declare, records: Records) -> None:
    outer, inner = on("outer"), on("inner u8 n")
    with outer() as one:
        with inner(1) as two:
            assert two.parent_id == one.span_id
        with inner(2) as three:
            assert three.parent_id == one.span_id
        with inner(3, parent_id=77) as four:
            assert four.parent_id == 77
    assert [r["parent_id"] for r in records(inner)[0]] == [one.span_id, one.span_id, 77]
    assert len({r["span_id"] for r in records(inner)[1]}) == 3


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_the_end_says_which_exception(on: Declare, records: Records, kind: type[BaseException]) -> None:
    span = on("order")
    with pytest.raises(kind), span():
        raise kind("text")
    with pytest.raises(kind):
        span(function_that_raises)(kind)
    span().__enter__().__exit__(kind("text"), None, None)  # type: ignore[arg-type]
    assert [r["error"] for r in records(span)[1]] == [kind.__name__] * 3


def function_that_raises(kind: type[BaseException]) -> None:
    raise kind


def test_off_it_is_nothing_but_checks_names(off: Declare, records: Records) -> None:
    span = off("order u64 order")
    assert not span
    for use in (span(7), span(order=7), off("other", a=1), off("other", a=1)(), off("plain")):
        with use as running:
            assert not running
            assert running.span_id == running.parent_id == 0
            assert current() is None
    assert records(span) == ([], [])
    with pytest.raises(TypeError, match="no field 'x'"), span(7) as running:
        running.set(x=1)


@pytest.mark.parametrize("enabled", [True, False])
def test_wrong_values_are_type_errors_on_and_off(on: Declare, off: Declare, enabled: bool) -> None:
    span = (on if enabled else off)("order u64 order; u8 kind")
    for args, named, text in [
        ((1, 2, 3), {}, "3 values for 2 fields"),
        ((1, 2), {"kind": 2}, "two values"),
        ((1, 2), {"other": 2}, "no field 'other'"),
        ((print,), {}, "a function needs the values"),
    ]:
        with pytest.raises(TypeError, match=text):
            span(*args, **named)
    with pytest.raises(TypeError, match="no values for order, kind"), span:
        pass
    with pytest.raises(TypeError, match="no field 'x'"), span(1, 2) as running:
        running.set(x=3)
    with pytest.raises(TypeError, match="by the names"):
        span(1, 2).set(3)


def test_a_field_without_a_value_may_be_set_until_the_end(on: Declare, records: Records) -> None:
    span = on("shop __rel_loc char[] route; u16 status; char[4] kind")
    for use in (span("/"), span(route="/")):
        with use as running:
            running.set(status=200, kind="a")
    with pytest.raises(KeyError), span("/failed"):
        raise KeyError  # a request that failed has no status: there is no warning
    with pytest.warns(RuntimeWarning) as warned:  # noqa: PT031
        for _ in range(2):
            with span("/never") as running:
                running.set(kind="b")
    assert [str(one.message) for one in warned] == [
        "shop_end: field 'status' got no value until the end: it is 0 or empty"
    ]
    begins, ends = records(span)
    assert [(b["route"], b["status"]) for b in begins] == [
        (route, 0) for route in ("/", "/", "/failed", "/never", "/never")
    ]
    assert [(e["route"], e["status"]) for e in ends][:3] == [("/", 200), ("/", 200), ("/failed", 0)]
    assert [(e["route"], e["status"], e["kind"]) for e in ends][3:] == [("/never", 0, "b")] * 2


def response(*, status: utracefs.u16, size: utracefs.u32 = 7) -> None: ...


@pytest.mark.parametrize("end", ["u16 status; u32 size", response])
def test_fields_of_the_end_only(
    daemon: FakeDaemon, session: Session, records: Records, off: Declare, end: Any
) -> None:
    span = declare(session, "shop __rel_loc char[] route", {}, end)
    assert span.begin.fields[2:] == ("route",)
    assert span.end.fields[4:] == ("route", "status", "size")
    by_name = declare(session, "named", {"route": "/"}, end)
    alone = declare(session, "alone", {}, end)
    for one in (span, by_name, alone):
        wait_for(lambda: one.begin.registered and one.end.registered)  # noqa: B023
        with one if one.values else one("/") as off_one:
            off_one.set(status=1)
        switch(daemon, one.begin, True)
        switch(daemon, one.end, True)
        with one if one.values else one("/") as running:
            running.set(status=200, **({} if callable(end) else {"size": 7}))
        with one(status=300, size=8):
            pass
        begins, ends = records(one)
        assert "status" not in begins[0]
        assert [(e["status"], e["size"]) for e in ends] == [(200, 7), (300, 8)]
    assert alone(len)("ab") == 2
    with pytest.raises(ValueError, match="two fields 'route'"):
        declare(session, "shop __rel_loc char[] route", {}, "u8 route")
    with pytest.raises(ValueError, match="every span has a field 'error'"):
        declare(session, "shop", {}, "u8 error")


def test_a_value_that_does_not_fit_is_refused_and_counted(on: Declare, records: Records) -> None:
    span = on("order u8 order")
    with pytest.warns(RuntimeWarning, match="order"), span(1000), span(3):
        pass
    assert span.begin.refused == span.end.refused == {"order was out of range": 1}
    assert [r["order"] for r in records(span)[0]] == [3]


def test_strict_spans_raise_also_when_off(off: Declare) -> None:
    span = off("order u8 order")
    before = utracefs.strict(True)
    try:
        with pytest.raises(OverflowError), span(1000):
            pass
        assert current() is None
    finally:
        utracefs.strict(before)


# ---- switched in the middle


def test_switched_on_in_the_middle_writes_nothing(daemon: FakeDaemon, off: Declare, records: Records) -> None:
    span = off("order")
    with span():
        daemon.enable(span.begin.declaration.encode())
        daemon.enable(span.end.declaration.encode())
        wait_for(lambda: bool(span.begin) and bool(span.end))
    assert records(span) == ([], [])


def test_switched_off_in_the_middle_leaves_a_begin(daemon: FakeDaemon, on: Declare, records: Records) -> None:
    span = on("order")
    with span():
        switch(daemon, span.end, False)
        switch(daemon, span.begin, False)
    begins, ends = records(span)
    assert len(begins) == 1
    assert ends == []


def test_an_end_alone_has_the_duration(daemon: FakeDaemon, on: Declare, records: Records) -> None:
    span = on("order")
    switch(daemon, span.begin, False)
    with span() as running:
        pass
    begins, (end,) = records(span)
    assert begins == []
    assert end["span_id"] == running.span_id
    assert end["duration_ns"] > 0


@pytest.mark.parametrize("same_context", [True, False])
def test_an_end_of_a_use_that_was_off_ends_no_other(same_context: bool) -> None:
    span, other = offline(), contextvars.Context()
    if not same_context:
        other.run(span.__enter__)
    before = utracefs.strict(True)  # as if on
    try:
        with span as running:
            if same_context:
                utracefs.strict(False)
                with span:
                    pass
                utracefs.strict(True)
            else:
                other.run(span.__exit__, None, None, None)
            assert current() is running
        assert current() is None
    finally:
        utracefs.strict(before)


# ---- contexts


def test_threads_begin_without_a_parent_unless_the_context_is_copied(on: Declare, records: Records) -> None:
    span = on("order")

    def work() -> None:
        with span():
            pass

    with span() as outer:
        context = contextvars.copy_context()
        for target in (work, functools.partial(context.run, work)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert [r["parent_id"] for r in records(span)[0]] == [0, 0, outer.span_id]


def test_tasks_have_the_parent_of_their_creator(on: Declare, records: Records) -> None:
    span, late = on("order u8 n"), on("late")

    async def work(n: int) -> None:
        with span(n) as own:
            await asyncio.sleep(0)
            assert current() is own

    async def later() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with late():
            pass
        with late():
            pass

    async def main() -> int:
        with span(0) as outer:
            task = asyncio.create_task(later())
            await asyncio.gather(work(1), work(2))
        await task
        return outer.span_id

    outer_id = asyncio.run(main())
    assert [r["parent_id"] for r in records(span)[0]] == [0, outer_id, outer_id]
    assert [r["parent_id"] for r in records(late)[0]] == [outer_id, outer_id]  # it has ended, but caused it


def test_an_end_in_another_context(on: Declare, records: Records) -> None:
    span = on("order")
    outer = span()
    outer.__enter__()
    contextvars.Context().run(outer.__exit__, None, None, None)
    assert current() is None
    with span() as next_one:
        assert next_one.parent_id == 0
    assert len(records(span)[1]) == 2


def held_by_the_context() -> object:
    return {var.name: value for var, value in contextvars.copy_context().items()}.get("utracefs.span")


def test_no_order_leaves_a_span_in_the_context(on: Declare) -> None:
    for order in itertools.permutations(range(3)):
        uses = [on("order")() for _ in order]
        for use in uses:
            use.__enter__()
        for n in order:
            uses[n].__exit__(None, None, None)
        assert held_by_the_context() is None, order


def test_other_variables_of_the_context_keep_what_the_span_s_body_set(on: Declare) -> None:
    first = contextvars.ContextVar[int]("first")
    others = [contextvars.ContextVar[int](f"other{n}") for n in range(40)]
    span = on("order")
    first.set(1)
    with span():
        assert first.get() == 1
        first.set(2)
        first.set(3)
    with span():
        with span():
            assert [other.get(None) for other in others] == [None] * 40
            for n, other in enumerate(others):
                other.set(n)
        assert [other.get() for other in others] == list(range(40))
        first.set(4)
    assert first.get() == 4
    assert [other.get() for other in others] == list(range(40))
    token = first.set(5)
    with span():
        first.reset(token)
    assert first.get() == 4
    assert current() is None


def test_a_copy_of_the_context_keeps_the_span_of_its_moment(on: Declare, records: Records) -> None:
    span, other = on("order"), on("other")
    variable = contextvars.ContextVar[int]("variable")

    def child() -> int:
        variable.set(1)
        with other() as running:
            return running.parent_id

    with span() as one:
        within = contextvars.copy_context()
        changed = contextvars.copy_context()
        changed.run(variable.set, 2)
    after = contextvars.copy_context()
    with span() as two:
        assert [context.run(child) for context in (within, changed, after)] == [one.span_id, one.span_id, 0]
        assert [context.run(current) for context in (within, changed, after)] == [one, one, None]
        assert current() is two
    assert variable.get(None) is None


def test_a_span_that_never_ends_is_freed_with_its_context(on: Declare) -> None:
    class Values:
        """Can be watched."""

    variable = contextvars.ContextVar[Values]("variable")
    values = Values()
    gone = weakref.ref(values)

    def begin(values: Values) -> None:
        variable.set(values)
        on("order")().__enter__()

    contextvars.Context().run(begin, values)
    del values
    gc.collect()
    assert gone() is None


def test_a_use_by_other_ways_than_with(on: Declare, off: Declare, records: Records) -> None:
    span = on("order u8 n")
    for use in (span(1), off("other u8 n")(1)):
        with contextlib.ExitStack() as stack:
            assert stack.enter_context(use) is use
        assert type(use).__enter__(use) is use
        type(use).__exit__(use, KeyError, KeyError("x"), None)
        assert use.__enter__() is use
        use.__exit__(None, None, None)
        assert not hasattr(use, "__aenter__")
        assert copy.copy(use) is copy.deepcopy(use) is use
        with pytest.raises(pickle.PicklingError, match="a use of a span"):
            pickle.dumps(use)
        for wrong in ((1,), (1, 2), (1, 2, 3, 4)):
            with pytest.raises(TypeError, match="__exit__"):
                use.__exit__(*wrong)
    assert [r["error"] for r in records(span)[1]] == ["", "KeyError", ""]


def test_an_end_in_a_copy_of_its_context(on: Declare, records: Records) -> None:
    span = on("order")

    def steps() -> Generator[None, None, None]:
        with span():
            yield

    with span() as outer:
        for _ in range(3):
            generator = steps()
            next(generator)
            assert current() is not outer
            contextvars.copy_context().run(generator.close)
            assert current() is outer
    assert current() is None
    assert [r["error"] for r in records(span)[1]] == ["GeneratorExit"] * 3 + [""]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
@settings(deadline=None)
def test_any_order_leaves_no_span_behind(steps: list[tuple[int, bool]]) -> None:
    """Begins and ends in any order, in one context: at the end there is none, and each has ended once."""
    before = utracefs.strict(True)  # as if on
    try:
        span = offline()
        open_ones: list[Any] = []
        for n, ends in steps:
            if ends and open_ones:
                open_ones.pop(n % len(open_ones)).__exit__(None, None, None)
            else:
                running = span()
                running.__enter__()
                assert running.parent_id == (open_ones[-1].span_id if open_ones else 0)
                open_ones.append(running)
        while open_ones:
            open_ones.pop(0).__exit__(None, None, None)
        assert current() is None
    finally:
        utracefs.strict(before)


def offline() -> Span:
    return Span("order", _event("a"), _event("b"), ())


def _event(name: str) -> Event:
    fields = "u64 span_id; u64 parent_id" + "; u64 duration_ns; __rel_loc char[] error" * (name == "b")
    return make_event(None, check_declaration(f"test_span_{name} {fields}".encode()), 0)


def test_spans_that_overlap_are_not_kept() -> None:
    """Each begins before the previous one ends."""
    strict = utracefs.strict(True)  # as if on
    span = offline()

    def chain(length: int) -> int:
        before = span().__enter__()
        for n in range(length):
            after = span().__enter__()
            before.__exit__(None, None, None)
            before = after
            if n == 10:
                tracemalloc.start()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept

    try:
        assert contextvars.Context().run(chain, 5000) < 20_000
    finally:
        utracefs.strict(strict)


# ---- one object, several uses


def test_one_span_entered_again(on: Declare, records: Records) -> None:
    span = on("order", n=1)
    with span as outer, span as inner:
        assert inner.parent_id == outer.span_id
    use = span()
    with use, use:
        pass
    with use:
        pass
    assert len(records(span)[1]) == 4


def test_a_use_entered_again_has_the_parent_of_that_time(on: Declare) -> None:
    span = on("order")
    use = span(parent_id=None)
    for _ in range(2):
        with span() as outer, use as running:
            assert running.parent_id == outer.span_id


def test_a_use_entered_again_in_a_copy_of_its_context(on: Declare) -> None:
    """It is not its own parent: looking for the present span would never end."""
    use = on("order")()
    with use as running:
        copied = contextvars.copy_context()
    copied.run(running.__enter__)
    running.__exit__(None, None, None)
    assert copied.run(current) is None


def test_a_long_chain_of_parents_is_freed(on: Declare) -> None:
    span = on("order")
    contextvars.Context().run(lambda: [span().__enter__() for _ in range(300_000)][:0])


# ---- processes


def test_ids_of_a_forked_child_differ(on: Declare) -> None:
    span = on("order")
    reader, writer = os.pipe()
    with span():
        pass
    child = os.fork()
    if not child:
        use = span()
        use.__enter__()
        os.write(writer, str(use.span_id if hasattr(use, "set") else 0).encode())
        os._exit(0)
    os.waitpid(child, 0)
    with span() as own:
        assert own.span_id != int(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
