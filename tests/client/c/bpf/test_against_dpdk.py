"""The same programs in the interpreter of DPDK (Debian's librte-bpf), which needs no other part of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.c.bpf.assembler import (
    ALU,
    ALU32,
    ALU64,
    EXIT,
    JMP,
    JUMPS,
    SIZES,
    STX,
    Machine,
    X,
    ins,
    load,
    mov,
    store,
    wide,
)


class Argument(ctypes.Structure):
    """struct rte_bpf_arg"""

    _fields_ = (("type", ctypes.c_int), ("size", ctypes.c_size_t), ("buf_size", ctypes.c_size_t))


class Parameters(ctypes.Structure):
    """struct rte_bpf_prm"""

    _fields_ = (
        ("ins", ctypes.c_char_p),
        ("nb_ins", ctypes.c_uint32),
        ("xsym", ctypes.c_void_p),
        ("nb_xsym", ctypes.c_uint32),
        ("prog_arg", Argument),
    )


RAW = 1


@dataclass
class Dpdk:
    library: ctypes.CDLL

    def run(self, program: bytes) -> int:
        argument = Argument(RAW, 8, 0)
        loaded = self.library.rte_bpf_load(
            ctypes.byref(Parameters(program, len(program) // 8, None, 0, argument))
        )
        assert loaded
        try:
            return int(self.library.rte_bpf_exec(ctypes.c_void_p(loaded), None))
        finally:
            self.library.rte_bpf_destroy(ctypes.c_void_p(loaded))


@pytest.fixture(scope="module")
def dpdk() -> Dpdk:
    for version in (23, 24, 25):
        try:
            library = ctypes.CDLL(f"librte_bpf.so.{version}")
        except OSError:
            continue
        library.rte_bpf_load.restype = ctypes.c_void_p
        library.rte_bpf_exec.restype = ctypes.c_uint64
        return Dpdk(library)
    pytest.skip("needs librte-bpf, of Debian's dpdk")


SLOTS = {1: -8, 2: -16, 4: -24, 8: -32}
"""On the stack: DPDK's verifier refuses a read that is larger than the write."""
REGISTERS = st.integers(0, 5)
IMMEDIATES = st.integers(-(2**31), 2**31 - 1)


@st.composite
def steps(draw: st.DrawFn) -> bytes:
    """One instruction, or the pair that both define alike; 32-bit jumps and cpu v4 are not in DPDK."""
    dst, src = draw(REGISTERS), draw(REGISTERS)
    wide_or_not = draw(st.sampled_from([ALU32, ALU64]))
    kind = draw(st.sampled_from(["alu", "imm", "shift", "divide", "neg", "swap", "jump", "memory", "atomic"]))
    if kind in ("alu", "imm"):
        code = wide_or_not | ALU[draw(st.sampled_from(["add", "sub", "mul", "or", "and", "xor", "mov"]))]
        return ins(code | X, dst, src) if kind == "alu" else ins(code, dst, imm=draw(IMMEDIATES))
    if kind == "shift":
        name = draw(st.sampled_from(["lsh", "rsh", "arsh"]))
        wide_or_not = ALU64 if name == "arsh" else wide_or_not
        return ins(wide_or_not | ALU[name], dst, imm=draw(st.integers(0, 31)))
    if kind == "divide":
        odd = ins(ALU64 | ALU["or"], src, imm=1)
        return odd + ins(wide_or_not | ALU[draw(st.sampled_from(["div", "mod"]))] | X, dst, src)
    if kind == "neg":
        return ins(wide_or_not | ALU["neg"], dst)
    if kind == "swap":
        # Not to little endian, which cuts the value, but not in DPDK.
        return ins(ALU32 | ALU["end"] | X, dst, imm=draw(st.sampled_from([16, 32, 64])))
    if kind == "jump":
        name = draw(st.sampled_from(sorted(JUMPS.keys() - {"ja", "call", "exit"})))
        x = draw(st.sampled_from([0, X]))
        jump = ins(JMP | JUMPS[name] | x, dst, src if x else 0, 1, 0 if x else draw(IMMEDIATES))
        return jump + ins(ALU64 | ALU["add"], dst, imm=draw(IMMEDIATES))
    size = draw(st.sampled_from([1, 2, 4, 8]))
    if kind == "atomic":
        size = draw(st.sampled_from([4, 8]))
        return ins(STX | 0xC0 | SIZES[size], 10, src, SLOTS[size]) + load(size, dst, 10, SLOTS[size])
    return store(size, 10, SLOTS[size], src) + load(size, dst, 10, SLOTS[size])


@given(st.lists(steps(), max_size=40), st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
@settings(deadline=None, max_examples=300)
def test_the_same_results(machine: Machine, dpdk: Dpdk, program: list[bytes], values: list[int]) -> None:
    begin = b"".join(wide(i, value) for i, value in enumerate(values))
    begin += mov(6, 0) + b"".join(store(size, 10, SLOTS[size], 6) for size in SLOTS)
    mixed = b"".join(ins(ALU64 | ALU["xor"] | X, 0, i) for i in range(1, 6))
    code = begin + b"".join(program) + mixed + EXIT
    assert machine.run(code) == dpdk.run(code)
