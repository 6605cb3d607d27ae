"""Coroutines and generators of decorated functions, while the span is on.

A span begins with the first step, not with the call, and ends with the last step. Within a step the current
span is the innermost open one of the generator, between two steps that of its caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from utracefs._span import Held, Running, current, exchange


async def coroutine(running: Running, inner: Held) -> Any:
    with running:
        return await inner.coroutine


def generator(running: Running, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """As `yield from inner` (PEP 380)."""
    callers = current()
    try:
        with running:
            step: Any = inner.send
            value: Any = None
            while True:
                try:
                    item = step(value)
                except StopIteration as stop:
                    return stop.value
                finally:
                    value = None  # of an exception this frame's traceback would make a cycle
                own = exchange(callers)
                try:
                    value = yield item
                except GeneratorExit:
                    callers = exchange(own)
                    inner.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - as `yield from`
                    callers = exchange(own)
                    step, value = inner.throw, error
                else:
                    callers = exchange(own)
                    step = inner.send
    finally:
        exchange(callers)


async def async_generator(running: Running, inner: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    callers = current()
    try:
        with running:
            step: Any = inner.asend
            value: Any = None
            while True:
                try:
                    item = await step(value)
                except StopAsyncIteration:
                    return
                finally:
                    value = None
                own = exchange(callers)
                try:
                    value = yield item
                except GeneratorExit:
                    callers = exchange(own)
                    await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - as above
                    callers = exchange(own)
                    step, value = inner.athrow, error
                else:
                    callers = exchange(own)
                    step = inner.asend
    finally:
        exchange(callers)


DRIVERS = (coroutine, generator, async_generator)
