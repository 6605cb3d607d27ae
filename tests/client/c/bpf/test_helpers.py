"""The helper functions, as programs call them, and the rings that they write to."""

from __future__ import annotations

import errno
import struct

import pytest

from tests.client.c.bpf.assembler import (
    ARRAY,
    EXIT,
    HASH,
    PERF_EVENT_ARRAY,
    RINGBUF,
    Machine,
    add,
    call,
    copy,
    jump,
    load,
    map_fd,
    map_value,
    mov,
    stack,
    store,
    store_imm,
    wide,
)

RECORD = {5: 10**9, 125: 3 * 10**9, 160: 10**9, 118: 250, 8: 3, 14: 77 << 32 | 78}
"""Helpers without arguments and their results for the record of tests/bpf.c on cpu 3."""
PAGE = 4096


def error(number: int) -> int:
    return 2**64 - number


def callback(instructions_ahead: int, dst: int = 2) -> bytes:
    return wide(dst, instructions_ahead, src=4)


@pytest.mark.parametrize("helper", RECORD)
def test_the_record(machine: Machine, helper: int) -> None:
    assert machine.run(call(helper), EXIT, cpu=3) == RECORD[helper]


def test_comm_and_pid_in_a_namespace(machine: Machine) -> None:
    fill = mov(3, -1) + store(8, 10, -16, 3) + store(8, 10, -8, 3) + stack(1, -16)
    for at, text in ((-16, b"writer\0\0"), (-8, bytes(8))):
        comm = machine.run(fill, mov(2, 16), call(16), load(8, 0, 10, at), EXIT)
        assert comm == int.from_bytes(text, "little")
    short = machine.run(fill, mov(2, 4), call(16), load(8, 0, 10, -16), EXIT)
    assert short == int.from_bytes(b"wri\0\xff\xff\xff\xff", "little")
    assert machine.run(fill, mov(2, 0), call(16), EXIT) == error(errno.EINVAL)
    of_namespace = mov(1, 4) + mov(2, 5) + stack(3, -8)
    assert machine.run(of_namespace, mov(4, 8), call(120), load(8, 0, 10, -8), EXIT) == 77 << 32 | 78
    assert machine.run(of_namespace, mov(4, 4), call(120), EXIT) == error(errno.EINVAL)


@pytest.mark.parametrize("helper", [4, 112, 113])
def test_probe_read(machine: Machine, helper: int) -> None:
    context = bytes(range(8))
    of_record = copy(3, 1) + stack(1, -8) + mov(2, 8) + call(helper)
    assert machine.run(of_record, load(8, 0, 10, -8), EXIT, context=context) == 0x0706050403020100
    for address in (0, 1, 2**64 - 4, 2**63):
        missing = store_imm(8, 10, -8, -1) + wide(3, address) + stack(1, -8) + mov(2, 8) + call(helper)
        assert machine.run(missing, EXIT) == error(errno.EFAULT)
        assert machine.run(missing, load(8, 0, 10, -8), EXIT) == 0
    assert "a write of 8 bytes" in str(machine.run(copy(3, 1), mov(2, 8), call(helper), EXIT))
    too_much = machine.run(copy(3, 1), stack(1, -8), mov(2, -1), call(helper), EXIT)
    assert "a write of 4294967295 bytes" in str(too_much)
    assert machine.run(mov(2, 0), call(helper), EXIT) == 0


