"""Each instruction of RFC 9669 against a model of it, accesses that end a program, and what is not loaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.c.bpf.assembler import (
    ALU,
    ALU32,
    ALU64,
    ARRAY,
    ATOMIC,
    EXIT,
    HASH,
    JMP,
    JMP32,
    JUMPS,
    LDX,
    MEM,
    MEMSX,
    RDONLY_PROG,
    SIZES,
    ST,
    STX,
    Machine,
    X,
    add,
    call,
    copy,
    ins,
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

EDGES = [0, 1, 7, 32, 63, 0x80, 0x8000, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 0x0123456789ABCDEF]
EDGES += [2**63 - 1, 2**63, 2**64 - 1]


def signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def truncated(a: int, b: int) -> int:
    """Division of C: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


Operation = Callable[[int, int, int], int]
"""(first, second, bits): both unsigned; the result may be longer."""

ARITHMETIC: dict[tuple[str, int], Operation] = {
    ("add", 0): lambda a, b, n: a + b,
    ("sub", 0): lambda a, b, n: a - b,
    ("mul", 0): lambda a, b, n: a * b,
    ("div", 0): lambda a, b, n: a // b if b else 0,
    ("div", 1): lambda a, b, n: truncated(signed(a, n), signed(b, n)) if b else 0,
    ("or", 0): lambda a, b, n: a | b,
    ("and", 0): lambda a, b, n: a & b,
    ("lsh", 0): lambda a, b, n: a << (b % n),
    ("rsh", 0): lambda a, b, n: a >> (b % n),
    ("mod", 0): lambda a, b, n: a % b if b else a,
    ("mod", 1): lambda a, b, n: (
        signed(a, n) - signed(b, n) * truncated(signed(a, n), signed(b, n)) if b else a
    ),
    ("xor", 0): lambda a, b, n: a ^ b,
    ("mov", 0): lambda a, b, n: b,
    ("arsh", 0): lambda a, b, n: signed(a, n) >> (b % n),
}
"""By name and offset."""
CONDITIONS: dict[str, Callable[[int, int, int], bool]] = {
    "jeq": lambda a, b, n: a == b,
    "jne": lambda a, b, n: a != b,
    "jgt": lambda a, b, n: a > b,
    "jge": lambda a, b, n: a >= b,
    "jlt": lambda a, b, n: a < b,
    "jle": lambda a, b, n: a <= b,
    "jset": lambda a, b, n: a & b != 0,
    "jsgt": lambda a, b, n: signed(a, n) > signed(b, n),
    "jsge": lambda a, b, n: signed(a, n) >= signed(b, n),
    "jslt": lambda a, b, n: signed(a, n) < signed(b, n),
    "jsle": lambda a, b, n: signed(a, n) <= signed(b, n),
}
WIDTHS = pytest.mark.parametrize("bits", [32, 64])


def pairs() -> itertools.product[tuple[int, int]]:
    return itertools.product(EDGES, EDGES)


@WIDTHS
@pytest.mark.parametrize(("name", "off"), ARITHMETIC)
def test_arithmetic(machine: Machine, name: str, off: int, bits: int) -> None:
    code = (ALU64 if bits == 64 else ALU32) | ALU[name]
    for a, b in pairs():
        model = ARITHMETIC[name, off]
        expected = model(a % 2**bits, b % 2**bits, bits) % 2**bits
        by_register = ins(code | X, 1, 2, off)
        assert machine.run(wide(1, a), wide(2, b), by_register, copy(0, 1), EXIT) == expected, (a, b)
        imm = signed(b, 32)
        expected = model(a % 2**bits, imm % 2**bits, bits) % 2**bits
        assert machine.run(wide(1, a), ins(code, 1, 0, off, imm), copy(0, 1), EXIT) == expected, (a, imm)


