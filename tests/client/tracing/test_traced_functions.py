"""Decorated generators: between their steps the caller's span is the present one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import types
import weakref
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from tests.client.test_span import Declare, Records, off, on, records
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