@pytest.mark.parametrize("helper", [45, 114, 115])
def test_probe_read_str(machine: Machine, helper: int) -> None:
    read = mov(4, -1) + store(8, 10, -8, 4) + copy(3, 1) + stack(1, -8)
    for text, size, expected, length in (
        (b"abc\0defg", 8, b"abc\0\xff\xff\xff\xff", 4),
        (b"abc\0defg", 3, b"ab\0\xff\xff\xff\xff\xff", 3),
        (b"abc", 8, b"abc\0\xff\xff\xff\xff", 4),  # the record ends before the text does
        (b"\0", 8, b"\0" + b"\xff" * 7, 1),
        (b"abc", 1, b"\0" + b"\xff" * 7, 1),
    ):
        program = read + mov(2, size) + call(helper)
        assert machine.run(program, EXIT, context=text) == length
        got = machine.run(program, load(8, 0, 10, -8), EXIT, context=text)
        assert got == int.from_bytes(expected, "little")
    assert machine.run(read, mov(3, 0), mov(2, 8), call(helper), EXIT) == error(errno.EFAULT)
    assert "a write of 9 bytes" in str(machine.run(read, mov(2, 9), call(helper), EXIT))


def test_strncmp(machine: Machine) -> None:
    constant = machine.map(ARRAY, 4, 8, 1)
    machine.write(constant, bytes(4), b"/item\0\0\0")
    for text, size, equal in ((b"/item/12", 5, True), (b"/item\0--", 8, True), (b"/cart\0\0\0", 8, False)):
        program = mov(2, size) + map_value(3, constant) + call(182)
        assert (machine.run(program, EXIT, context=text) == 0) is equal
    assert "a read of 9 bytes" in str(machine.run(mov(2, 9), map_value(3, constant), call(182), EXIT))
    assert "a read of 1 bytes" in str(machine.run(mov(2, 8), mov(3, 0), call(182), EXIT))


def test_arguments_that_are_no_maps(machine: Machine) -> None:
    perf, values = machine.map(PERF_EVENT_ARRAY, 4, 4, 1), machine.map(ARRAY, 4, 8, 1)
    key = store_imm(4, 10, -4, 0) + stack(2, -4)
    for program, message in (
        (mov(1, 0) + key + call(1), "an argument that is no map"),
        (map_fd(1, values) + add(1, 1) + key + call(1), "an argument that is no map"),
        (map_fd(1, perf) + key + call(1), "a map of another type"),
        (map_fd(1, values) + stack(2, -3) + call(1), "a read of 4 bytes"),
        (map_fd(1, values) + stack(2, -4) + stack(3, -4) + call(2), "a read of 8 bytes"),
        (map_fd(2, values) + stack(4, -8) + mov(5, 8) + mov(3, 0) + call(25), "a map of another type"),
        (map_fd(1, perf) + mov(2, 8) + mov(3, 0) + call(131), "a map of another type"),
        (stack(1, -8) + mov(2, 0) + call(132), "what is no reservation"),
    ):
        assert message in str(machine.run(program, EXIT)), message


# ---- callbacks


def test_loop(machine: Machine) -> None:
    """Adds each index to a sum on the caller's stack; ends early at 5."""
    body = [load(8, 3, 2), b"\x0f\x13\0\0\0\0\0\0", store(8, 2, 0, 3), mov(0, 0)]
    body += [jump("jne", 1, 1, 5), mov(0, 1)]
    main = [store_imm(8, 10, -8, 0), mov(1, 100), callback(8), stack(3, -8), mov(4, 0), call(181)]
    assert machine.run(*main, load(8, 0, 10, -8), EXIT, EXIT, *body, EXIT) == 0 + 1 + 2 + 3 + 4 + 5
    assert machine.run(*main, EXIT, EXIT, EXIT, *body, EXIT) == 6
    main[1] = mov(1, (1 << 23) + 1)
    assert machine.run(*main, EXIT, EXIT, EXIT, *body, EXIT) == error(errno.E2BIG)
    main[2], main[1] = mov(2, 8) + mov(2, 8), mov(1, 1)
    assert "a callback that is none of its functions" in str(
        machine.run(*main, EXIT, EXIT, EXIT, *body, EXIT)
    )