@pytest.mark.parametrize("bits", [0, 4, 63, 64])
@pytest.mark.parametrize("limit", [0, 3, 0xFFFF, -1])
def test_a_step_of_a_logarithm(machine: Machine, bits: int, limit: int) -> None:
    """One operation, unless one of its instructions is another; jumps may lead into its middle."""
    shift = ins(ALU64 | ALU["lsh"], 3, imm=bits), ins(ALU64 | ALU["rsh"] | X, 1, 3)
    step = [mov(3, 1), jump("jgt", 1, 1, limit), mov(3, 0), *shift]
    result = [ins(ALU64 | ALU["mul"], 3, imm=1000), ins(ALU64 | ALU["xor"] | X, 1, 3), copy(0, 1), EXIT]
    for a in EDGES:

        def after(one: int, a: int = a) -> int:
            by = one << bits % 64
            return (a >> by % 64 ^ by * 1000) % 2**64

        is_above = int(a > limit % 2**64)
        assert machine.run(wide(1, a), *step, *result) == after(is_above)
        again = wide(1, a >> (is_above << bits % 64) % 64)
        assert machine.run(wide(1, a), *step, *step, *result) == machine.run(again, *step, *result)
        inside = [mov(3, 5), jump("ja", 0, 1)]
        assert machine.run(wide(1, a), *inside, *step, *result) == after(5 * is_above)
        assert machine.run(wide(1, a), mov(3, 2), *step[1:], *result) == after(2 * is_above)
        other = after(1 if is_above else 7)
        assert machine.run(wide(1, a), *step[:2], mov(3, 7), *shift, *result) == other


@WIDTHS
@pytest.mark.parametrize("name", CONDITIONS)
def test_jumps(machine: Machine, name: str, bits: int) -> None:
    code = (JMP if bits == 64 else JMP32) | JUMPS[name]
    for a, b in pairs():
        for instruction, second in ((ins(code | X, 1, 2, 1), b), (ins(code, 1, 0, 1, b), signed(b, 32))):
            expected = CONDITIONS[name](a % 2**bits, second % 2**bits, bits)
            run = machine.run(wide(1, a), wide(2, b), mov(0, 1), instruction, mov(0, 0), EXIT)
            assert run == expected, (a, second)


def test_negation_extension_and_byte_order(machine: Machine) -> None:
    for a in EDGES:

        def unary(code: int, off: int = 0, imm: int = 0, src: int = 0, a: int = a) -> int | str:
            return machine.run(wide(1, a), wide(2, a), ins(code, 1, src, off, imm), copy(0, 1), EXIT)

        assert unary(ALU64 | ALU["neg"]) == -a % 2**64
        assert unary(ALU32 | ALU["neg"]) == -a % 2**32
        for n in (8, 16, 32):
            assert unary(ALU64 | ALU["mov"] | X, n, src=2) == signed(a, n) % 2**64
        for n in (8, 16):
            assert unary(ALU32 | ALU["mov"] | X, n, src=2) == signed(a, n) % 2**32
        for n in (16, 32, 64):
            little = (a % 2**n).to_bytes(n // 8, "little")
            assert unary(ALU32 | ALU["end"], imm=n) == int.from_bytes(little, "little")
            assert unary(ALU32 | ALU["end"] | X, imm=n) == int.from_bytes(little, "big")
            assert unary(ALU64 | ALU["end"], imm=n) == int.from_bytes(little, "big")


@pytest.mark.parametrize("size", SIZES)
def test_loads_and_stores(machine: Machine, size: int) -> None:
    """From the context, and from the stack with an offset that is known at loading, or not."""
    context = bytes(range(0xF0, 0x100)) + bytes(8)
    for at in (0, 5, 15):
        value = int.from_bytes(context[at : at + size], "little")
        assert machine.run(load(size, 0, 1, at), EXIT, context=context) == value
        if size < 8:
            extended = ins(LDX | MEMSX | SIZES[size], 0, 1, at)
            assert machine.run(extended, EXIT, context=context) == signed(value, 8 * size) % 2**64
    for value in EDGES:
        for of_register, kept in ((True, value), (False, signed(value, 32))):

            def write(to: int, off: int, value: int = value, of_register: bool = of_register) -> bytes:
                by_register = wide(3, value) + store(size, to, off, 3)
                return by_register if of_register else store_imm(size, to, off, value)

            kept %= 2 ** (8 * size)
            assert machine.run(write(10, -16), load(size, 0, 10, -16), EXIT) == kept
            # On bytes that were 1, and only as many as it says.
            around = [mov(2, -1), store(8, 10, -16, 2), stack(4, -100), write(4, 84), load(8, 0, 4, 84), EXIT]
            assert machine.run(*around) == 2**64 - 2 ** (8 * size) + kept


ATOMICS: dict[int, Operation] = {
    0x00: lambda a, b, n: a + b,
    0x40: lambda a, b, n: a | b,
    0x50: lambda a, b, n: a & b,
    0xA0: lambda a, b, n: a ^ b,
    0xE1: lambda a, b, n: b,
}


@pytest.mark.parametrize("size", [4, 8])
def test_atomics(machine: Machine, size: int) -> None:
    code, bits = STX | ATOMIC | SIZES[size], 8 * size
    for a, b in pairs():
        begin = wide(1, a) + wide(2, b) + mov(0, -1) + store(8, 10, -8, 1)
        old = a % 2**bits
        for operation, model in ATOMICS.items():
            new = model(old, b % 2**bits, bits) % 2**bits
            for fetch in {operation, operation | 1}:
                atomic = ins(code, 10, 2, -8, fetch)
                assert machine.run(begin, atomic, load(size, 0, 10, -8), EXIT) == new
                assert machine.run(begin, atomic, copy(0, 2), EXIT) == (old if fetch & 1 else b)
        for expected in (a, b):
            exchange = [begin, wide(0, expected), mov(3, 5), ins(code, 10, 3, -8, 0xF1)]
            assert machine.run(*exchange, EXIT) == old
            is_same = expected % 2**bits == old
            assert machine.run(*exchange, load(size, 0, 10, -8), EXIT) == (5 if is_same else old)


NUMBERS = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.sampled_from([*ARITHMETIC]), st.booleans(), NUMBERS), max_size=20), NUMBERS)
@settings(deadline=None, max_examples=100)
def test_chains_of_arithmetic(
    machine: Machine, steps: list[tuple[tuple[str, int], bool, int]], value: int
) -> None:
    program, expected = wide(0, value), value
    for (name, off), is_64, operand in steps:
        bits = 64 if is_64 else 32
        program += wide(3, operand) + ins((ALU64 if is_64 else ALU32) | ALU[name] | X, 0, 3, off)
        model = ARITHMETIC[name, off]
        expected = model(expected % 2**bits, operand % 2**bits, bits) % 2**bits
    assert machine.run(program, EXIT) == expected


