"""Steps that wait: blocking, in trio, in asyncio; over in time, and cancelled."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio

from utracefs.streaming.waiting import Steps, Wait, awaited, blocking


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    r, w = os.pipe()
    yield r, w
    os.close(r)
    os.close(w)


def steps(pipe: tuple[int, int]) -> Steps[list[bool]]:
    """Not readable, a pause, readable."""
    found = [(yield Wait(pipe[0], 0.01)), (yield Wait(None, 0.001))]
    os.write(pipe[1], b"x")
    found.append((yield Wait(pipe[0])))
    return found


def nothing() -> Steps[int]:
    return 5
    yield


def test_blocking(pipe: tuple[int, int]) -> None:
    assert blocking(steps(pipe)) == [False, False, True]
    assert blocking(nothing()) == 5


@pytest.mark.parametrize("timeout_s", [1e8, 1e300, float("inf")])
def test_times_that_poll_cannot_count(pipe: tuple[int, int], timeout_s: float) -> None:
    def until_readable() -> Steps[bool]:
        return (yield Wait(pipe[0], timeout_s))

    os.write(pipe[1], b"x")
    assert blocking(until_readable())


async def test_in_trio(pipe: tuple[int, int]) -> None:
    assert await awaited(steps(pipe)) == [False, False, True]
    before = trio.lowlevel.current_statistics().run_sync_soon_queue_size
    assert await awaited(nothing()) == 5
    assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == before


def test_in_asyncio(pipe: tuple[int, int]) -> None:
    async def main() -> None:
        assert await awaited(steps(pipe)) == [False, False, True]
        assert await awaited(nothing()) == 5

    asyncio.run(main())


async def test_others_have_their_turn_in_trio() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(10):
            await awaited(nothing())
        nursery.cancel_scope.cancel()
    assert turns >= 5


def closing(pipe: tuple[int, int], closed: list[bool]) -> Steps[None]:
    try:
        yield Wait(pipe[0])
    finally:
        closed.append(True)


async def test_cancelled_in_trio(pipe: tuple[int, int]) -> None:
    closed: list[bool] = []
    with trio.move_on_after(0.01) as scope:
        await awaited(closing(pipe, closed))
    assert scope.cancelled_caught
    assert closed


def test_cancelled_in_asyncio(pipe: tuple[int, int]) -> None:
    closed: list[bool] = []

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(awaited(closing(pipe, closed)), 0.01)
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(pipe[0])

    asyncio.run(main())
    assert closed


def test_without_a_loop() -> None:
    coroutine = awaited(nothing())
    with pytest.raises(RuntimeError):
        coroutine.send(None)


def test_no_loop_is_imported() -> None:
    program = "import sys, utracefs; utracefs.attach; sys.exit(bool({'trio', 'asyncio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