@pytest.mark.parametrize("kind", [HASH, ARRAY])
def test_for_each_map_elem(machine: Machine, kind: int) -> None:
    fd = machine.map(kind, 4, 8, 5)
    for i in range(5):
        machine.write(fd, struct.pack("<I", i), struct.pack("<Q", 100 * i))
    # r2 key, r3 value, r4 the caller's sum
    body = [load(4, 1, 2), load(8, 5, 3), b"\x0f\x15\0\0\0\0\0\0", load(8, 1, 4), b"\x0f\x51\0\0\0\0\0\0"]
    body += [store(8, 4, 0, 1), mov(0, 0), EXIT]
    main = [store_imm(8, 10, -8, 0), map_fd(1, fd), callback(8), stack(3, -8), mov(4, 0), call(164)]
    assert machine.run(*main, load(8, 0, 10, -8), EXIT, EXIT, *body) == 10 + 1000
    assert machine.run(*main, EXIT, EXIT, EXIT, *body) == 5
    stops = [*body[:-2], mov(0, 1), EXIT]
    assert machine.run(*main, EXIT, EXIT, EXIT, *stops) == 1
    writes_key = [store_imm(4, 2, 0, 9), *body]
    ran = machine.run(*main, EXIT, EXIT, EXIT, *writes_key)
    assert ran == 5 if kind == ARRAY else "a write of 4 bytes" in str(ran)
    if kind == HASH:  # deletes each element, the first one twice
        delete = [copy(6, 1), copy(7, 2), call(3), copy(1, 6), copy(2, 7), call(3), mov(0, 0), EXIT]
        assert machine.run(*main, EXIT, EXIT, EXIT, *delete) == 5
        assert machine.keys(fd) == []


def test_printk_goes_nowhere(machine: Machine) -> None:
    constant = machine.map(ARRAY, 4, 16, 1)
    for helper in (6, 177):
        assert machine.run(map_value(1, constant), mov(2, 6), call(helper), EXIT) == 6
        too_long = machine.run(map_value(1, constant), mov(2, 17), call(helper), EXIT)
        assert "a read of 17 bytes" in str(too_long)


# ---- rings


def output(fd: int, size: int, flags: int = 0xFFFFFFFF) -> bytes:
    code = copy(6, 1) + map_fd(2, fd) + wide(3, flags) + copy(4, 6) + mov(5, size)
    return code + call(25) + EXIT


def test_perf_event_output(machine: Machine) -> None:
    fd = machine.map(PERF_EVENT_ARRAY, 4, 4, 3)
    assert machine.run(output(fd, 8)) == error(errno.ENOENT)
    assert machine.program.ask(f"ring {fd} 1 4") == str(-errno.EINVAL)
    assert machine.program.ask(f"ring {fd} 3 2") == str(-errno.E2BIG)
    assert machine.program.ask(f"ring {fd} 1 2") == "0"
    assert machine.run(output(fd, 8, 2)) == error(errno.ENOENT)
    assert machine.program.ask(f"records {fd} 1") == "lost 0"
    for text in (b"12345678", b"123456789abcd"):
        assert machine.run(output(fd, len(text)), context=text, cpu=2) == 0
    # As perf does: 4 bytes of size, and zeros up to 8.
    padded = b"12345678\0\0\0\0", b"123456789abcd" + bytes(7)
    assert machine.program.ask(f"records {fd} 1") == f"rang {padded[0].hex()} {padded[1].hex()} lost 0"
    assert machine.run(output(fd, 65_517), context=bytes(65_517)) == error(errno.E2BIG)  # with its header
    text = bytes(range(1, 201))
    taken = 0
    for round_ in range(30):  # around the ring's end many times
        for _ in range(9):
            assert machine.run(output(fd, 200), context=text) == 0
        answer = machine.program.ask(f"records {fd} 1")
        assert answer == "rang " + f"{(text + bytes(4)).hex()} " * 9 + "lost 0", round_
        taken += 9
    assert "a read of 201 bytes" in str(machine.run(output(fd, 201), context=text))


