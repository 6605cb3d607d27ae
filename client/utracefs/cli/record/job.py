"""A recording that is to be made, for each way of making it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

import attrs

import utracefs
from utracefs.cli import Failure
from utracefs.cli.common import tell, tell_absent
from utracefs.cli.event_options import CHECK_S, Wanted, WantedEvents
from utracefs.cli.instance_option import Place
from utracefs.cli.record.options import LongOptions
from utracefs.cli.record.target import Target
from utracefs.cli.run.own_instance import hold
from utracefs.cli.run.recorder import About
from utracefs.cli.run.run_loop import Blocked, Surroundings, run_steps
from utracefs.cli.run.texts import Texts
from utracefs.tree.tracefs import Tracefs

WAIT_S: Final = 0.5
"""Time between attempts to connect to the next daemon."""


@attrs.frozen(kw_only=True)
class Job:
    """Options of the command line, the daemon, and the instance."""

    tree: Tracefs
    place: Place
    target: Target
    wanted: tuple[Wanted, ...]
    long: LongOptions
    wall_clock: bool
    command: Sequence[str]
    duration_s: float | None
    blocked: Blocked
    surroundings: Surroundings
    returns: bool
    """Whether it continues with the next daemon."""

    def about(self, texts: Texts) -> About:
        """Failure if the clock has no wall-clock times."""
        if self.wall_clock and not texts.origin.clocks:
            text = f"{texts.clock} does not tell times; --wall-clock needs mono, boot, tai or mono_raw"
            raise Failure("trace_clock", text)
        uname = os.uname()
        return About(
            uname=f"{uname.sysname} {uname.nodename} {uname.release} {uname.machine}",
            version=f"utracefs {utracefs.__version__}",
            wall_clock=self.wall_clock,
        )

    def tell_that_it_runs(self) -> None:
        """Without a command, in a terminal."""
        if not self.command and sys.stderr.isatty():
            end = "Ctrl-C ends it" if self.duration_s is None else f"for {self.duration_s:g} s"
            tell(f"recording into {self.target.output}; {end}")
            tell_absent(self.tree, [one.pattern for one in self.wanted], "yet; waiting for it")

    def run(self, step: Callable[[], float | None], dump: Callable[[], None] | None) -> int:
        """Run until the end; returns the status. dump: at SIGUSR2."""
        return run_steps(
            self.command,
            step,
            blocked=self.blocked,
            surroundings=self.surroundings,
            duration_s=self.duration_s,
            dump=dump,
        )

    def come_back(self, more: Sequence[Place] = ()) -> bool:
        """Connect to the next daemon; False: there is none yet. more: instances besides `place`.
        FileNotFoundError: the daemon does not have these instances."""
        try:
            self.tree.connect_again()
        except (FileNotFoundError, ConnectionError, TimeoutError, BlockingIOError):
            return False
        try:
            for place in (self.place, *more):
                hold(self.tree, place)
        except FileNotFoundError:
            self.tree.close()
            raise
        return True


class Stepping(Protocol):
    def step(self) -> float:
        """One step; returns the seconds until the next."""

    def come_back(self) -> None:
        """Continue with the next daemon, to which the tree is connected."""


R = TypeVar("R", bound=Stepping)


class Watch(Generic[R]):
    """Run steps of a recorder while the daemon runs; the command continues when the daemon ends."""

    def __init__(self, recorder: R, asked: WantedEvents, come_back: Callable[[], bool] | None = None) -> None:
        """come_back: `Job.come_back`, called when the daemon has ended; None: the recorder ends then."""
        self.recorder = recorder
        self._asked = asked
        self._come_back = come_back
        self._is_waiting = False
        self.error: OSError | None = None
        self.after_step: Callable[[], float] | None = None
        """Also returns the seconds until its next call."""

    def run(self, job: Job, dump: Callable[[], None] | None) -> int:
        """`run` of the job, and a last step: the daemon may have ended since the last one, and the next one
        may be there."""
        status = job.run(self.step, dump)
        self.step()
        return status

    def step(self) -> float | None:
        if self.error is None:
            with self.until_the_daemon_goes():
                self._asked.check()
                seconds = self.recorder.step()
                if self.after_step is not None:
                    seconds = min(seconds, self.after_step())
                return min(seconds, CHECK_S) if self._asked.has_settings else seconds
        if self._come_back is None:
            return None
        assert self.error is not None
        if not self._is_waiting:
            self._is_waiting = True
            tell(f"{self.error.filename}: {self.error.strerror}; waiting for the next")
        try:
            with self.until_the_daemon_goes():
                if self._come_back():
                    self.recorder.come_back()
                    self.error, self._is_waiting = None, False
        except FileNotFoundError as error:
            tell(f"{error.filename}: the next daemon does not have it")
            self._come_back = None
            return None
        return WAIT_S

    @contextlib.contextmanager
    def until_the_daemon_goes(self) -> Iterator[None]:
        """Suppresses the loss of the connection in its block; `error` has it afterwards."""
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            self.error = self.error or error
