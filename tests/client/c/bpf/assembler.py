"""Instructions of eBPF as bytes, and a program that runs them: client/c/tests/bpf.c."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.client.c.programs import Program

HASH, ARRAY, PERF_EVENT_ARRAY, PERCPU_HASH, PERCPU_ARRAY = 1, 2, 4, 5, 6
LRU_HASH, LRU_PERCPU_HASH, RINGBUF = 9, 10, 27
NO_PREALLOC, RDONLY, WRONLY, RDONLY_PROG, MMAPABLE = 1 << 0, 1 << 3, 1 << 4, 1 << 7, 1 << 10

ARITHMETIC = "add sub mul div or and lsh rsh neg mod xor mov arsh end"
ALU = {name: code << 4 for code, name in enumerate(ARITHMETIC.split())}
CONTROL = "ja jeq jgt jge jset jne jsgt jsge call exit jlt jle jslt jsle"
JUMPS = {name: code << 4 for code, name in enumerate(CONTROL.split())}
SIZES = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}
LD, LDX, ST, STX, ALU32, JMP, JMP32, ALU64 = range(8)
IMM, MEM, MEMSX, ATOMIC = 0x00, 0x60, 0x80, 0xC0
X = 0x08


def ins(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", code, src << 4 | dst, off, (imm + 2**31) % 2**32 - 2**31)


def wide(dst: int, value: int, src: int = 0) -> bytes:
    value %= 2**64
    return ins(LD | IMM | SIZES[8], dst, src, imm=value) + ins(0, imm=value >> 32)


def map_fd(dst: int, fd: int) -> bytes:
    return wide(dst, fd, src=1)


def map_value(dst: int, fd: int, offset: int = 0) -> bytes:
    return wide(dst, fd | offset << 32, src=2)


def mov(dst: int, imm: int) -> bytes:
    return ins(ALU64 | ALU["mov"], dst, imm=imm)


def copy(dst: int, src: int) -> bytes:
    return ins(ALU64 | ALU["mov"] | X, dst, src)


def add(dst: int, imm: int) -> bytes:
    return ins(ALU64 | ALU["add"], dst, imm=imm)


def stack(dst: int, offset: int) -> bytes:
    return copy(dst, 10) + add(dst, offset)


def load(size: int, dst: int, src: int, off: int = 0) -> bytes:
    return ins(LDX | MEM | SIZES[size], dst, src, off)


def store(size: int, dst: int, off: int, src: int) -> bytes:
    return ins(STX | MEM | SIZES[size], dst, src, off)


def store_imm(size: int, dst: int, off: int, imm: int) -> bytes:
    return ins(ST | MEM | SIZES[size], dst, 0, off, imm)


def jump(name: str, dst: int, off: int, imm: int = 0) -> bytes:
    return ins(JMP | JUMPS[name], dst, 0, off, imm)


def call(helper: int) -> bytes:
    return ins(JMP | JUMPS["call"], imm=helper)


EXIT = ins(JMP | JUMPS["exit"])


@dataclass
class Machine:
    """Maps and programs of one process of tests/bpf.c."""

    program: Program

    def map(self, kind: int, key: int, value: int, entries: int, flags: int = 0) -> int:
        """Its number, or -errno."""
        return int(self.program.ask(f"map {kind} {key} {value} {entries} {flags}").split()[0])

    def ask(self, what: str, fd: int, *arguments: bytes | int) -> str:
        words = [a.hex() or "-" if isinstance(a, bytes) else str(a) for a in arguments]
        return self.program.ask(" ".join([what, str(fd), *words]))

    def read(self, fd: int, key: bytes) -> bytes | int:
        """The value, or -errno."""
        return bytes_or_error(self.ask("read", fd, key))

    def write(self, fd: int, key: bytes, value: bytes, flags: int = 0) -> int:
        return int(self.ask("write", fd, key, value, flags))

    def next(self, fd: int, key: bytes | None) -> bytes | int:
        return bytes_or_error(self.ask("next", fd, key or b""))

    def keys(self, fd: int) -> list[bytes]:
        found: list[bytes] = []
        key = self.next(fd, None)
        while isinstance(key, bytes):
            found.append(key)
            key = self.next(fd, key)
        return found

    def load(self, *instructions: bytes) -> str:
        """0, or -errno and the log."""
        return self.program.ask(f"load {b''.join(instructions).hex()}")

    def run(self, *instructions: bytes, context: bytes = bytes(8), cpu: int = 0) -> int | str:
        """The value of r0, or why the run or the loading ended."""
        answer = self.program.ask(f"run {b''.join(instructions).hex()} {context.hex()} {cpu}")
        return int(answer) if answer.isdigit() else answer


def bytes_or_error(answer: str) -> bytes | int:
    return int(answer) if answer.startswith("-") else bytes.fromhex(answer)
