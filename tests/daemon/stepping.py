"""A child that runs one instruction at a time, to judge a kill between any two."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

PTRACE_TRACEME, PTRACE_SINGLESTEP = 0, 9

Seen = TypeVar("Seen")


@contextlib.contextmanager
def stepping(work: Callable[[], object], look: Callable[[], Seen]) -> Iterator[Iterator[Seen | None]]:
    """Run `work` that way: the result of `look` after each instruction, None if unchanged. The child does not
    outlive the block."""
    stepper = Stepper(work)
    try:
        yield _steps(stepper, look)
    finally:
        stepper.end()


def _steps(stepper: Stepper, look: Callable[[], Seen]) -> Iterator[Seen | None]:
    before: Seen | None = None
    going = True
    while going:
        going = stepper.step()
        now = look()
        yield now if now != before else None
        before = now


class Stepper:
    """A child that runs `work`, single-stepped from its start to its end."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long
        self.pid = os.fork()
        if not self.pid:
            try:
                if self.libc.ptrace(PTRACE_TRACEME, 0, None, None):
                    os._exit(77)
                os.kill(os.getpid(), signal.SIGSTOP)
                work()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSTOPPED(status):
            pytest.skip("ptrace(2) is forbidden here")

    def step(self) -> bool:
        """One instruction; False when the work is done."""
        if self.libc.ptrace(PTRACE_SINGLESTEP, self.pid, None, None):
            raise OSError(ctypes.get_errno(), "PTRACE_SINGLESTEP")
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSTOPPED(status):
            assert os.WSTOPSIG(status) == signal.SIGTRAP
            return True
        assert os.waitstatus_to_exitcode(status) == 0
        self.pid = 0
        return False

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
