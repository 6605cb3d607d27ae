"""Maps against dictionaries, by bpf(2) and by programs; and the limits that the kernel has."""

from __future__ import annotations

import errno
import itertools
import struct
import time
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.c.bpf.assembler import (
    ARRAY,
    EXIT,
    HASH,
    LRU_HASH,
    LRU_PERCPU_HASH,
    MMAPABLE,
    NO_PREALLOC,
    PERCPU_ARRAY,
    PERCPU_HASH,
    PERF_EVENT_ARRAY,
    RDONLY,
    RDONLY_PROG,
    RINGBUF,
    WRONLY,
    Machine,
    call,
    jump,
    load,
    map_fd,
    mov,
    stack,
    store,
    store_imm,
    wide,
)

POSSIBLE = Path("/sys/devices/system/cpu/possible").read_text()
CPUS = int(POSSIBLE.replace(",", "-").split("-")[-1]) + 1
LOOKUP, UPDATE, DELETE, LOOKUP_PERCPU = 1, 2, 3, 195
ANY, NOEXIST, EXIST = range(3)


def by_program(machine: Machine, fd: int, helper: int, key: bytes, value: bytes, flags: int = 0) -> int:
    """The result of a helper with a key and a value on the stack, signed."""
    code = b""
    for base, data in ((-64, key), (-128, value)):
        padded = data + bytes(-len(data) % 8)
        for at in range(0, len(padded), 8):
            code += wide(2, int.from_bytes(padded[at : at + 8], "little")) + store(8, 10, base + at, 2)
    code += map_fd(1, fd) + stack(2, -64) + stack(3, -128) + mov(4, flags) + call(helper) + EXIT
    result = machine.run(code)
    assert isinstance(result, int), result
    return result - 2**64 if result >> 63 else result


KEYS = st.integers(0, 11)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), KEYS, st.integers(0, 255), st.sampled_from([ANY, NOEXIST, EXIST])),
        st.tuples(st.just("erase"), KEYS),
        st.tuples(st.just("read"), KEYS),
        st.tuples(st.just("keys")),
    ),
    max_size=60,
)


@pytest.mark.parametrize("key_size", [1, 4, 8, 13, 64, 72, 200])
@pytest.mark.parametrize("with_programs", [False, True])
@given(steps=STEPS)
@settings(deadline=None, max_examples=25)
def test_hash(machine: Machine, key_size: int, with_programs: bool, steps: list[tuple[object, ...]]) -> None:
    entries = 8
    by_helper = with_programs and key_size <= 64
    fd = machine.map(HASH, key_size, 5, entries, NO_PREALLOC)
    model: dict[bytes, bytes] = {}
    for what, *arguments in steps:
        if what == "keys":
            assert sorted(machine.keys(fd)) == sorted(model)
            continue
        number = arguments[0]
        assert isinstance(number, int)
        key = bytes([number]) * key_size
        if what == "read":
            assert machine.read(fd, key) == model.get(key, -errno.ENOENT)
        elif what == "erase":
            expected = 0 if model.pop(key, None) else -errno.ENOENT
            got = (
                by_program(machine, fd, DELETE, key, b"") if by_helper else int(machine.ask("erase", fd, key))
            )
            assert got == expected
        else:
            value, flags = bytes([int(str(arguments[1]))]) * 5, int(str(arguments[2]))
            if key in model:
                expected = -errno.EEXIST if flags == NOEXIST else 0
            elif flags == EXIST:
                expected = -errno.ENOENT
            else:
                expected = -errno.E2BIG if len(model) == entries else 0
            if not expected:
                model[key] = value
            if by_helper:
                assert by_program(machine, fd, UPDATE, key, value, flags) == expected
            else:
                assert machine.write(fd, key, value, flags) == expected


@pytest.mark.parametrize("kind", [LRU_HASH, LRU_PERCPU_HASH])
def test_lru_evicts_what_was_not_used(machine: Machine, kind: int) -> None:
    fd = machine.map(kind, 4, 8, 4)
    value = bytes(8) * (CPUS if kind == LRU_PERCPU_HASH else 1)
    for i in range(4):
        assert machine.write(fd, struct.pack("<I", i), value) == 0
    assert machine.write(fd, struct.pack("<I", 4), value) == 0  # all were used: the first in turn
    kept = machine.keys(fd)
    assert len(kept) == 4 and struct.pack("<I", 4) in kept
    for i in range(5, 50):  # the one that a program looks up each time stays
        assert by_program(machine, fd, LOOKUP, struct.pack("<I", 4), b"") > 0
        assert machine.write(fd, struct.pack("<I", i), value, NOEXIST) == 0
    assert struct.pack("<I", 4) in machine.keys(fd)


