"""The world's /dev/shm: the calls of `machine/disk`, of which any may fail, or be the last before a kill."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from utracefsd.machine import disk


class Killed(BaseException):
    """The daemon was killed in the middle of a call. No handler of the daemon's runs in a dead process: each
    further call of the port raises it again."""


KILL, TORN, FAIL = "kill", "torn", "fail"
"""Killed before the call; killed after half of it; the call fails with one of ERRORS."""
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE)


class Disk:
    """`plan` says what happens; `reached` counts what did."""

    def __init__(self, reached: Counter[str]) -> None:
        self.reached = reached
        self.dead = False
        self.full = False
        self._left = 0
        self._fault = ""
        self._errno = errno.ENOSPC
        self._in_record = False

    def plan(self, fault: str, after: int, number: int = errno.ENOSPC) -> None:
        """The call behind `after` more ones has the fault; "": none any more. number: the errno of FAIL."""
        self._fault, self._left, self._errno = fault, after, number

    @property
    def planned(self) -> bool:
        return bool(self._fault)

    @property
    def may_refuse(self) -> bool:
        """A call may fail."""
        return self.full or self._fault == FAIL

    def revive(self) -> None:
        """The next daemon runs; a planned fault waits for it."""
        self.dead = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        real = {name: getattr(disk, name) for name in disk.__all__}
        for name, call in real.items():
            setattr(disk, name, self._wrap(name, call))
        try:
            yield
        finally:
            for name, call in real.items():
                setattr(disk, name, call)

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def carry_out(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Killed(name)
            if name in ("open", "posix_fallocate"):
                self._in_record = _takes_memory(name, args)
            elif name != "unlink":
                self._in_record = False
            if self.full and name == "posix_fallocate":
                self.reached["disk full"] += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._fault and (self._fault == FAIL or not self._in_record):
                if self._left:
                    self._left -= 1
                else:
                    return self._do_fault(name, call, *args, **kwargs)
            return call(*args, **kwargs)

        return carry_out

    def _do_fault(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        fault = self._fault
        if fault == FAIL:
            if not _needs_room(name, args):
                return call(*args, **kwargs)  # the next one that does
            self._fault = ""
            number = self._errno
            if number == errno.EMFILE and name not in ("open", "memfd_create"):
                number = errno.ENOSPC
            self.reached[f"fail {name}"] += 1
            self.reached[f"fail errno {number}"] += 1
            raise OSError(number, os.strerror(number))
        self._fault, self.dead = "", True
        self.reached[f"{fault} {name}"] += 1
        if fault == TORN and name == "pwrite" and len(args[1]) > 8:
            call(args[0], args[1][: len(args[1]) // 2], *args[2:])
        elif fault == TORN and name == "rmtree":
            _half_removed(args[0])
        elif fault == TORN:
            result = call(*args, **kwargs)  # killed between this call and what follows
            if name in ("open", "memfd_create"):
                os.close(result)
        raise Killed(name)


def _needs_room(name: str, args: tuple[Any, ...]) -> bool:
    if name == "open":
        return bool(args[1] & os.O_CREAT)
    if name == "pwrite":
        return len(args[1]) > 8  # the word of the log has its room
    return name in ("posix_fallocate", "mkdir", "memfd_create", "ftruncate")


def _takes_memory(name: str, args: tuple[Any, ...]) -> bool:
    """A histogram takes its memory with its first record, in compiled code that no exception ends, and leaves
    its file if there is none. (Tests of the journal kill there, at each instruction.)"""
    if name == "posix_fallocate":
        return "/hist." in os.readlink(f"/proc/self/fd/{args[0]}")
    return name == "open" and "/hist." in str(args[0]) and not args[1] & os.O_CREAT


def _half_removed(path: str | os.PathLike[str]) -> None:
    for name in sorted(os.listdir(path))[::2]:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, name))
