"""Steps over restarts of the daemon."""

from collections.abc import Callable

import pytest

from utracefs.cli.run.watch import WAIT_S, Watch


class Asked:
    has_settings = False

    def check(self) -> None:
        pass


class Steps:
    """The seconds that each step returns, or its error."""

    def __init__(self, *outcomes: float | Exception | None) -> None:
        self._outcomes = iter(outcomes)

    def step(self) -> float | None:
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def come_back(self) -> None:
        pass


def test_steps() -> None:
    watch = Watch(Steps(0.5, 0.5, None), Asked())  # type: ignore[arg-type]
    assert watch.step() == 0.5
    watch.after_step.append(lambda: 0.2)
    assert watch.step() == 0.2
    assert watch.step() is None and watch.error is None


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError()])
def test_the_daemon_has_gone(error: OSError) -> None:
    watch = Watch(Steps(error), Asked())  # type: ignore[arg-type]
    assert watch.step() is None and watch.error is error
    assert watch.step() is None


def test_the_next_daemon() -> None:
    """None yet, one that ends at once, one that stays; one without the instance is the end."""
    outcomes: list[bool | OSError] = [False, ConnectionResetError(), True, FileNotFoundError()]

    def come_back() -> bool:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    steps = Steps(ConnectionResetError(), 0.25, TimeoutError())
    watch = Watch(steps, Asked(), come_back)  # type: ignore[arg-type]
    assert [watch.step() for _ in range(3)] == [WAIT_S] * 3 and watch.error is None
    assert watch.step() == 0.25
    assert watch.step() is None and isinstance(watch.error, TimeoutError)
    assert watch.step() is None and outcomes == []


@pytest.mark.parametrize("found", [[False, True], [True]])
def test_the_end_finds_the_next_daemon(found: list[bool]) -> None:
    """It ends just after the restart, which it may not have seen."""

    def run(step: Callable[[], float | None]) -> int:
        for _ in found[1:]:
            step()
        return 7

    watch = Watch(Steps(ConnectionResetError()), Asked(), lambda: found.pop(0))  # type: ignore[arg-type]
    assert watch.run(run) == 7
    assert watch.error is None and found == []


@pytest.mark.parametrize("error", [PermissionError(), BrokenPipeError()])
def test_other_errors_pass(error: OSError) -> None:
    """A closed pipe is that of the output."""
    with pytest.raises(type(error)):
        Watch(Steps(error), Asked(), lambda: True).step()  # type: ignore[arg-type]
