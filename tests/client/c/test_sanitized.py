"""The same programs under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.c.building import sanitized
from tests.client.c.conftest import Run
from tests.client.c.programs import started
from tests.client.c.test_emit import WAYS, of_way

pytestmark = pytest.mark.usefixtures("events_on")

SUPPRESSED = """
# The status page is mapped over zeros while programs look at it: that is how events go on and off.
race:move_all
race:unmap_status
# A descriptor that the program has closed is opened anew while others ask whether it is ours.
race:ut_bell_open
"""


@WAYS
@pytest.mark.parametrize(
    "scenario",
    [
        ("threads", 3, 5000),
        ("forks", 10),
        ("fork-threads", 10),
        ("signals", 20_000),
        ("closefrom", 0, 200),
        ("dynamic", "c_dynamic u32 a; __rel_loc char[] s"),
        ("closed", 3000),
    ],
    ids=lambda scenario: scenario[0],
)
def test_addresses_and_undefined_behaviour(run: Run, scenario: tuple[object, ...], way: str) -> None:
    """(Without the cancelled thread: the sanitizer's own end of a thread is a fault to it.)"""
    run("emitting", *scenario, folder=sanitized("emitting").parents[1], **of_way(way))


@WAYS
@pytest.mark.parametrize(
    "scenario",
    [("threads", 3, 5000), ("forks", 10), ("signals", 20_000), ("closefrom", 0, 200), ("cancel",)],
    ids=lambda scenario: scenario[0],
)
def test_races(run: Run, scenario: tuple[object, ...], way: str, tmp_path: Path) -> None:
    """(Without die_after_fork=0 the sanitizer ends a forked child that starts a thread. It must remember far
    back, or it cannot name the function that is suppressed. To find that name it changes errno, in a signal
    handler, too, and reports that: elsewhere the program looks at errno itself.)"""
    (tmp_path / "suppressed").write_text(SUPPRESSED)
    options = f"die_after_fork=0:history_size=7:report_signal_unsafe=0:suppressions={tmp_path / 'suppressed'}"
    run(
        "emitting",
        *scenario,
        folder=sanitized("emitting", "thread").parents[1],
        TSAN_OPTIONS=options,
        **of_way(way),
    )


@WAYS
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_a_binding(directory: Path, way: str, sanitize: str, tmp_path: Path) -> None:
    """Sessions and events come and go while the thread does."""
    (tmp_path / "suppressed").write_text(SUPPRESSED)
    options = f"history_size=7:suppressions={tmp_path / 'suppressed'}"
    path = sanitized("binding", sanitize)
    with started(path, **of_way(way), TSAN_OPTIONS=options) as program:
        for turn in range(1, 5):
            session = program.number(f"session {directory} 65536")
            event = program.number(f"attach {session} c_count u32 i")
            assert program.number(f"emit {event} 0 100") == 100
            assert program.number("pause") == 0
            assert program.number(f"emit {event} 100 100") == 100
            program.number("resume")
            assert program.number(f"flush {session} 20000") == 0
            if turn % 2:
                program.number(f"detach {event}")
                program.number(f"free {session}")
        assert program.number("end") == 0