def test_losses_are_in_the_ring_as_soon_as_there_is_room(machine: Machine) -> None:
    fd = machine.map(PERF_EVENT_ARRAY, 4, 4, 1)
    assert machine.program.ask(f"ring {fd} 0 2") == "0"
    results = [machine.run(output(fd, 1012), context=bytes(1012)) for _ in range(6)]
    assert results == [0] * 4 + [error(errno.ENOSPC)] * 2
    assert machine.program.ask(f"records {fd} 0").endswith(" lost 2")
    assert machine.program.ask(f"records {fd} 0") == "rang lost=2 lost 2"
    assert machine.program.ask(f"records {fd} 0") == "lost 2"


def reserve(fd: int, size: int) -> bytes:
    call_it = copy(7, 1) + map_fd(1, fd) + mov(2, size) + mov(3, 0) + call(131)
    return call_it + jump("jne", 0, 1) + EXIT + copy(6, 0)


def finish(helper: int, flags: int = 0) -> bytes:
    return copy(1, 6) + mov(2, flags) + call(helper) + mov(0, 1) + EXIT


def test_ring_buffer(machine: Machine) -> None:
    fd = machine.map(RINGBUF, 0, 0, PAGE)
    code = map_fd(1, fd) + mov(3, 8) + mov(4, 0) + copy(2, 6) + call(130) + EXIT
    assert machine.run(copy(6, 1), code, context=b"12345678") == 0
    assert machine.run(reserve(fd, 12), store_imm(8, 6, 0, 5), store_imm(4, 6, 8, 6), finish(132)) == 1
    assert machine.run(reserve(fd, 8), finish(133)) == 1
    numbers = f"{5:02x}{'00' * 7}{6:02x}{'00' * 3}"
    assert machine.program.ask(f"records {fd} 0") == f"rang {b'12345678'.hex()} {numbers} lost 0"
    assert machine.run(reserve(fd, 8), finish(132, 1)) == 1  # BPF_RB_NO_WAKEUP
    assert machine.program.ask(f"records {fd} 0") == f"{'00' * 8} lost 0"
    for program, message in (
        (reserve(fd, 8) + store_imm(1, 6, 8, 0), "a write of 1 bytes"),
        (reserve(fd, 8) + store_imm(1, 6, -8, 0), "a write of 1 bytes"),
        (reserve(fd, 8) + copy(1, 6) + mov(2, 0) + call(132) + load(1, 0, 6), "a read of 1 bytes"),
        (reserve(fd, 8) + add(6, 1) + finish(132), "what is no reservation"),
        (reserve(fd, 8) + finish(132)[:-16] + finish(132), "what is no reservation"),
        (reserve(fd, 8), "neither submitted nor discarded"),
    ):
        assert message in str(machine.run(program, mov(0, 1), EXIT)), message
        assert "busy" not in machine.program.ask(f"records {fd} 0")


def test_a_full_ring_buffer(machine: Machine) -> None:
    fd = machine.map(RINGBUF, 0, 0, PAGE)
    assert machine.run(reserve(fd, PAGE), finish(132)) == 0
    assert [machine.run(reserve(fd, 1016), finish(132)) for _ in range(5)] == [1, 1, 1, 1, 0]
    full = [machine.run(map_fd(1, fd), mov(2, what), call(134), EXIT) for what in range(5)]
    positions = machine.program.ask(f"records {fd} 0")
    assert positions.endswith("lost 2")
    begin = full[2]
    assert isinstance(begin, int)
    assert full == [PAGE, PAGE, begin, begin + PAGE, 0]
    for _ in range(50):  # records over the end of the ring
        assert machine.run(reserve(fd, 1000), store_imm(8, 6, 992, 7), finish(132)) == 1
        assert machine.program.ask(f"records {fd} 0").endswith(f"07{'00' * 7} lost 2")
    assert "neither submitted nor" in str(machine.run(*[reserve(fd, 8)] * 9, mov(0, 7), EXIT))
