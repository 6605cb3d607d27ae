"""Repeat a step while a command runs, or until Ctrl-C; then stop in order.

    while running:
        step()  ──▶ time until the next step
        wait for that long, or for a signal

SIGCHLD and the signals of the table are blocked and taken with sigtimedwait(2), so that they arrive between
two steps and never within one: no code must be safe against KeyboardInterrupt, and si_code gives the sender.

| signal | without a command | with a command |
|---|---|---|
| Ctrl-C in the terminal | end | the command gets it, too; end with the command, at the second one at once |
| kill -INT | end | passed on; the rest as above |
| SIGTERM, others of ENDING | end | passed on; end when the command ends, TERM_GRACE_S at the most |
| SIGUSR2, with `dump` | `dump` is called | the same |

If the command does not end by itself it keeps running, and is named on stderr. So does at once a command that
we may not signal (sudo).
"""

import contextlib
import errno
import functools
import gc
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from utracefs.cli import Failure, error_text
from utracefs.cli.common import tell

TERM_GRACE_S = 5.0

TWICE_S = 0.1
"""A signal that comes again within this time is one request to end: timeout(1) signals its child and then the
group of both."""

NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""Exit statuses of env(1) and the shells."""

_SI_KERNEL = 0x80  # asm-generic/siginfo.h: the terminal's Ctrl-C comes from the kernel
_LONGEST_WAIT_S = 3600.0
ENDING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGXCPU,
)
"""Signals from others or from limits; each would end the process."""


@attrs.frozen
class Surroundings:
    """The environment of a command (traced_command.py)."""

    env: Mapping[str, str] | None = None
    """None: our own."""
    enter: Callable[[], None] = lambda: None
    """Called in the child before it becomes the command."""
    started: Callable[[int], None] = lambda _pid: None
    """Called with its pid, before waiting for it."""
    hint: str = ""
    """Why none of its records may arrive, reported when none did."""


_OURS = Surroundings()


@attrs.frozen
class Blocked:
    """Made by signals_blocked."""

    taken: frozenset[signal.Signals]
    """The signals that run_steps takes."""
    before: frozenset[int]
    """The signal mask until then, which the command gets."""


@contextlib.contextmanager
def signals_blocked(*, alone: bool = False) -> Iterator[Blocked]:
    """Block the signals that run_steps takes; those ignored by our parent (nohup, `&` in a script) stay
    ignored. alone: there will be no command; then SIGINT ends it as it ends perf and trace-cmd, also where it
    was ignored. SIGUSR2 stays blocked until the process ends: a request to dump must not kill a recorder that
    has written everything."""
    if alone and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    taken = frozenset(
        {number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN} | {signal.SIGCHLD}
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    try:
        yield Blocked(taken, frozenset(before))
    finally:
        while signal.sigtimedwait(taken, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before | (taken & {signal.SIGUSR2}))


class Interrupted(BaseException):
    """By a signal, in `interruptible`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within signals_blocked, for work that takes long and that nobody has to wait for: a signal to end
    raises Interrupted. It comes again after the block, for the loop. Signals from before are dropped:
    timeout(1) sends two."""
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        came.append(number)
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, end) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    while signal.sigtimedwait(before, 0) is not None:
        pass
    gc.collect()  # in a __del__ the exception would be swallowed
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
        for again in came:
            signal.raise_signal(again)


def run_steps(
    command: Sequence[str],
    step: Callable[[], float | None],
    *,
    blocked: Blocked,
    surroundings: Surroundings = _OURS,
    duration_s: float | None = None,
    dump: Callable[[], None] | None = None,
) -> int:
    """Run `command` (none: until a signal) and call `step` until it ends; returns the exit status.

    step: returns the seconds until its next call; None: it has finished, which without a command is the end.
    blocked: from signals_blocked. duration_s: the longest time; a command is then sent SIGTERM, and its death
    by that is success. dump: called for each SIGUSR2; its Failure or OSError is reported and ends nothing.

    The status is that of the command, 128 + N when signal N ended it, or came before its start and prevented
    that; 0 without a command. Failure with status 127 or 126 when the command cannot be run.
    """
    prevents = blocked.taken & set(ENDING) - ({signal.SIGUSR2} if dump else set())
    pending: set[int] = signal.sigpending() & prevents
    if command and pending:
        return 128 + min(pending)
    child = _start(command, blocked.before, surroundings) if command else None
    if child is not None and signal.SIGINT in signal.sigpending():
        with contextlib.suppress(PermissionError):
            child.send_signal(signal.SIGINT)  # a Ctrl-C just before the fork
    loop = _Loop(
        child, blocked.taken, math.inf if duration_s is None else time.monotonic() + duration_s, dump
    )
    try:
        while not loop.over():
            seconds = step()
            if seconds is None and child is None:
                break
            loop.wait(math.inf if seconds is None else seconds)
    finally:
        if child is not None and child.poll() is None:
            loop.leave_behind()
    return loop.status()


def _start(
    command: Sequence[str], mask: frozenset[int], surroundings: Surroundings
) -> "subprocess.Popen[bytes]":
    """Start it as exec(3) would: it inherits descriptors, ignored signals and the signal mask. Whether
    SIGPIPE and SIGXFSZ were ignored is unknown, since Python ignores them at its start: Popen resets them."""

    def prepare() -> None:
        """In the child; there are no threads here."""
        surroundings.enter()
        # A Ctrl-C since the fork ends it, as it would the command; Python's handler would raise an exception.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # Our own descriptors are close-on-exec; inherited ones stay open (`<(...)`, make's jobserver).
    start: Any = functools.partial(
        subprocess.Popen, env=surroundings.env, preexec_fn=prepare, close_fds=False
    )
    name = command[0]
    program = None if "/" in name else shutil.which(name, path=(surroundings.env or os.environ).get("PATH"))
    try:
        try:
            child: subprocess.Popen[bytes] = start(command, executable=program)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without `#!`: as execvp(3)
            child = start(["/bin/sh", program or name, *command[1:]])
    except FileNotFoundError:
        raise Failure(name, "command not found", NOT_FOUND) from None
    except OSError as error:
        raise Failure(name, error.strerror or str(error), NOT_EXECUTABLE) from None
    surroundings.started(child.pid)
    return child


@attrs.define(eq=False)
class _Loop:
    _child: "subprocess.Popen[bytes] | None"
    _taken: frozenset[signal.Signals]
    _end: float
    """End of the duration, on time.monotonic."""
    _dump: Callable[[], None] | None
    _grace_end: float = math.inf
    """Deadline of a command after its signal to end."""
    _signal: int = 0
    """The first signal to end."""
    _last_signal: tuple[int, float] = (0, -math.inf)
    """The last one, and when it came."""
    _stop: bool = False
    _timed_out: bool = False
    _left_behind: bool = False

    def over(self) -> bool:
        if self._child is not None:
            return self._child.poll() is not None or self._stop
        return self._stop or bool(self._signal)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, or until that time."""
        due = min(self._end, self._grace_end) - time.monotonic()
        info = signal.sigtimedwait(self._taken, max(0.0, min(seconds, due, _LONGEST_WAIT_S)))
        if os.getpid() == 1:
            self._reap_orphans()
        # If it is stopped, and continued after the timeout, signal_sigtimedwait_impl of CPython 3.11 to 3.13
        # returns uninitialized memory: EINTR, with no time left.
        if info is not None and info.si_signo == signal.SIGUSR2 and self._dump is not None:
            try:
                self._dump()
            except (Failure, OSError) as error:
                tell(error_text(error))
        elif info is not None and info.si_signo in self._taken and info.si_signo != signal.SIGCHLD:
            self._asked_to_end(signal.Signals(info.si_signo), from_terminal=info.si_code == _SI_KERNEL)
        now = time.monotonic()
        if now >= self._grace_end:
            self._stop = True
        elif now >= self._end:
            self._end = math.inf
            self._timed_out = True
            if self._child is None:
                self._stop = True
            else:
                self._asked_to_end(signal.SIGTERM, from_terminal=False)

    def _reap_orphans(self) -> None:
        """As the first process of a container we are the parent of processes whose parent has ended. Popen
        needs the status of the command; that of a daemon which we started is not used."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if self._child is not None and ended.si_pid == self._child.pid:
                    break
                os.waitpid(ended.si_pid, 0)

    def _asked_to_end(self, number: signal.Signals, *, from_terminal: bool) -> None:
        last, came = self._last_signal
        now = time.monotonic()
        if number == last and now < came + TWICE_S:
            return
        self._last_signal = number, now
        if self._child is not None and not from_terminal:
            try:
                self._child.send_signal(number)
            except ProcessLookupError:
                pass
            except PermissionError:
                self._stop = True
        if number != signal.SIGINT:
            self._grace_end = min(self._grace_end, time.monotonic() + TERM_GRACE_S)
        elif self._signal:
            self._stop = True
        self._signal = self._signal or number

    def leave_behind(self) -> None:
        """The command outlives the loop."""
        assert self._child is not None
        self._left_behind = True
        tell(f"the command continues unobserved (pid {self._child.pid})")

    def status(self) -> int:
        if self._child is None:
            return 0
        if self._left_behind:
            return 128 + self._signal
        returncode: int = self._child.returncode
        if self._timed_out and returncode == -signal.SIGTERM:
            return 0  # the requested end
        return returncode if returncode >= 0 else 128 - returncode