# ---- control


def local_call(distance: int) -> bytes:
    return ins(JMP | JUMPS["call"], 0, 1, imm=distance)


def test_a_function_has_its_own_stack_and_keeps_the_callers_registers(machine: Machine) -> None:
    function = [store_imm(8, 10, -8, 1), mov(6, 0), mov(9, 0), copy(0, 1), ins(ALU64 | X, 0, 2), EXIT]
    main = [mov(6, 100), mov(9, 20), store_imm(8, 10, -8, 3), mov(1, 4), mov(2, 5), local_call(5)]
    main += [ins(ALU64 | X, 0, 6), ins(ALU64 | X, 0, 9), load(8, 1, 10, -8), ins(ALU64 | X, 0, 1), EXIT]
    assert machine.run(*main, *function) == 100 + 20 + 3 + 4 + 5


def test_recursion_ends(machine: Machine) -> None:
    assert machine.run(local_call(-1), EXIT) == ("instruction 0: calls of functions are nested deeper than 8")


def test_long_jumps(machine: Machine) -> None:
    skip = ins(JMP32 | JUMPS["ja"], imm=40_000)
    assert machine.run(mov(0, 1), skip, mov(0, 2) * 40_000, EXIT) == 1
    assert machine.run(jump("ja", 0, 2), mov(0, 3), EXIT, ins(JMP32, imm=-3)) == 3


@pytest.mark.parametrize(
    "program",
    [
        [jump("ja", 0, -1)],
        [ins(JMP32, imm=-1)],
        [mov(1, 1), jump("jeq", 1, -1, 1), EXIT],
        [mov(1, 1 << 23), wide(2, 7, src=4), mov(3, 0), mov(4, 0), call(181), EXIT, mov(0, 0), EXIT] * 1,
    ],
    ids=["ja", "gotol", "jeq", "loop"],
)
def test_the_budget_ends(machine: Machine, program: list[bytes]) -> None:
    if len(program) == 8:
        program[1] = wide(2, 5, src=4)
        program[6:6] = [mov(0, 0)] * 40 + [mov(1, 3), add(1, -1), jump("jne", 1, -2)]
    assert "it ran too long" in str(machine.run(*program))


@pytest.mark.parametrize("is_callback", [False, True])
def test_a_long_function_costs_what_it_runs(machine: Machine, is_callback: bool) -> None:
    main = [mov(6, 100_000), local_call(3), add(6, -1), jump("jne", 6, -3), EXIT]
    if is_callback:
        main = [mov(1, 100_000), wide(2, 5, src=4), mov(3, 0), mov(4, 0), call(181), EXIT]
    assert "it ran too long" in str(machine.run(*main, mov(0, 0) * 30_000, EXIT))


# ---- accesses that end a program


