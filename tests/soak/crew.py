"""Processes of a run: attackers and honest programs, each of a user of its own where that is possible.

They are forked, so they need no files that other users could not read. The last action of each is in shared
memory that outlives it, for the report.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator

import attrs

FIRST_UID = 61_001
"""Users not used for anything else on a machine."""

_LOG_BYTES = 1 << 18
_STOP_BOUND_S = 60.0
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """TimeoutError in a call that blocks for longer: an attacker may block himself. Not in threads."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _timed_out(number: int, frame: object) -> None:
    raise TimeoutError


class Notes:
    """Reports of one member, in shared memory: numbers by name, and the text of its present action."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _LOG_BYTES)
        self.numbers = memoryview(self._memory)[:256].cast("Q")
        """32 numbers of the member's own; [0] is 1 when it shall stop."""

    @property
    def stopped(self) -> bool:
        return bool(self.numbers[0])

    def stop(self) -> None:
        self.numbers[0] = 1

    def write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")[-(_LOG_BYTES - 264) :]
        self._memory[264 : 264 + len(data)] = data
        self._memory[256:264] = struct.pack("<Q", len(data))

    def read(self) -> str:
        (length,) = struct.unpack("<Q", self._memory[256:264])
        return self._memory[264 : 264 + length].decode(errors="replace")


Job = Callable[[Notes], Counter[str]]


@attrs.define
class Member:
    """One process."""

    name: str
    pid: int
    notes: Notes
    results: int
    """Reads its counts when it ends."""

    status: int | None = None
    """As of waitpid(2); None while it lives."""

    def signal(self, number: int) -> None:
        if self.status is None:
            os.kill(self.pid, number)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        if not self.poll():
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitpid(self.pid, 0)[1]


class Crew:
    """All members of a run; `close` ends the rest."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._uids = iter(range(FIRST_UID, FIRST_UID + 4000))

    def next_uid(self) -> int | None:
        """A user for the next attacker; None: choosing is not permitted."""
        return next(self._uids) if os.getuid() == 0 else None

    def add(self, name: str, job: Job, uid: int | None = None) -> Member:
        """A new process that does `job` until its notes say stop."""
        notes = Notes()
        results, results_w = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _be(job, notes, uid, results_w)
        os.close(results_w)
        member = Member(name, pid, notes, results)
        self.members.append(member)
        return member

    def context(self) -> str:
        """The last action of each member."""
        return "\n".join(f"{member.name}: {text}" for member in self.members if (text := member.notes.read()))

    def must_be_well(self) -> None:
        """RuntimeError when one ended by an exception; it has printed a traceback."""
        for member in self.members:
            if member.poll() and member.status not in (0, signal.SIGKILL):
                raise RuntimeError(f"{member.name} failed, status {member.status}\n{member.notes.read()}")

    def stop(self) -> tuple[Counter[str], list[str]]:
        """Stop all and wait; returns the sum of their counts, and the members that ended by an exception."""
        for member in self.members:
            member.signal(signal.SIGCONT)
            member.notes.stop()
        deadline = time.monotonic() + _STOP_BOUND_S
        while time.monotonic() < deadline and sum(member.poll() for member in self.members) < len(
            self.members
        ):
            time.sleep(0.01)
        counts: Counter[str] = Counter()
        bad = []
        for member in self.members:
            ended = member.poll()
            member.kill()
            with open(member.results, "rb") as file:
                text = file.read()
            if text:
                counts.update(json.loads(text))
            elif member.status != signal.SIGKILL or not ended:
                bad.append(f"{member.name}: status {member.status}, ended by itself: {ended}")
        self.members.clear()
        return counts, bad

    def close(self) -> None:
        for member in self.members:
            member.kill()
            os.close(member.results)
        self.members.clear()


def _be(job: Job, notes: Notes, uid: int | None, results: int) -> None:
    """The child: never returns."""
    status = 1
    try:
        gc.freeze()
        signal.signal(signal.SIGALRM, _timed_out)
        os.closerange(3, results)  # also connections to the daemon
        os.closerange(results + 1, 1 << 16)
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        counts = job(notes)
        os.write(results, json.dumps(counts).encode())
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
