"""Decorated generators and coroutines: between their steps the caller's span is the present one, and all that
a caller can see of them is that of the plain ones."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import traceback
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.test_span import Declare, Records, off, offline, on, records
from utracefs._span import current

__all__ = ["off", "on", "records"]


def test_the_span_of_a_coroutine_begins_with_its_first_step(on: Declare, records: Records) -> None:
    span = on("call")

    @span
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    made = work()
    assert getattr(made, "__name__", "") == "work"
    assert current() is None
    assert asyncio.run(made) == 5
    assert len(records(span)[1]) == 1


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_never_starts_is_closed(on: Declare, recwarn: pytest.WarningsRecorder) -> None:
    @on("call")
    async def work() -> None: ...

    async def main() -> None:
        task = asyncio.create_task(work())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert not recwarn.list


def test_a_coroutine_of_types_can_be_awaited(on: Declare) -> None:
    @on("call")
    @types.coroutine
    def work() -> Generator[Any, Any, int]:
        yield
        return 5

    async def main() -> int:
        return int(await work())

    assert asyncio.run(main()) == 5


def test_an_exception_sent_to_a_generator_is_freed(on: Declare) -> None:
    @on("steps")
    def steps() -> Generator[None, None, None]:
        with contextlib.suppress(KeyError):
            yield
        yield

    class Sent(KeyError):
        pass

    made, error = steps(), Sent()
    freed = weakref.ref(error)
    gc.disable()
    try:
        next(made)
        made.throw(error)
        del error
        assert freed() is None
    finally:
        gc.enable()
        made.close()


def test_a_generator_is_itself_in_all_ways(on: Declare, records: Records) -> None:
    span, inner = on("steps"), on("inner")

    @span
    def steps() -> Generator[Any, Any, str]:
        with inner() as own:
            got = yield "first"
            assert current() is own
            try:
                yield got
            except KeyError:
                yield "caught"
        return "end"

    with span() as callers:
        made = steps()
        assert next(made) == "first"
        assert current() is callers
        assert made.send("sent") == "sent"
        assert made.throw(KeyError) == "caught"
        assert current() is callers
        with pytest.raises(StopIteration, match="end"):
            next(made)
        assert current() is callers
    begins, ends = records(span)
    assert begins[1]["parent_id"] == callers.span_id
    assert records(inner)[0][0]["parent_id"] == begins[1]["span_id"]
    assert [r["error"] for r in ends] == ["", ""]


def test_generators_side_by_side(on: Declare, records: Records) -> None:
    span = on("steps")

    @span
    def steps() -> Generator[int, None, None]:
        yield 1
        yield 2

    assert [*zip(steps(), steps(), strict=True)] == [(1, 1), (2, 2)]
    assert current() is None
    assert [r["parent_id"] for r in records(span)[0]] == [0, 0]


def test_a_generator_closed_early_and_in_another_context(on: Declare, records: Records) -> None:
    span, caller = on("steps"), on("caller")

    @span
    def steps() -> Generator[int, None, None]:
        yield 1

    made = steps()
    next(made)
    with caller() as callers:
        made.close()
        assert current() is callers
    elsewhere = steps()
    next(elsewhere)
    contextvars.Context().run(elsewhere.close)
    never = steps()
    never.close()
    assert [r["error"] for r in records(span)[1]] == ["GeneratorExit", "GeneratorExit"]


def test_an_exception_in_a_generator(on: Declare, records: Records) -> None:
    span = on("steps")

    @span
    def steps() -> Generator[int, None, None]:
        yield 1
        raise KeyError

    with pytest.raises(KeyError):
        list(steps())
    made = steps()
    next(made)
    with pytest.raises(IndexError):
        made.throw(IndexError)
    assert [r["error"] for r in records(span)[1]] == ["KeyError", "IndexError"]


def test_an_async_generator(on: Declare, records: Records) -> None:
    span, caller = on("steps"), on("caller")
    closed = []

    @span
    async def steps() -> AsyncGenerator[Any, Any]:
        try:
            got = yield 1
            await asyncio.sleep(0)
            try:
                yield got
            except KeyError:
                yield "caught"
        finally:
            closed.append(1)

    async def main() -> None:
        with caller() as callers:
            made = steps()
            assert await anext(made) == 1
            assert current() is callers
            assert await made.asend("sent") == "sent"
            assert await made.athrow(KeyError) == "caught"
            with pytest.raises(StopAsyncIteration):
                await anext(made)
            early = steps()
            await anext(early)
            await early.aclose()
            assert current() is callers

    asyncio.run(main())
    assert len(closed) == 2
    assert [r["error"] for r in records(span)[1]] == ["", "GeneratorExit"]


def test_a_generator_that_is_dropped(on: Declare, records: Records) -> None:
    span, inner, caller = on("steps"), on("inner"), on("caller")

    @span
    def steps() -> Generator[int, None, None]:
        with inner():
            yield 1

    @span
    async def async_steps() -> AsyncGenerator[int, None]:
        with inner():
            yield 1

    async def main() -> None:
        with caller() as callers:
            next(steps())
            assert current() is callers
            async for _ in async_steps():
                break
            assert current() is callers
            for _ in range(5):
                await asyncio.sleep(0)
            assert current() is callers

    asyncio.run(main())
    assert current() is None
    for one in (span, inner):
        assert [r["error"] for r in records(one)[1]] == ["GeneratorExit"] * 2
    assert [r["parent_id"] for r in records(inner)[1]] == [r["span_id"] for r in records(span)[1]]


# ---- what a caller sees

BODY = """
{decorator}
{kind} body(reactions, got=None):
    for reaction in reactions:
        try:
            got = {step}(reaction, got)
        except GeneratorExit:
            if reaction == "return":
                return {value}
            if reaction == "continue":
                got = {step}("ignored")
            elif reaction == "raise":
                raise KeyError(reaction)
            else:
                raise
        except KeyError as error:
            if reaction == "return":
                return {value}
            if reaction == "stop":
                raise StopIteration(5)
            if reaction == "raise":
                raise IndexError from error
            got = type(error.__context__)