def test_accesses(machine: Machine) -> None:
    values = machine.map(ARRAY, 4, 12, 3)
    constants = machine.map(ARRAY, 4, 8, 1, RDONLY_PROG)
    hashed = machine.map(HASH, 3, 5, 4)
    machine.write(hashed, b"key", b"value")
    lookup = [store_imm(4, 10, -4, 1), map_fd(1, values), stack(2, -4), call(1), jump("jne", 0, 1), EXIT]
    of_hash = [store_imm(4, 10, -4, int.from_bytes(b"key", "little")), map_fd(1, hashed), *lookup[2:]]
    high = [wide(1, 2**64 - 4)]
    for program, message in (
        ([load(8, 0, 1, 1)], "a read of 8 bytes at 0x"),
        ([load(1, 0, 1, -1)], "outside of the record, the stack and the values of maps"),
        ([load(1, 0, 1, 8)], "outside of the record"),
        ([store_imm(1, 1, 0, 0)], "a write of 1 bytes at 0x"),
        ([mov(1, 0), load(8, 0, 1)], "a read of 8 bytes at 0, a pointer that is NULL"),
        ([*high, load(8, 0, 1)], "a read of 8 bytes at 0xfffffffffffffffc"),
        ([stack(1, 0), load(1, 0, 1)], "a read of 1 bytes"),
        ([stack(1, -7), load(8, 0, 1)], "a read of 8 bytes"),
        ([stack(1, -512), store(8, 1, 504, 1), load(8, 0, 1, 505)], "instruction 3: a read of 8 bytes"),
        ([*lookup, load(4, 0, 0, 9)], "a read of 4 bytes"),
        ([*lookup, load(4, 0, 0, -1)], "a read of 4 bytes"),
        ([*lookup, store_imm(1, 0, 12, 0)], "a write of 1 bytes"),
        ([*of_hash, store_imm(1, 0, -8, 0)], "a write of 1 bytes"),
        ([*of_hash, load(2, 0, 0, 4)], "a read of 2 bytes"),
        ([map_value(1, constants), store_imm(8, 1, 0, 1)], "a write of 8 bytes"),
        ([map_fd(1, values), load(8, 0, 1)], "a read of 8 bytes at 0xbad0a9"),
        ([stack(1, -4), mov(2, 1), ins(STX | ATOMIC | SIZES[8], 1, 2, -8, 0)], "that is not aligned"),
        ([mov(2, 1), ins(STX | ATOMIC | SIZES[8], 1, 2, 0, 0)], "a write of 8 bytes"),
    ):
        assert message in str(machine.run(*program, EXIT)), (program, message)
    # The same just inside.
    assert machine.run(*lookup, store_imm(4, 0, 8, 7), load(4, 0, 0, 8), EXIT) == 7
    assert machine.run(*of_hash, load(1, 0, 0, 4), EXIT) == ord("e")
    assert machine.run(*of_hash, load(2, 0, 0, -8), EXIT) == int.from_bytes(b"ke", "little")
    assert machine.run(map_value(1, constants, 4), load(4, 0, 1), EXIT) == 0
    assert machine.run(stack(1, -512), store_imm(8, 1, 504, 9), load(8, 0, 1, 504), EXIT) == 9


# ---- programs that are not loaded

