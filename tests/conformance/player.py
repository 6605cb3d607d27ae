"""Plays a scenario script against a running daemon and prints its answers, in the kernel transcripts' form.

Run as a program of its own (`python player.py SCRIPT DIRECTORY > transcript`), because scripts rename the
process, fork, and hold several connections open at once. It uses only msgpack and the two sockets, so that it
judges the daemon and shares no code with it.

One script line is one operation. It is echoed as `> line`; `| text` are lines of content, `= ...` the result.
An operation that sockets cannot express (an unreadable address, a file position, the mapping of the status
page of old kernels) answers `= not on the wire`, which the comparison skips.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import msgpack

NOT_ON_THE_WIRE = "= not on the wire"
SLOTS = 4096
PAGE = 4096
TRACING = "/sys/kernel/tracing/"
MAX_DATA_OBJECT = 65536


class Refused(Exception):
    """The daemon answered with an errno."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number

    def __str__(self) -> str:
        return f"-1 {errno.errorcode.get(self.number, '?')}({self.number})"


class Wire:
    """One connection: requests are answered before the next is sent."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(path)
        self.unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape", max_buffer_size=1 << 30)
        self.msgid = 0
        self.fds: list[int] = []

    def call(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> Any:
        self.msgid += 1
        data = msgpack.packb([0, self.msgid, method, list(params)], unicode_errors="surrogateescape")
        if fds:
            sent = socket.send_fds(self.sock, [data], list(fds))
            data = data[sent:]
        self.sock.sendall(data)
        while True:
            for message in self.unpacker:
                if message[0] == 1 and message[1] == self.msgid:
                    if message[2] is not None:
                        raise Refused(message[2][0], message[2][1])
                    return message[3]
                if message[0] == 2 and message[1] == "error":
                    raise Refused(message[2][0], str(message[2][1]))
            data, ancillary, _, _ = self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(16 * 4))
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(payload[: len(payload) - len(payload) % 4])
                    self.fds.extend(received)
            if not data:
                raise Refused(errno.EPIPE, "disconnected")
            self.unpacker.feed(data)

    def close(self) -> None:
        self.sock.close()


def decode(text: str) -> bytes:
    """Escapes of script arguments: \\n \\t \\r \\0 \\\\ \\xHH."""
    out = bytearray()
    raw = text.encode("utf-8", "surrogateescape")
    i = 0
    while i < len(raw):
        if raw[i] != 0x5C:
            out.append(raw[i])
            i += 1
            continue
        i += 1
        escape = raw[i : i + 1]
        if escape in (b"n", b"t", b"r", b"0"):
            out += {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}[escape]
            i += 1
        elif escape == b"x":
            out.append(int(raw[i + 1 : i + 3], 16))
            i += 3
        elif not escape:
            out += b"\\"
        else:
            out += escape
            i += 1
    return bytes(out)


def payload(text: str) -> bytes:
    """Fields of a record: u32:1 s16:-2 x:0102 s:text z:8 r:10:0x61 loc:OFFSET,SIZE."""
    out = bytearray()
    for token in text.split(" "):
        if not token:
            continue
        kind, _, value = token.partition(":")
        if re.fullmatch(r"[us]\d+", kind):
            size = int(kind[1:]) // 8
            out += (int(value, 0) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        elif kind == "x":
            out += bytes.fromhex(value[: len(value) // 2 * 2])
        elif kind == "s":
            out += decode(value)
        elif kind == "z":
            out += bytes(int(value))
        elif kind == "r":
            count, _, byte = value.partition(":")
            out += bytes([int(byte, 0)]) * int(count, 0)
        elif kind == "loc":
            offset, _, size_text = value.partition(",")
            out += ((int(size_text) << 16 | int(offset)) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out)


def show(data: bytes) -> Iterator[str]:
    """Content as transcript lines: printable ASCII and tab unchanged, everything else as \\xHH."""
    if not data:
        return
    ends = data.endswith(b"\n")
    for line in (data[:-1] if ends else data).split(b"\n"):
        yield "| " + "".join(chr(c) if c == 9 or 32 <= c < 127 else f"\\x{c:02x}" for c in line)
    if not ends:
        yield "\\ no newline at end"


def hexdump(data: bytes) -> Iterator[str]:
    skipping = False
    for i in range(0, len(data), 16):
        row = data[i : i + 16]
        if i and i + 16 < len(data) and row == data[i - 16 : i] == bytes(16):
            if not skipping:
                yield "| *"
            skipping = True
            continue
        skipping = False
        yield f"| {i:04x}: " + " ".join(f"{c:02x}" for c in row)


class Player:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.tree = Wire(os.path.join(directory, "tracefs"))
        self.data: dict[str, Wire] = {}
        self.files: dict[str, int] = {}
        self.perfs: dict[str, tuple[int, mmap.mmap, int]] = {}
        self.events: list[tuple[str, bytes, int, int]] = []
        self.enabled: list[list[Any]] = []
        self.memory = os.memfd_create("slots", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memory, SLOTS * 8)
        fcntl.fcntl(self.memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.words = mmap.mmap(self.memory, SLOTS * 8)
        self.nslot = 0

    def word(self, slot: int) -> str:
        return f"{int.from_bytes(self.words[slot * 8 : slot * 8 + 8], 'little'):#x}".replace("0x0", "0")

    def remember(self, name: str, command: bytes, index: int, slot: int) -> None:
        self.events.append((name, re.split(b"[ :]", command, maxsplit=1)[0], index, slot))

    def find(self, name: str, event: str) -> tuple[str, bytes, int, int] | None:
        wanted = event.encode("utf-8", "surrogateescape")
        return next((e for e in reversed(self.events) if e[0] == name and e[1] == wanted), None)

    def register(self, name: str, command: bytes, slot: int, **members: Any) -> dict[str, Any]:
        reg = {
            "name_args": command,
            "enable_fd": 0,
            "enable_addr": slot * 8,
            "enable_bit": 0,
            "enable_size": 4,
        }
        reg.update(members)
        return dict(self.data[name].call("DIAG_IOCSREG", reg, fds=(self.memory,)))

    # One method for each operation; it yields the lines that follow the echo.

    def op_open(self, rest: str) -> Iterator[str]:
        name = rest.split()[0]
        self.data[name] = Wire(os.path.join(self.directory, "user_events_data"))
        yield "= open: ok"

    def op_fopen(self, rest: str) -> Iterator[str]:
        name, path, mode = rest.split()[:3]
        if path == "user_events_data":
            yield from self.op_open(name)
            return
        flags = {"w": os.O_WRONLY, "wt": os.O_WRONLY | os.O_TRUNC, "r": os.O_RDONLY}
        flags["rn"] = os.O_RDONLY | os.O_NONBLOCK
        try:
            self.files[name] = self.tree.call("open", path, flags.get(mode, os.O_RDWR))
        except Refused as e:
            yield f"= open: {e}"
        else:
            yield "= open: ok"

    def op_close(self, rest: str) -> Iterator[str]:
        name = rest.strip()
        if name in self.data:
            self.data.pop(name).close()
        elif name in self.files:
            self.tree.call("close", self.files.pop(name))
        else:
            yield "= NOFD"
            return
        yield "= close: 0"

    def op_reg(self, rest: str) -> Iterator[str]:
        name, _, text = rest.partition(" ")
        command = decode(text)
        slot = self.nslot
        self.nslot += 1
        try:
            got = self.register(name, command, slot)
        except Refused as e:
            yield f"= reg: {e}"
            return
        self.remember(name, command, got["write_index"], slot)
        self.enabled.append([name, slot, 0, True])
        yield f"= reg: 0 write_index={got['write_index']} enable_slot={slot} word={self.word(slot)}"

    def op_regx(self, rest: str) -> Iterator[str]:
        head, colon, text = rest.partition(" : ")
        name, *tokens = head.split()
        command = decode(text) if colon else b""
        slot = self.nslot
        members: dict[str, Any] = {}
        for token in tokens:
            key, equals, value = token.partition("=")
            if not equals:
                continue
            if key in ("ro", "args", "null"):
                yield NOT_ON_THE_WIRE
                return
            if key in ("size", "flags"):
                members[key] = int(value, 0)
            elif key == "bit":
                members["enable_bit"] = int(value, 0)
            elif key == "esize":
                members["enable_size"] = int(value, 0)
            elif key == "slot":
                slot = int(value)
                members["enable_addr"] = slot * 8
            elif key == "off":
                members["enable_addr"] = members.get("enable_addr", slot * 8) + int(value)
            elif key == "addr":
                members["enable_addr"] = int(value, 0)
            elif key == "tail":
                yield NOT_ON_THE_WIRE
                return
        try:
            got = self.register(name, command, slot, **members)
        except Refused as e:
            yield f"= regx: {e}"
            return
        if slot == self.nslot:
            self.nslot += 1
        self.remember(name, command, got["write_index"], slot)
        self.enabled.append([name, slot, members.get("enable_bit", 0), True])
        yield f"= regx: 0 write_index={got['write_index']} slot={slot} word={self.word(slot)}"

    def op_regmany(self, rest: str) -> Iterator[str]:
        name, prefix, count, *fields = rest.split(" ", 3)
        done, last = 0, -1
        for k in range(int(count)):
            command = f"{prefix}{k}{' ' + fields[0] if fields and fields[0] else ''}".encode()
            members = {"enable_bit": k & 31, "enable_addr": self.nslot * 8 + k // 32 * 4}
            try:
                last = self.register(name, command, 0, **members)["write_index"]
            except Refused as e:
                yield f"= regmany: {done} done, then {e}"
                break
            done += 1
        else:
            yield f"| last write_index={last}"
            yield f"= regmany: {done} done"
        self.nslot += (done + 63) // 64 + 1

    def op_unreg(self, rest: str) -> Iterator[str]:
        name, slot, *more = rest.split()
        if len(more) > 1:
            yield NOT_ON_THE_WIRE
            return
        unreg = {"disable_fd": 0, "disable_addr": int(slot) * 8, "disable_bit": int(more[0]) if more else 0}
        try:
            self.data[name].call("DIAG_IOCSUNREG", unreg, fds=(self.memory,))
        except Refused as e:
            yield f"= unreg: {e}"
        else:
            yield f"= unreg: 0 word={self.word(int(slot))}"

    def op_unregall(self, rest: str) -> Iterator[str]:
        name = rest.strip()
        ok = bad = 0
        for entry in self.enabled:
            if entry[0] == name and entry[3]:
                unreg = {"disable_fd": 0, "disable_addr": entry[1] * 8, "disable_bit": entry[2]}
                try:
                    self.data[name].call("DIAG_IOCSUNREG", unreg, fds=(self.memory,))
                    ok += 1
                except Refused:
                    bad += 1
                entry[3] = False
        yield f"= unregall: {ok} ok {bad} failed"

    def op_del(self, rest: str) -> Iterator[str]:
        name, _, text = rest.partition(" ")
        try:
            self.data[name].call("DIAG_IOCSDEL", decode(text))
        except Refused as e:
            yield f"= del: {e}"
        else:
            yield "= del: 0"

    def op_setslot(self, rest: str) -> Iterator[str]:
        slot, value = rest.split()
        self.words[int(slot) * 8 : int(slot) * 8 + 8] = int(value, 0).to_bytes(8, "little")
        yield "= ok"

    def op_slots(self, rest: str) -> Iterator[str]:
        for slot in range(min(self.nslot, 64)):
            yield f"| slot {slot} = {self.word(slot)}"
        yield "= ok"

    def op_state(self, rest: str) -> Iterator[str]:
        name, event = rest.split()
        found = self.find(name, event[1:])
        yield f"= enable_slot={found[3]} word={self.word(found[3])}" if found else "= NOEVENT"

    def send(self, name: str, record: bytes) -> int:
        """One acknowledged record; None where the wire's own limit is below the kernel's."""
        return int(self.data[name].call("write", record))

    def write(self, rest: str, label: str, quiet: bool) -> Iterator[str]:
        name, index, *fields = rest.split(" ", 2)
        if index.startswith("@"):
            found = self.find(name, index[1:])
            if found is None:
                yield f"= NOEVENT {index}"
                return
            number = found[2]
        else:
            number = int(index, 0)
        record = (number & 0xFFFFFFFF).to_bytes(4, "little") + payload(fields[0] if fields else "")
        if len(record) > MAX_DATA_OBJECT - 64:
            yield NOT_ON_THE_WIRE
            return
        shown = record[:4].hex() + "," + record[4:].hex() if len(record) <= 512 else f"({len(record)})"
        prefix = f"~ {name}" if quiet else "="
        try:
            yield f"{prefix} {self.send(name, record)} bytes={shown}"
        except Refused as e:
            yield f"{prefix} {label}: {e} bytes={shown}"

    def op_write(self, rest: str, quiet: bool = False) -> Iterator[str]:
        yield from self.write(rest, "writev", quiet)

    def op_write1(self, rest: str, quiet: bool = False) -> Iterator[str]:
        yield from self.write(rest, "write", quiet)

    def op_pwrite(self, rest: str, quiet: bool = False) -> Iterator[str]:
        name, position, fields = rest.split(" ", 2)
        if int(position):
            yield NOT_ON_THE_WIRE
            return
        yield from self.write(f"{name} {fields}", "pwrite", quiet)

    def raw(self, name: str, record: bytes, label: str, suffix: str = "") -> Iterator[str]:
        try:
            yield f"= {label}: {self.send(name, record)}{suffix}"
        except Refused as e:
            yield f"= {label}: {e}"

    def op_rawwrite(self, rest: str) -> Iterator[str]:
        name, _, fields = rest.partition(" ")
        yield from self.raw(name, payload(fields), "write")

    def op_wv(self, rest: str) -> Iterator[str]:
        name, _, text = rest.partition(" ")
        pieces = [payload(piece) for piece in text.split("|")]
        if not any(pieces):
            yield NOT_ON_THE_WIRE
            return
        yield from self.raw(name, b"".join(pieces), "writev", f" of {len(pieces)} pieces")

    def op_burst(self, rest: str) -> Iterator[str]:
        name, event, count = rest.split()
        found = self.find(name, event[1:])
        ok = bad = 0
        for k in range(int(count)):
            record = (found[2] if found else 0).to_bytes(4, "little") + k.to_bytes(4, "little") + bytes(4)
            try:
                ok += self.send(name, record) == 12
            except Refused:
                bad += 1
        yield f"= burst: {ok} ok {bad} failed"

    def op_writebad(self, rest: str) -> Iterator[str]:
        # The readable part of it is an ordinary record and is written, so that later operations find the same
        # state.
        name, event, good, bad = rest.split()
        found = self.find(name, event[1:])
        if found and int(bad) == 0:
            with contextlib.suppress(Refused):
                self.send(name, found[2].to_bytes(4, "little") + b"\1" * int(good))
        yield NOT_ON_THE_WIRE

    def read_all(self, path: str, flags: int) -> tuple[bytes, Refused | None]:
        handle = self.tree.call("open", path, flags)
        data = bytearray()
        failed = None
        try:
            while piece := self.tree.call("read", handle, 65536):
                data += piece
        except Refused as e:
            failed = e
        self.tree.call("close", handle)
        return bytes(data), failed

    def cat(self, path: str, flags: int) -> Iterator[str]:
        try:
            data, failed = self.read_all(path, flags)
        except Refused as e:
            yield f"= open: {e}"
            return
        yield from show(data)
        yield f"= read: {failed} after {len(data)} bytes" if failed else f"= eof {len(data)} bytes"

    def op_cat(self, rest: str) -> Iterator[str]:
        yield from self.cat(rest.split()[0], os.O_RDONLY)

    def op_pipe(self, rest: str) -> Iterator[str]:
        yield from self.cat((rest.split() or ["trace_pipe"])[0], os.O_RDONLY | os.O_NONBLOCK)

    def put(self, rest: str, flags: int, newline: bool) -> Iterator[str]:
        path, _, text = rest.partition(" ")
        data = decode(text) + (b"\n" if newline else b"")
        try:
            handle = self.tree.call("open", path, os.O_WRONLY | os.O_CREAT | flags)
        except Refused as e:
            yield f"= open: {e}"
            return
        try:
            taken = self.tree.call("write", handle, data)
            yield f"= write: {taken}" + (f" (short, of {len(data)})" if taken != len(data) else "")
        except Refused as e:
            yield f"= write: {e}"
        self.tree.call("close", handle)

    def op_w(self, rest: str) -> Iterator[str]:
        yield from self.put(rest, os.O_TRUNC, True)

    def op_wa(self, rest: str) -> Iterator[str]:
        yield from self.put(rest, os.O_APPEND, True)

    def op_wn(self, rest: str) -> Iterator[str]:
        yield from self.put(rest, os.O_TRUNC, False)

    def op_wan(self, rest: str) -> Iterator[str]:
        yield from self.put(rest, os.O_APPEND, False)

    def op_fwrite(self, rest: str) -> Iterator[str]:
        name, _, text = rest.partition(" ")
        data = decode(text)
        try:
            taken = (
                self.send(name, data)
                if name in self.data
                else self.tree.call("write", self.files[name], data)
            )
            yield f"= write: {taken} of {len(data)}"
        except Refused as e:
            yield f"= write: {e}"

    def op_fread(self, rest: str, dump: bool = False) -> Iterator[str]:
        name, *count = rest.split()
        if name in self.data:
            yield NOT_ON_THE_WIRE
            return
        try:
            data = self.tree.call("read", self.files[name], int(count[0]) if count else 65536)
        except Refused as e:
            yield f"= read: {e}"
            return
        yield from hexdump(data) if dump else show(data)
        yield f"= read: {len(data)}"

    def op_fhex(self, rest: str) -> Iterator[str]:
        yield from self.op_fread(rest, dump=True)

    def op_hex(self, rest: str) -> Iterator[str]:
        path, *count = rest.split()
        try:
            handle = self.tree.call("open", path, os.O_RDONLY | os.O_NONBLOCK)
        except Refused as e:
            yield f"= open: {e}"
            return
        try:
            data = self.tree.call("read", handle, int(count[0]) if count else PAGE)
            yield from hexdump(data)
            yield f"= read: {len(data)}"
        except Refused as e:
            yield f"= read: {e}"
        self.tree.call("close", handle)

    def op_ls(self, rest: str) -> Iterator[str]:
        path = rest.strip()
        try:
            entries = self.tree.call("list_dir", path)
        except Refused as e:
            yield f"= opendir: {e}"
            return
        for name, kind in sorted(entries):
            mode = self.tree.call("stat", f"{path}/{name}")["mode"] & 0o7777
            type_bits, slash = (0o040000, "/") if kind == "d" else (0o100000, "")
            yield f"| {type_bits | mode:06o} 0:0 {name}{slash}"
        yield "= ok"

    def directory_op(self, method: str, rest: str) -> Iterator[str]:
        try:
            self.tree.call(method, rest.strip())
            yield f"= {method}: ok"
        except Refused as e:
            yield f"= {method}: {e}"

    def op_mkdir(self, rest: str) -> Iterator[str]:
        yield from self.directory_op("mkdir", rest)

    def op_rmdir(self, rest: str) -> Iterator[str]:
        yield from self.directory_op("rmdir", rest)

    def op_perf(self, rest: str) -> Iterator[str]:
        name, op, *args = rest.split(" ", 2)
        if op == "open":
            event = args[0].split()[0]
            try:
                number = int(self.tree.call("read_file", f"events/user_events/{event}/id"))
                attr = {"config": number, "sample_period": 1, "pid": -1, "cpu": -1, "data_pages": 8}
                got = self.tree.call("perf_event_open", attr)
            except Refused as e:
                yield f"= perf_event_open: {e}"
                return
            fd = self.tree.fds.pop()
            self.perfs[name] = (got["handle"], mmap.mmap(fd, 9 * PAGE), 0)
            os.close(fd)
            yield "= perf_event_open: ok mmap ok"
            return
        if name not in self.perfs:
            yield "= NOPERF"
            return
        handle, ring, tail = self.perfs[name]
        try:
            if op == "close":
                self.tree.call("close", handle)
                ring.close()
                del self.perfs[name]
                yield "= ok"
            elif op in ("enable", "disable"):
                self.tree.call("perf_ioctl", handle, op.upper(), 0)
                yield "= ok"
            elif op == "filter":
                self.tree.call("perf_ioctl", handle, "SET_FILTER", decode(args[0] if args else ""))
                yield "= ok"
            elif op == "read":
                count = self.tree.call("read", handle, 8)
                yield f"= read {len(count)} count={int.from_bytes(count[:8], 'little')}"
            elif op == "dump":
                head = int.from_bytes(ring[1024:1032], "little")
                records = 0
                while tail < head:
                    start = [ring[PAGE + (tail + i) % (8 * PAGE)] for i in range(8)]
                    size = int.from_bytes(bytes(start[6:8]), "little")
                    yield f"| record type={int.from_bytes(bytes(start[:4]), 'little')} size={size}"
                    tail += size
                    records += 1
                ring[1032:1040] = tail.to_bytes(8, "little")
                self.perfs[name] = (handle, ring, tail)
                yield f"= {records} records"
        except Refused as e:
            yield f"= {'SET_FILTER' if op == 'filter' else op}: {e}"

    def op_sh(self, rest: str) -> Iterator[str]:
        """A shell command, after copying every file of the tree that it names into a folder."""
        with tempfile.TemporaryDirectory(prefix="utracefs-play-") as folder:
            for path in set(re.findall(re.escape(TRACING) + r"([^\s;|&)]+)", rest)):
                copy = os.path.join(folder, path)
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                with contextlib.suppress(Refused), open(copy, "wb") as f:
                    f.write(self.read_all(path, os.O_RDONLY | os.O_NONBLOCK)[0])
            done = subprocess.run(
                ["/bin/sh", "-c", rest.replace(TRACING, shlex.quote(folder) + "/")],
                stdout=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},  # else grep omits lines that are not UTF-8
                check=False,
            )
        yield from show(done.stdout)
        yield f"= exit {done.returncode}"

    def op_comm(self, rest: str) -> Iterator[str]:
        ctypes.CDLL(None).prctl(15, rest.strip().encode()[:15])
        yield "= ok"

    def op_sleep(self, rest: str) -> Iterator[str]:
        time.sleep(int(rest) / 10_000)  # the kernel's workers needed longer
        yield "= ok"

    def op_pid(self, rest: str) -> Iterator[str]:
        yield f"= pid {os.getpid()}"

    def nothing(self, rest: str) -> Iterator[str]:
        yield NOT_ON_THE_WIRE

    op_cpu = op_euid = op_mmap = op_page = op_ioctl = op_lseek = op_pollfd = op_unlink = nothing

    def run(self, lines: list[str]) -> None:
        i = 0
        while i < len(lines):
            line = lines[i]
            i += 1
            if not line or line.startswith("#"):
                print(line)
                continue
            quiet = line.startswith("q ")
            op, _, rest = (line[2:] if quiet else line).partition(" ")
            if not quiet:
                print(f"> {line}")
            if op == "fork":
                depth, end = 1, i
                while depth:
                    depth += {"fork": 1, "endfork": -1}.get(lines[end], 0)
                    end += 1
                sys.stdout.flush()
                pid = os.fork()
                if not pid:
                    self.run(lines[i : end - 1])
                    sys.stdout.flush()
                    os._exit(0)
                status = os.waitpid(pid, 0)[1]
                print(f"> endfork\n= child exit {os.waitstatus_to_exitcode(status)}")
                i = end
                continue
            method = getattr(self, f"op_{op}", None)
            if method is None:
                print(f"= UNKNOWN OP {op}")
                continue
            try:
                for answer in method(rest, quiet=True) if quiet else method(rest):
                    print(answer)
            except KeyError as e:
                print(f"= NOFD {e}")
            sys.stdout.flush()


def main() -> None:
    script, directory = sys.argv[1:3]
    ctypes.CDLL(None).prctl(15, b"drv")
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    with open(script, encoding="utf-8", errors="surrogateescape") as f:
        lines = f.read().split("\n")[:-1]
    Player(directory).run(lines)


if __name__ == "__main__":
    main()