"""
FORMS = {
    "generator": {"decorator": "", "kind": "def", "step": "yield "},
    "nested": {"decorator": "", "kind": "def", "step": "yield from steps"},
    "types.coroutine": {"decorator": "@types.coroutine", "kind": "def", "step": "yield "},
    "coroutine": {"decorator": "", "kind": "async def", "step": "await steps"},
    "async generator": {"decorator": "", "kind": "async def", "step": "yield ", "value": ""},
    "awaiting": {"decorator": "", "kind": "async def", "step": "yield await steps", "value": ""},
}


@types.coroutine
def steps(*values: object) -> Generator[object, object, object]:
    return (yield values)


def plain(form: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"types": types, "steps": steps}
    exec(  # noqa: S102
        BODY.format(**{"value": "reaction, got", **FORMS[form]}), names
    )
    made: Callable[..., Any] = names["body"]
    return made


def seen(call: Callable[[], object]) -> object:
    """The result of a method for its caller."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001
        names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
        values = error.value if isinstance(error, StopIteration) else error.args
        if "argument" in str(error):
            values = "wrong arguments"  # the text names the class
        return type(error), values, type(error.__context__), type(error.__cause__), names
    return repr(type(result)) if hasattr(result, "send") else result


def state(made: Any) -> object:
    for kind, prefix in (("generator", "gi"), ("coroutine", "cr"), ("asyncgen", "ag")):
        if getattr(inspect, f"is{kind}")(made):
            frame = getattr(made, f"{prefix}_frame")
            others = getattr(made, f"{prefix}_code").co_name, getattr(made, f"{prefix}_running")
            return kind, made.__name__, made.__qualname__, frame and frame.f_lineno, *others
    return None


def driven(function: Callable[..., Any], reactions: list[str], steps: list[Any]) -> list[object]:
    made: Any = function(reactions)
    pending = made
    found = [state(made)]
    for is_on, method, args in steps:
        utracefs.strict(is_on)  # as if its events were on, or off
        if inspect.isasyncgen(made) and method in ("asend", "athrow", "aclose", "__anext__"):
            with contextlib.suppress(TypeError):
                pending = getattr(made, method)(*args)
            continue
        of_step = {"__anext__": "__next__", "asend": "send", "athrow": "throw", "aclose": "close"}
        call = getattr(pending, of_step.get(method, method), None)
        found += [seen(functools.partial(call, *args)) if call else None, state(made)]
    utracefs.strict(True)
    return found


METHODS = st.one_of(
    st.tuples(st.sampled_from(["__next__", "close", "__anext__", "aclose"]), st.just(())),
    st.tuples(st.sampled_from(["send", "asend"]), st.tuples(st.sampled_from([None, None, 7]))),
    st.tuples(
        st.sampled_from(["throw", "athrow"]),
        st.tuples(st.sampled_from([KeyError, GeneratorExit, StopIteration, 5])),
    ),
    st.tuples(st.sampled_from(["send", "throw", "close"]), st.just((1, 2, 3, 4, 5))),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@given(
    st.lists(st.sampled_from(["", "return", "continue", "raise", "stop"]), max_size=4),
    st.lists(st.tuples(st.booleans(), METHODS).map(lambda one: (one[0], *one[1])), max_size=12),
)
@settings(deadline=None)
def test_a_caller_sees_no_difference(form: str, reactions: list[str], steps: list[Any]) -> None:
    before = utracefs.strict(True)
    try:
        function = plain(form)
        once, twice = offline()(function), offline()(offline()(function))
        expected = driven(function, reactions, steps)
        assert driven(once, reactions, steps) == expected
        assert driven(twice, reactions, steps) == expected
        assert current() is None
    finally:
        utracefs.strict(before)
