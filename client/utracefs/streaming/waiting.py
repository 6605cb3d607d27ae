"""Waiting for a descriptor: blocking, in trio, or in asyncio.

A stream's operation is a generator that yields waits (`Wait`) and receives whether the descriptor is
readable. `blocking` and `awaited` run such steps. This module imports neither event loop: the running one is
imported already."""

import math
import select
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

import attrs

T = TypeVar("T")

_POLL_S: Final = 1e6
"""poll(2) waits at most 2^31 ms."""


@attrs.frozen
class Wait:
    """Wait until a descriptor is readable, or the time has passed."""

    fd: int | None
    """None: only for the time."""
    timeout_s: float | None = None
    """None: no limit."""


Steps: TypeAlias = Generator[Wait, bool, T]
"""Sent to the generator: whether the descriptor is readable."""


def blocking(steps: Steps[T]) -> T:
    try:
        wait = next(steps)
        while True:
            wait = steps.send(_block(wait))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _block(wait: Wait) -> bool:
    if wait.fd is None:
        time.sleep(wait.timeout_s or 0)
        return False
    poll = select.poll()
    poll.register(wait.fd, select.POLLIN)
    until = math.inf if wait.timeout_s is None else time.monotonic() + wait.timeout_s
    while True:
        left = until - time.monotonic()
        if poll.poll(min(max(0.0, left), _POLL_S) * 1000):
            return True
        if left <= _POLL_S:
            return False


async def awaited(steps: Steps[T]) -> T:
    """Run the steps in a task of trio or asyncio. Yields to other tasks at least once."""
    wait_for = _waiter()
    waited = False
    try:
        wait = next(steps)
        while True:
            waited = True
            wait = steps.send(await wait_for(wait))
    except StopIteration as done:
        if not waited:
            await wait_for(Wait(None, 0))
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _waiter() -> Callable[[Wait], Awaitable[bool]]:
    """RuntimeError: neither event loop runs here."""
    if (trio := sys.modules.get("trio")) is not None:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            pass
        else:
            return lambda wait: _trio(trio, wait)
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        raise RuntimeError("no event loop runs here: neither trio nor asyncio")
    loop = asyncio.get_running_loop()
    return lambda wait: _asyncio(asyncio, loop, wait)


async def _trio(trio: Any, wait: Wait) -> bool:
    if wait.fd is None:
        await trio.sleep(wait.timeout_s)
        return False
    with trio.move_on_after(float("inf") if wait.timeout_s is None else wait.timeout_s):
        await trio.lowlevel.wait_readable(wait.fd)
        return True
    return False


async def _asyncio(asyncio: Any, loop: Any, wait: Wait) -> bool:
    if wait.fd is None:
        await asyncio.sleep(wait.timeout_s)
        return False
    future = loop.create_future()
    loop.add_reader(wait.fd, lambda: future.done() or future.set_result(True))
    try:
        done, _ = await asyncio.wait([future], timeout=wait.timeout_s)
        return bool(done)
    finally:
        loop.remove_reader(wait.fd)
