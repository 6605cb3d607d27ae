"""The data ring's C header under stress: two processes, several threads, full rings, a killed producer; and
sanitizers."""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "protocol" / "utracefs_protocol" / "include"
DATA = 65536


def build(folder: Path, *flags: str, source: str = "data_ring_stress") -> Path:
    program = folder / source
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{INCLUDE}",
            *flags,
            str(HERE / f"{source}.c"),
            "-o",
            str(program),
            "-lpthread",
        ],
        check=True,
    )
    return program


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ring"), "-O2")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ring"), "-O1", "-g", "-fsanitize=address,undefined")


SMALL = ("-DDR_LOW=16384u", "-DDR_END=8192u")
"""A ring of 64 KiB skips."""


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def skipping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-O2"] if request.param == "plain" else ["-O1", "-g", "-fsanitize=address,undefined"]
    return build(tmp_path_factory.mktemp("ring"), *flags, *SMALL)


def run(program: Path, *arguments: int) -> dict[str, int]:
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {k: int(v) for k, v in re.findall(r"(\w+) (\d+)", done.stdout)}


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("size", [64 << 10, 1 << 20])
def test_every_record_arrives_or_is_counted(stress: Path, size: int, threads: int) -> None:
    got = run(stress, size, 300_000 // threads, threads, 0)
    assert got["taken"] + got["lost"] == 300_000 // threads * threads
    assert got["holes"] == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_killed_producer_loses_nothing_that_it_committed(stress: Path, threads: int) -> None:
    for _ in range(5):
        got = run(stress, 64 << 10, 10**9, threads, 1)
        assert got["taken"] >= 1_000
        assert got["holes"] <= threads


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("size", [64 << 10, 256 << 10])
def test_a_ring_that_skips_while_others_write(skipping: Path, size: int, threads: int) -> None:
    """Each record once, in the order of its thread, and all that was consumed is zero."""
    got = run(skipping, size, 40_000 // threads, threads, 0)
    assert got["taken"] + got["lost"] == 40_000
    assert got["holes"] == 0
    assert got["skips"] > 20


@pytest.mark.parametrize("threads", [1, 3])
def test_a_producer_killed_where_the_ring_skips(skipping: Path, threads: int) -> None:
    for _ in range(3):
        got = run(skipping, 64 << 10, 10**9, threads, 1)
        assert got["taken"] >= 1_000
        assert got["holes"] <= threads


def test_under_sanitizers(sanitized: Path) -> None:
    got = run(sanitized, 64 << 10, 60_000, 2, 0)
    assert got["taken"] + got["lost"] == 120_000


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ring"), "-O2", source="data_ring_shallow")


def test_a_ring_that_is_never_full_loses_nothing(shallow: Path) -> None:
    # Each round lost one to three of four million while a stale head was taken for a full ring.
    got = run(shallow, 1_000_000)
    assert got["written"] >= 1_000 and got["lost"] == 0


def test_what_a_killed_daemon_left_is_counted_from_where_it_was(shallow: Path) -> None:
    done = subprocess.run([shallow, "walk"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "left 990\n"


def length_of(i: int) -> int:
    return 8 + (((i * 2654435761) % (1 << 64)) >> 7) % (1 << 32) % 200


@pytest.mark.parametrize("threads", [1, 3])
def test_judged_by_a_plain_model(stress: Path, threads: int) -> None:
    """The consumer here is docs/protocol.md in Python: struct, a memfd, and no line of the header."""
    size, records = 64 << 10, 30_000
    fd = os.memfd_create("model")
    os.ftruncate(fd, DATA + size + 16384)
    with mmap.mmap(fd, 0) as memory:
        struct.pack_into("<IIII", memory, 0, 0x52525455, 2, size, 24)
        process = subprocess.Popen(
            [stress, "produce", str(fd), str(size), str(records), str(threads)], pass_fds=[fd]
        )
        os.close(fd)
        tail, taken, following = 0, 0, [0] * threads
        done = False
        while True:
            (head,) = struct.unpack_from("<Q", memory, 64)
            assert 0 <= head - tail <= size
            place = DATA + tail % size
            (word,) = struct.unpack_from("<I", memory, place)
            if head == tail or not word >> 31:
                if done:
                    break
                done = process.poll() is not None  # then look once more
                continue
            length = word & 0xFFFFFF
            need = (24 + length + 7) // 8 * 8
            record = memory[place : min(place + need, DATA + size)]
            record += memory[DATA : DATA + need - len(record)]
            _, index, ts, tid, cpu, zero = struct.unpack_from("<IIQIHH", record)
            (number,) = struct.unpack_from("<Q", record, 24)
            assert (ts, tid, cpu, zero) == (number, index, 0, 0)
            assert length == length_of(number)
            assert record[32 : 24 + length] == bytes([(number + index) % 256]) * (length - 8)
            assert number >= following[index], "in order"
            following[index] = number + 1
            first = min(need, DATA + size - place)
            memory[place : place + first] = bytes(first)
            memory[DATA : DATA + need - first] = bytes(need - first)
            tail += need
            taken += 1
            struct.pack_into("<Q", memory, 128, tail)
        assert process.wait() == 0
        (lost,) = struct.unpack_from("<Q", memory, 192)
        assert head == tail
        assert taken + lost == records * threads
        assert sum(struct.unpack_from(f"<{threads}I", memory, DATA + size)) == lost
