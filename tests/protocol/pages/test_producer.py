"""A program in C with only producer.h and data_ring.h; its records are read here as docs/protocol.md
describes them."""

from __future__ import annotations

import mmap
import os
import platform
import struct
import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "protocol" / "utracefs_protocol" / "include"
DATA = 65536


@pytest.fixture(scope="module", params=[["-O2"], ["-O1", "-g", "-fsanitize=address,undefined"]])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("producer") / "producer"
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", *request.param]
    subprocess.run([*command, HERE / "producer.c", "-o", program], check=True)
    return program


@pytest.mark.parametrize(("tsc", "rate"), [(0, 0), (1, 0), (1, 1 << 32)])
def test_a_producer_in_c_needs_the_headers_and_nothing_else(program: Path, tsc: int, rate: int) -> None:
    size, records = 64 << 10, 1000
    fd = os.memfd_create("ring")
    doorbell = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        os.ftruncate(fd, DATA + size + 16384)
        with mmap.mmap(fd, 0) as memory:
            struct.pack_into("<IIII", memory, 0, 0x52525455, 2, size, 24)
            struct.pack_into("<I", memory, 256, 1)  # need_wakeup
            struct.pack_into("<I", memory, 260, tsc)
            struct.pack_into("<Q", memory, 272, rate)  # a nanosecond per tick
            counted = int(tsc and platform.machine() == "x86_64")
            begin = time.monotonic_ns()
            done = subprocess.run(
                [program, str(fd), str(size), str(doorbell), str(records)],
                pass_fds=[fd, doorbell],
                stdout=subprocess.PIPE,
                check=True,
            )
            end = time.monotonic_ns()
            own_tid, *durations = map(int, done.stdout.split())
            assert all(0 < duration < (end - begin) * (10 if rate else 1) for duration in durations)
            (head,) = struct.unpack_from("<Q", memory, 64)
            assert struct.unpack_from("<I", memory, 256) == (0,)
            # Once because the daemon sleeps, once because the ring is half full.
            assert os.eventfd_read(doorbell) == 2
            place = before = 0
            for i in range(records):
                word, index, when, tid, cpu, says = struct.unpack_from("<IIQIHH", memory, DATA + place)
                length = 10 + i % 20
                assert (word, index, tid, says) == (1 << 31 | length, 7, own_tid, counted)
                if counted:
                    assert before < when < 1 << 63, "the counter never goes back"
                    before = when
                else:
                    assert begin <= when <= end
                assert cpu < (os.cpu_count() or 1)
                payload = memory[DATA + place + 24 : DATA + place + 24 + length]
                assert payload == struct.pack("<QH", i << 32 | 0x55, i) + bytes([i % 256]) * (length - 10)
                place += (24 + length + 7) // 8 * 8
            assert place == head
    finally:
        os.close(fd)
        os.close(doorbell)