NOT_LOADED = {
    "empty": ([], "a program without instructions"),
    "opcode": ([ins(0xFF), EXIT], "instruction 0: unknown opcode ff"),
    "zero": ([ins(0), EXIT], "unknown opcode 00"),
    "packet": ([ins(0x20), EXIT], "unknown opcode 20"),
    "register call": ([ins(JMP | JUMPS["call"] | X), EXIT], "unknown opcode 8d"),
    "reserved": ([ins(ALU64 | ALU["add"], 0, 0, 1), EXIT], "unknown opcode 07 (offset 1, immediate 0)"),
    "sign of 24 bits": ([ins(ALU64 | ALU["mov"] | X, 0, 1, 24), EXIT], "unknown opcode bf"),
    "swap of 8 bits": ([ins(ALU32 | ALU["end"], imm=8), EXIT], "unknown opcode d4"),
    "R11": ([mov(11, 0), EXIT], "R11 is invalid"),
    "source R15": ([copy(0, 15), EXIT], "R15 is invalid"),
    "R10": ([mov(10, 0), EXIT], "frame pointer is read only"),
    "R10 loaded": ([load(8, 10, 1), EXIT], "frame pointer is read only"),
    "R10 wide": ([wide(10, 0), EXIT], "frame pointer is read only"),
    "R10 fetched": ([ins(STX | ATOMIC | SIZES[8], 1, 10, 0, 1), EXIT], "frame pointer is read only"),
    "end": ([mov(0, 0)], "last insn is not an exit or jmp"),
    "end by condition": ([EXIT, jump("jeq", 0, -2)], "last insn is not an exit or jmp"),
    "end by wide": ([EXIT, wide(0, 0)], "last insn is not an exit or jmp"),
    "half": ([EXIT, wide(0, 0)[:8]], "invalid bpf_ld_imm64 insn"),
    "wrong half": ([wide(0, 0)[:8], EXIT], "invalid bpf_ld_imm64 insn"),
    "before": ([jump("ja", 0, -2), EXIT], "jump out of range to -1"),
    "behind": ([jump("jeq", 0, 1), EXIT], "jump out of range to 2"),
    "gotol": ([ins(JMP32, imm=2**31 - 1), EXIT], "jump out of range to 2147483648"),
    "middle": ([jump("ja", 0, 1), wide(0, 0), EXIT], "jump into the middle of an instruction, to 2"),
    "call into the middle": ([local_call(1), wide(0, 0), EXIT], "jump into the middle of an instruction"),
    "call behind": ([local_call(5), EXIT], "jump out of range to 6"),
    "callback behind": ([wide(0, 7, src=4), EXIT], "jump out of range to 8"),
    "stack": ([load(8, 0, 10, -520), EXIT], "the stack has 512 bytes"),
    "above the stack": ([store(8, 10, -4, 0), EXIT], "the stack has 512 bytes"),
    "atomic": ([ins(STX | ATOMIC | SIZES[8], 10, 0, -12, 0), EXIT], "that is not aligned"),
    "atomic operation": ([ins(STX | ATOMIC | SIZES[8], 1, 0, 0, 0x10), EXIT], "unknown opcode db"),
    "atomic byte": ([ins(STX | ATOMIC | SIZES[1], 1), EXIT], "unknown opcode d3"),
    "no map": ([map_fd(1, 4000), EXIT], "-9 instruction 0: fd 4000 is not pointing to valid bpf_map"),
    "by index": ([wide(1, 0, src=5), EXIT], "a map by its index, without fd_array"),
    "ksym": ([wide(1, 0, src=3), EXIT], "variables of the kernel are not there"),
    "kfunc": ([ins(JMP | JUMPS["call"], 0, 2), EXIT], "functions of the kernel (kfuncs) are not there"),
    "stackid": ([call(27), EXIT], "unknown func bpf_get_stackid#27: stacks are not part of a record"),
    "task": ([call(35), EXIT], "unknown func bpf_get_current_task#35: the writer's task is memory of the"),
    "uid": ([call(15), EXIT], "unknown func bpf_get_current_uid_gid#15: the writer's user"),
    "signal": ([call(109), EXIT], "unknown func bpf_send_signal#109: a program runs after the event"),
    "helper": ([call(9999), EXIT], "unknown func unknown#9999: this helper function is not there"),
    "negative helper": ([call(-1), EXIT], "unknown func unknown#-1"),
}


@pytest.mark.parametrize("name", NOT_LOADED)
def test_not_loaded(machine: Machine, name: str) -> None:
    program, message = NOT_LOADED[name]
    answer = machine.load(*program)
    assert message in answer
    assert answer.startswith("-9 " if name == "no map" else "-22 ")


def test_every_opcode(machine: Machine) -> None:
    """The codes that load, with the smallest of the arguments, are those of the tests above."""
    codes = {
        (ALU64 if is_64 else ALU32) | ALU[name] | x
        for name, _ in ARITHMETIC
        for is_64 in (0, 1)
        for x in (0, X)
    }
    codes |= {c | JUMPS[name] | x for name in CONDITIONS for c in (JMP, JMP32) for x in (0, X)}
    codes |= {ALU64 | ALU["neg"], ALU32 | ALU["neg"], JMP, JMP32, JMP | JUMPS["exit"], JMP | JUMPS["call"]}
    codes |= {ALU32 | ALU["end"], ALU32 | ALU["end"] | X, ALU64 | ALU["end"], 0x18}
    codes |= {kind | MEM | size for kind in (LDX, ST, STX) for size in SIZES.values()}
    codes |= {LDX | MEMSX | SIZES[size] for size in (1, 2, 4)} | {
        STX | ATOMIC | SIZES[size] for size in (4, 8)
    }
    endings = {0x18: ins(0), JMP | JUMPS["call"]: b""}
    loaded = set()
    for code in range(256):
        is_end = code & 0xF7 in (ALU32 | ALU["end"], ALU64 | ALU["end"])
        imm = 16 if is_end else 5 if code == JMP | JUMPS["call"] else 0
        if machine.load(ins(code, 1, 0, 0, imm), endings.get(code, b""), EXIT).isdigit():
            loaded.add(code)
    assert loaded == codes
