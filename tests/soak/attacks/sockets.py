"""The fuzzer of the two sockets: random scripts from a seed, and the attacker that runs them.

A script is a list of steps, plain data that follows from the seed alone, whatever the daemon answers. So the
same seed repeats a script, whatever happens meanwhile. A step is (name, arguments):
    connect SLOT            a connection, replacing the slot's previous one
    send SLOT PACKET HOW    HOW: whole, bytes (one by one), halves, repeated N times without reading
    read SLOT SIZE          available bytes, at most SIZE; descriptors are kept
    shut SLOT HOW           shutdown(2)
    leave SLOT              close, perhaps in the middle of a message
    crowd COUNT PACKET      COUNT connections at once; each sends the packet and stays to the end of the round
    pause MS
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import msgpack

from tests.soak.attacks import wire
from tests.soak.attacks.descriptors import HANGING, ORDINARY, Descriptors
from tests.soak.attacks.wire import Packet
from tests.soak.crew import within

Step: TypeAlias = tuple[Any, ...]

STEPS = (
    *("send", "bytes", "halves", "flood", "crowd", "read", "shut", "leave", "pause"),
    *("descriptors", "hang", "itself"),
)
"""Steps that `--without` may leave out: `flood` is many requests whose responses are not read, `descriptors`
are unused ones, among them `hang`, whose last close waits, and `itself`, the connection over which they are
sent."""

_SLOTS = 4
_SOCKETS = {"data": "user_events_data", "tracefs": "tracefs"}


def script(rng: random.Random, port: str, without: frozenset[str] = frozenset()) -> list[Step]:
    """One round against the socket `port` (data, tracefs)."""
    slots = rng.choice([1, 1, 2, _SLOTS])
    steps: list[Step] = [("connect", slot) for slot in range(slots)]
    weights = {
        "send": 50,
        "bytes": 3,
        "halves": 8,
        "flood": 2,
        "crowd": 1,
        "read": 16 if port == "data" else 40,
        "shut": 3,
    }
    weights |= {"leave": 6, "pause": 4}
    names = [name for name in weights if name not in without]
    for name in rng.choices(names, [weights[name] for name in names], k=rng.randrange(5, 60)):
        slot = rng.randrange(slots)
        if name in ("send", "bytes", "halves", "flood"):
            hows: dict[str, str | int] = {"send": "whole", "flood": rng.choice([50, 300, 3000])}
            steps.append(("send", slot, packet(rng, port, without), hows.get(name, name)))
        elif name == "crowd":
            # the tree takes 256 connections in all
            count = rng.choice([5, 20, 120 if port == "data" else 40])
            steps.append(("crowd", count, packet(rng, port, without)))
        elif name == "read":
            steps.append(("read", slot, rng.choice([1, 100, 65536, 65536])))
        elif name == "shut":
            steps.append(("shut", slot, rng.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])))
        elif name == "leave":
            steps += [("leave", slot), ("connect", slot)]
        else:
            steps.append(("pause", rng.choice([1, 5, 20])))
    return steps


def packet(rng: random.Random, port: str, without: frozenset[str]) -> Packet:
    """Some messages; sometimes the last is cut off, sometimes there are descriptors that no request uses."""
    data, fds = b"", list[str]()
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        more, wanted = wire.data_message(rng) if port == "data" else wire.tracefs_message(rng)
        if wanted and data:
            break  # descriptors are sent with the first byte
        data, fds = data + more, fds + wanted
    if rng.random() < 0.04:
        data += wire.framing(rng)
    if rng.random() < 0.05 and "halves" not in without:
        data = data[: rng.randrange(1, len(data) + 1)]
    if rng.random() < 0.08 and "descriptors" not in without:
        kinds = rng.choices(
            ORDINARY if "itself" in without else [*ORDINARY, "itself"],
            k=rng.choice([1, 2, 3, 16, 17, 60, 253]),
        )
        if rng.random() < 0.1 and "hang" not in without:
            kinds[0] = rng.choice(HANGING)
        fds = [*kinds, *fds] if rng.random() < 0.5 else [*fds, *kinds]
    return Packet(data, tuple(fds[:253]))


class Attacker:
    """Runs scripts. Nothing that the daemon does stops it."""

    def __init__(self, directory: str, port: str, fuse: str | None) -> None:
        self.counts: Counter[str] = Counter()
        self._path = os.path.join(directory, _SOCKETS[port])
        self._descriptors = Descriptors(directory, fuse)
        self._slots: dict[int, socket.socket] = {}
        self._unpackers: dict[int, msgpack.Unpacker] = {}
        self._handles: dict[int, list[int]] = {}
        self._staying: list[socket.socket] = []
        self._steps: dict[str, Callable[..., None]] = {
            "connect": self._connect,
            "send": self._send,
            "read": self._read,
            "shut": self._shut,
            "leave": self._leave,
            "crowd": self._crowd,
            "pause": self._pause,
        }

    def round(self, steps: list[Step]) -> None:
        """Run all steps, then close every connection and descriptor."""
        try:
            for name, *arguments in steps:
                self.counts["actions of attackers"] += 1
                with (
                    contextlib.suppress(OSError),
                    within(3.0),
                ):  # refused, closed, timed out: all of that is expected
                    self._steps[name](*arguments)
        finally:
            for slot in list(self._slots):
                self._leave(slot)
            for sock in self._staying:
                sock.close()
            self._staying.clear()
            self._descriptors.close()

    def _new(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(0.25)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        self.counts["connections of attackers"] += 1
        return sock

    def _connect(self, slot: int) -> None:
        self._leave(slot)
        self._slots[slot] = self._new()
        self._unpackers[slot] = msgpack.Unpacker(strict_map_key=False)
        self._handles[slot] = []

    def _leave(self, slot: int) -> None:
        if sock := self._slots.pop(slot, None):
            sock.close()

    def _send(self, slot: int, packet: Packet, how: str | int) -> None:
        sock = self._slots.get(slot)
        if sock is None:
            return
        sock.settimeout(0.05)
        data = self._with_handles(slot, packet.data)
        if isinstance(how, int):
            for _ in range(how):
                sock.sendall(data)
            return
        fds = [sock.fileno() if kind == "itself" else self._descriptors.make(kind) for kind in packet.fds]
        self.counts["descriptors of attackers"] += len(fds)
        if how == "bytes":
            pieces = [data[i : i + 1] for i in range(min(len(data), 300))]
        elif how == "halves":
            middle = len(data) // 2
            pieces = [data[:middle], data[middle:]]
        else:
            pieces = [data]
        for piece in pieces:
            if piece:
                sent = socket.send_fds(sock, [piece], fds)
                sock.sendall(piece[sent:])
                fds = []

    def _read(self, slot: int, size: int) -> None:
        if sock := self._slots.get(slot):
            sock.settimeout(0.02)
            data, fds, _, _ = socket.recv_fds(sock, size, 64)
            self._descriptors.own += fds
            self._learn(slot, data)

    def _learn(self, slot: int, data: bytes) -> None:
        """Handles among the responses; any number may be one."""
        with contextlib.suppress(ValueError, msgpack.UnpackException):
            self._unpackers[slot].feed(data)
            for message in self._unpackers[slot]:
                self.counts["answers to attackers"] += 1
                match message:
                    case [1, _, None, int() as handle] | [1, _, None, {"handle": int() as handle}]:
                        self._handles[slot] = [*self._handles[slot], handle][-wire.HANDLES :]
                    case [1, _, None, _]:
                        pass
                    case [1, *_]:
                        self.counts["refusals to attackers"] += 1

    def _with_handles(self, slot: int, data: bytes) -> bytes:
        for place, handle in enumerate(self._handles.get(slot, ())):
            stand_in = struct.pack(">BI", 0xCE, wire.HANDLE + place)
            data = data.replace(stand_in, struct.pack(">BI", 0xCE, handle & 0xFFFF_FFFF))
        return data

    def _shut(self, slot: int, how: int) -> None:
        if sock := self._slots.get(slot):
            sock.shutdown(how)

    def _crowd(self, count: int, packet: Packet) -> None:
        for _ in range(count):
            sock = self._new()
            self._staying.append(sock)
            sock.settimeout(0.05)
            fds = [self._descriptors.make(kind) for kind in packet.fds[:16] if kind != "itself"]
            self.counts["descriptors of attackers"] += len(fds)
            socket.send_fds(sock, [packet.data], fds)

    def _pause(self, ms: int) -> None:
        time.sleep(ms / 1000)
