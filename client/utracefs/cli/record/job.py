"""A recording that is to be made, for each way of making it."""

import os
import sys
from collections.abc import Callable, Sequence

import attrs

import utracefs
from utracefs.cli import Failure
from utracefs.cli.common import exists, tell, tell_absent
from utracefs.cli.event_options import Wanted
from utracefs.cli.instance_option import Place
from utracefs.cli.record.options import LongOptions
from utracefs.cli.record.target import Target
from utracefs.cli.run.recorder import About
from utracefs.cli.run.run_loop import Blocked, Surroundings, run_steps
from utracefs.cli.run.texts import Texts
from utracefs.tree.tracefs import Tracefs

_LOOK_S = 0.5
"""Interval of looking whether the processes of -p have ended."""


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
    ends_with_pids: bool
    """Whether it ends with the last process of -p."""

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

    def until_pids_end(self) -> float | None:
        """Seconds until the next call; None: the processes of -p and their children have ended. The daemon
        drops ended ones from its list, but for the last."""
        pids = self.tree.read_file(self.place.path("set_event_pid")).decode().split()
        return _LOOK_S if any(map(exists, pids)) else None

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
