"""Values of a context in events, spans and forked tasks; and nothing of it in programs that do not use it."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.protocol.events.plain_layout import Layout
from utracefs import Session, context
from utracefs.producer._event import Event
from utracefs.producer.declarations.checking import check_declaration
from utracefs.producer.fallback import without_tracing
from utracefs.producer.tracing.contexts import present
from utracefs.producer.tracing.spans import declare

FIELDS = "u16 status; __rel_loc char[] request_id; u32 tenant"
Read = Callable[[Event], list[tuple[Any, ...]]]


@pytest.fixture
def on(daemon: FakeDaemon, session: Session) -> Event:
    event = session.event(f"login {FIELDS}")
    daemon.enable(event.declaration.encode())
    wait_for(lambda: event.registered and event)
    return event


@pytest.fixture
def read(daemon: FakeDaemon, session: Session) -> Read:
    def records(event: Event) -> list[tuple[Any, ...]]:
        assert session.flush(60)
        layout = Layout(check_declaration(event.declaration.encode()).fields)
        payloads = daemon.last.payloads(event.declaration.encode())
        return [tuple(dict(layout.unpack(payload)).values()) for payload in payloads]

    return records


def test_missing_fields_are_those_of_the_context(on: Event, read: Read) -> None:
    with context(request_id="a1", tenant=5):
        on.emit(200)
        on.emit(201, "own")
        on.emit(status=202, tenant=6)
        with context(request_id="b2"):
            on.emit(203)
        on.emit(204)
    on.emit(205)
    assert read(on) == [
        (200, "a1", 5),
        (201, "own", 5),
        (202, "a1", 6),
        (203, "b2", 5),
        (204, "a1", 5),
        (205, "", 0),
    ]
    assert present() == {}


@pytest.mark.parametrize("enabled", [True, False])
def test_other_fields_must_be_given_on_and_off(on: Event, session: Session, enabled: bool) -> None:
    event = on if enabled else session.event(f"other {FIELDS}")
    context(request_id="", tenant=0)
    event.emit(1)
    for args, named, text in [
        ((), {}, "0 values for 3 fields"),
        ((), {"tenant": 1}, "no value for the field 'status'"),
        ((1, "", 3, 4), {}, "4 values for 3 fields"),
        ((1,), {"x": 1}, "no field 'x'"),
    ]:
        with pytest.raises(TypeError, match=text):
            event.emit(*args, **named)


def test_a_value_of_another_type_is_refused(on: Event, read: Read) -> None:
    with context(request_id=5, tenant=1), pytest.warns(RuntimeWarning, match="request_id"):
        on.emit(200)
    assert on.refused == {"request_id was int": 1}
    with context(request_id=None, tenant=None):
        on.emit(200)
    assert read(on) == [(200, "", 0)]


def test_tasks_have_it_and_threads_do_not(on: Event, read: Read) -> None:
    shared = context(request_id="shared", tenant=1)

    async def work(n: int) -> None:
        with shared, context(tenant=n):
            await asyncio.sleep(0)
            on.emit(n)
        assert present() == {}

    async def main() -> None:
        await asyncio.gather(*[work(n) for n in range(3)])

    asyncio.run(main())
    with shared:
        thread = threading.Thread(target=on.emit, args=(9,))
        thread.start()
        thread.join()
    assert read(on) == [(n, "shared", n) for n in range(3)] + [(9, "", 0)]


def rows(name: str) -> Generator[int, None, None]:
    with context(request_id=name):
        yield 1
        yield 2


def test_a_generator_that_outlives_its_caller_s_context() -> None:
    with context(request_id="a", tenant=1):
        suspended = rows("rows")
        next(suspended)
        assert present() == {"request_id": "rows", "tenant": 1}
    assert present() == {}
    with context(request_id="b"):
        suspended.close()
        assert present() == {"request_id": "b"}
        other = rows("other")
        next(other)
        next(other)
        other.close()
        assert present() == {"request_id": "b"}
    assert present() == {}


@pytest.mark.parametrize("copied", [True, False])
def test_the_end_in_another_context_ends_it_in_its_own(copied: bool) -> None:
    with context(request_id="a"):
        suspended = rows("rows")
        next(suspended)
        (contextvars.copy_context() if copied else contextvars.Context()).run(suspended.close)
        assert present() == {"request_id": "a"}
    assert present() == {}


def test_a_task_keeps_the_values_of_a_context_that_ends_regularly() -> None:
    async def work() -> object:
        await asyncio.sleep(0)
        return dict(present())

    async def main() -> object:
        with context(request_id="a"):
            task = asyncio.create_task(work())
        assert present() == {}
        return await task

    assert asyncio.run(main()) == {"request_id": "a"}


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_any_order(steps: list[tuple[int, bool]]) -> None:
    """Begins and ends in any order: an end removes what began after it, too."""
    began: list[int] = []
    uses = [context(**{f"n{n}": n}) for n in range(20)]
    todo = list(range(20))
    for n, ends in steps:
        if ends and began:
            at = n % len(began)
            uses[began[at]].__exit__()
            del began[at:]
        elif todo:
            began.append(todo.pop())
            uses[began[-1]].__enter__()
        assert present() == {f"n{one}": one for one in began}
    for use in uses:
        use.__exit__()
    assert present() == {}


def test_a_declared_span(daemon: FakeDaemon, session: Session, read: Read) -> None:
    span = declare(session, "job u16 n; __rel_loc char[] request_id", {})
    for event in (span.begin, span.end):
        daemon.enable(event.declaration.encode())
    wait_for(lambda: bool(span.begin) and bool(span.end))
    with context(request_id="a1"):
        running = span(7)
    with running:
        pass
    (begin,) = read(span.begin)
    assert begin[2:] == (7, "a1")
    assert read(span.end)[0][4:] == (7, "a1")


def test_events_that_are_never_on_take_the_same_arguments() -> None:
    names = b"status", b"request_id", b"tenant"
    event = without_tracing.Event(None, b"login", b"", b"", 0, [(name,) for name in names], 0)
    without_tracing.use_context(None, {"request_id", "tenant"})
    event.emit(1)
    event.emit(status=1, tenant=3)
    with pytest.raises(TypeError, match="status"):
        event.emit(tenant=3)


def test_before_the_first_context_every_field_must_be_given() -> None:
    code = (
        "import utracefs\n"
        "try: utracefs.event('login u8 a; u8 b').emit(1)\n"
        "except TypeError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("login: 1 values for 2 fields (a, b)")
