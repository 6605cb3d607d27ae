"""The threads that give a flood's memory back: a program can hold the lock of its ring's file, and nothing
can kill the thread then. tests/soak/test_found.py has a descriptor whose close hangs."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from tests.daemon.intake.producing import DATA, new_ring
from utracefsd.intake._giving_back import GivingBack, begin
from utracefsd.intake._index_table import IndexTable

MIB = 1 << 20


def nr_descriptors() -> list[int]:
    """How many each thread has."""
    return [len(list((task / "fd").iterdir())) for task in Path("/proc/self/task").iterdir()]


def test_their_thread_has_no_descriptor() -> None:
    begin()
    deadline = time.monotonic() + 10
    while min(nr_descriptors()):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("place", [MIB, 3 * MIB + 8], ids=["one part", "two"])
def test_the_memory_of_whole_pages(place: int) -> None:
    """The ring may be gone meanwhile."""
    ring = new_ring(IndexTable(), 4 * MIB)
    fd = os.dup(ring.fd)
    with mmap.mmap(fd, os.fstat(fd).st_size) as memory:
        memory[DATA : DATA + 4 * MIB] = b"x" * (4 * MIB)
        expected = bytearray(memory[DATA : DATA + 4 * MIB])
        giving = GivingBack(fd, ring.size, place, 2 * MIB)
        del ring
        giving.start()
        deadline = time.monotonic() + 10
        while not giving.is_done():
            assert time.monotonic() < deadline
        assert os.fstat(fd).st_blocks * 512 < 2 * MIB + 8 * mmap.PAGESIZE  # read below: then it is more
        for begin_at, end in [(place, min(place + 2 * MIB, 4 * MIB)), (0, place - 2 * MIB)]:
            first, last = -(-begin_at // mmap.PAGESIZE), end // mmap.PAGESIZE
            if last > first:
                expected[first * mmap.PAGESIZE : last * mmap.PAGESIZE] = bytes((last - first) * mmap.PAGESIZE)
        assert memory[DATA : DATA + 4 * MIB] == expected
    os.close(fd)