def test_array(machine: Machine) -> None:
    fd = machine.map(ARRAY, 4, 12, 3)
    one, outside = struct.pack("<I", 1), struct.pack("<I", 3)
    assert machine.read(fd, one) == bytes(12)
    assert machine.write(fd, one, b"x" * 12) == 0
    assert machine.write(fd, one, b"y" * 12, EXIST) == 0
    assert machine.read(fd, one) == b"y" * 12
    assert machine.write(fd, one, b"z" * 12, NOEXIST) == -errno.EEXIST
    assert machine.write(fd, one, b"z" * 12, 4) == -errno.EINVAL  # BPF_F_LOCK
    assert machine.read(fd, outside) == -errno.ENOENT
    assert machine.write(fd, outside, b"y" * 12) == -errno.E2BIG
    assert int(machine.ask("erase", fd, one)) == -errno.EINVAL
    assert machine.keys(fd) == [struct.pack("<I", i) for i in range(3)]
    assert machine.next(fd, struct.pack("<I", 77)) == struct.pack("<I", 0)
    assert by_program(machine, fd, LOOKUP, outside, b"") == 0
    assert by_program(machine, fd, DELETE, one, b"") == -errno.EINVAL


@pytest.mark.parametrize("kind", [PERCPU_ARRAY, PERCPU_HASH, LRU_PERCPU_HASH])
def test_values_of_each_cpu(machine: Machine, kind: int) -> None:
    """A program sees the copy of its record's cpu; bpf(2) all of them, each rounded up to 8 bytes."""
    fd = machine.map(kind, 4, 4, 2)
    key = struct.pack("<I", 1)
    count = [store_imm(4, 10, -4, 1), map_fd(1, fd), stack(2, -4), call(LOOKUP), jump("jne", 0, 1), EXIT]
    count += [load(4, 3, 0), *([mov(4, 1)]), store_imm(4, 0, 0, 9), mov(0, 1), EXIT]
    each = [struct.pack("<Ixxxx", 100 + cpu) for cpu in range(CPUS)]
    assert machine.write(fd, key, b"".join(each)) == 0
    assert machine.run(*count, cpu=CPUS - 1) == 1
    each[-1] = struct.pack("<Ixxxx", 9)
    read = machine.read(fd, key)
    assert isinstance(read, bytes)
    assert [read[i : i + 4] for i in range(0, len(read), 8)] == [e[:4] for e in each]
    assert len(read) == 8 * CPUS
    of_first = [store_imm(4, 10, -4, 1), map_fd(1, fd), stack(2, -4), mov(3, 0), call(LOOKUP_PERCPU)]
    of_first += [jump("jne", 0, 1), EXIT, load(4, 0, 0), EXIT]
    assert machine.run(*of_first, cpu=CPUS - 1) == (9 if CPUS == 1 else 100)
    assert machine.run(*of_first[:3], mov(3, CPUS), call(LOOKUP_PERCPU), EXIT) == 0
    # A recording of a machine with more cpus.
    assert machine.run(*count, cpu=CPUS * 1000) == 1
    if kind != PERCPU_ARRAY:
        new = struct.pack("<I", 0)
        assert by_program(machine, fd, UPDATE, new, struct.pack("<I", 7)) == 0
        assert machine.read(fd, new) == struct.pack("<Ixxxx", 7) + bytes(8 * (CPUS - 1))


