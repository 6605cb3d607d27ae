"""Steps of a command that reads from the daemon, over restarts of the daemon.

step ── the daemon ends ──▶ waiting ── the next daemon has the instance ──▶ come_back, step
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from utracefs.cli.common import tell
from utracefs.cli.event_options import CHECK_S, WantedEvents
from utracefs.cli.instance_option import Place
from utracefs.cli.run.own_instance import hold
from utracefs.tree.tracefs import Tracefs

WAIT_S: Final = 0.5
"""Time between attempts to connect to the next daemon."""


class Stepping(Protocol):
    def step(self) -> float | None:
        """One step; returns the seconds until the next, None: it was the last."""

    def come_back(self) -> None:
        """Continue with the next daemon, to which the tree is connected."""


R = TypeVar("R", bound=Stepping)


class Watch(Generic[R]):
    """Run steps of a recorder while the daemon runs; the command continues when the daemon ends."""

    def __init__(self, recorder: R, asked: WantedEvents, come_back: Callable[[], bool] | None = None) -> None:
        """come_back: calls `come_back` below when the daemon has ended; None: the recorder ends then."""
        self.recorder = recorder
        self._asked = asked
        self._come_back = come_back
        self._is_waiting = False
        self.error: OSError | None = None
        self.after_step: list[Callable[[], float | None]] = []
        """Each also returns the seconds until its next call; None: that was the last step."""

    def run(self, run: Callable[[Callable[[], float | None]], int]) -> int:
        """`run` of the steps, which returns the status, and a last step: the daemon may have ended since the
        last one, and the next one may be there."""
        status = run(self.step)
        self.step()
        return status

    def step(self) -> float | None:
        if self.error is None:
            with self.until_the_daemon_goes():
                self._asked.check()
                waits = [CHECK_S] if self._asked.has_settings else []
                for step in (self.recorder.step, *self.after_step):
                    if (seconds := step()) is None:
                        return None
                    waits.append(seconds)
                return min(waits)
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
        except BrokenPipeError:
            raise  # of our own output: that of a connection is ConnectionResetError (Rpc)
        except (ConnectionError, TimeoutError) as error:
            self.error = self.error or error


def come_back(tree: Tracefs, *places: Place) -> bool:
    """Connect to the next daemon, and hold these own instances there; False: there is none yet.
    FileNotFoundError: the daemon does not have these instances."""
    try:
        tree.connect_again()
    except (FileNotFoundError, ConnectionError, TimeoutError, BlockingIOError):
        return False
    try:
        for place in places:
            hold(tree, place)
    except FileNotFoundError:
        tree.close()
        raise
    return True