@pytest.mark.parametrize(
    ("kind", "sizes", "error"),
    [
        (HASH, (0, 8, 1, 0), errno.EINVAL),
        (HASH, (8, 0, 1, 0), errno.EINVAL),
        (HASH, (8, 8, 0, 0), errno.EINVAL),
        (HASH, (8, 8, 1, MMAPABLE), errno.EINVAL),
        (HASH, (8, 8, 1, 1 << 30), errno.EINVAL),
        (HASH, (4 << 20, 8, 1, 0), errno.E2BIG),
        (HASH, (2**32 - 1, 2**32 - 1, 2**32 - 1, 0), errno.E2BIG),
        (HASH, (8, 8, 2**32 - 1, 0), errno.ENOMEM),
        (PERCPU_HASH, (8, 1 << 20, 2**20, 0), errno.ENOMEM),
        (ARRAY, (8, 8, 1, 0), errno.EINVAL),
        (ARRAY, (4, 2**31, 1, 0), errno.E2BIG),
        (ARRAY, (4, 2**20, 2**20, 0), errno.ENOMEM),
        (PERF_EVENT_ARRAY, (4, 8, 1, 0), errno.EINVAL),
        (PERF_EVENT_ARRAY, (4, 4, 2**20, 0), errno.E2BIG),
        (RINGBUF, (0, 0, 4095, 0), errno.EINVAL),
        (RINGBUF, (0, 0, 3 * 4096, 0), errno.EINVAL),
        (RINGBUF, (4, 0, 4096, 0), errno.EINVAL),
        (3, (4, 4, 1, 0), errno.EINVAL),
        (7, (4, 1016, 1, 0), errno.EINVAL),
        (9999, (4, 4, 1, 0), errno.EINVAL),
    ],
)
def test_what_is_refused(machine: Machine, kind: int, sizes: tuple[int, int, int, int], error: int) -> None:
    assert machine.map(kind, *sizes) == -error


def test_a_kind_that_is_missing_is_named(machine: Machine) -> None:
    assert machine.program.ask("map 7 4 1016 1 0") == (
        "-22 stacks are not part of a record, so there are no maps of stacks"
    )


def test_frozen_and_read_only(machine: Machine) -> None:
    key, value = struct.pack("<I", 0), bytes(8)
    frozen = machine.map(ARRAY, 4, 8, 1, RDONLY_PROG | MMAPABLE)
    assert machine.write(frozen, key, value) == 0
    assert [machine.ask("freeze", frozen), machine.ask("freeze", frozen)] == ["0", str(-errno.EBUSY)]
    assert machine.write(frozen, key, value) == -errno.EPERM
    assert by_program(machine, frozen, UPDATE, key, value) == -errno.EPERM
    assert machine.ask("memory", frozen) == "8"
    hidden, fixed = machine.map(HASH, 4, 8, 1, WRONLY), machine.map(HASH, 4, 8, 1, RDONLY)
    assert machine.write(hidden, key, value) == 0
    assert machine.read(hidden, key) == machine.next(hidden, None) == -errno.EPERM
    assert machine.write(fixed, key, value) == int(machine.ask("erase", fixed, key)) == -errno.EPERM
    assert by_program(machine, fixed, UPDATE, key, value) == 0
    assert machine.ask("info", frozen) == f"2 4 8 1 {RDONLY_PROG | MMAPABLE} m"


def test_an_element_that_goes_during_a_walk(machine: Machine) -> None:
    """As in the kernel the walk begins again; and clearing a large map does not take quadratic time."""
    fd = machine.map(HASH, 4, 4, 100_000)
    keys = [struct.pack("<I", i) for i in range(3_000)]
    for key in keys:
        machine.write(fd, key, key)
    assert set(machine.keys(fd)) == set(keys)
    begin = time.monotonic()
    for key in keys:
        assert machine.next(fd, None) == key
        machine.ask("erase", fd, key)
        assert machine.next(fd, key) == machine.next(fd, None)
    assert machine.next(fd, None) == -errno.ENOENT
    assert time.monotonic() - begin < 20
    assert machine.write(fd, keys[5], keys[5]) == 0
    assert machine.keys(fd) == [keys[5]]


def test_long_keys_that_differ_in_one_byte(machine: Machine) -> None:
    """In each of the lanes of the hash, and behind them."""
    fd = machine.map(HASH, 300, 4, 400)
    keys = [bytes(i) + b"x" + bytes(299 - i) for i in range(300)]
    for i, key in enumerate(keys):
        assert machine.write(fd, key, struct.pack("<I", i), NOEXIST) == 0
    assert [machine.read(fd, key) for key in keys] == [struct.pack("<I", i) for i in range(300)]
    assert all(a != b for a, b in itertools.pairwise(machine.keys(fd)))
    assert not OrderedDict.fromkeys(machine.keys(fd)).keys() ^ set(keys)
