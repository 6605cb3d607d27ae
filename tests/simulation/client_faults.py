"""Faults of client and daemon to be found in the clients' world: `faults.py` tells more.

python -m tests.simulation.client_faults [NAME...]      how long each takes to be found
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.client.c.building import ROOT, SOURCE, build
from tests.simulation.clients import Host, steps_of, world
from tests.simulation.found import FOUND_BY_CLIENTS
from tests.simulation.simulate import STEPS, Outcome, named, play
from utracefsd.intake.rings import Rings, _Owned

OF_THE_CLIENT = {
    "records_are_left_in_the_ring_of_the_last_daemon": (
        "connection/connection.c",
        "if (s->ring && has_good_ring(s))\n\t\treturn 0;",
        "if (s->ring && has_good_ring(s) && !ut_outlets[s->ring].was_read)\n\t\treturn 0;",
    ),
    "registrations_ask_for_other_numbers_than_records_have": (
        "connection/requests.c",
        "ut_has_numbers(s) ? reg->number :",
        "ut_has_numbers(s) ? s->nr_numbers - 1 - reg->number :",
    ),
    "records_of_a_ring_that_is_given_up_are_not_counted": (
        "connection/connection.c",
        "ut_ring_give_up(*ring, !is_lost ? NULL :",
        "ut_ring_give_up(*ring, is_lost ? NULL :",
    ),
    "the_status_page_of_a_dead_daemon_stays": (
        "connection/connection.c",
        "if (!s->parents) /* otherwise",
        "if (0) /* otherwise",
    ),
    "a_lost_connection_is_not_made_again": (
        "connection/connection.c",
        "s->due = now + s->back_off;\n\tgive_up_waiting(s);",
        "s->due = UINT64_MAX;\n\tgive_up_waiting(s);",
    ),
    "a_child_writes_into_its_parent_s_ring": (
        "ring.c",
        "if (outlet->is_shared && mmap(",
        "if (!outlet && mmap(",
    ),
    "a_process_ends_before_its_records_are_sent": (
        "session.c",
        "for (s = ut_sessions; s && has_sent_all(s); s = s->next)",
        "for (s = NULL; s && has_sent_all(s); s = s->next)",
    ),
    "descriptors_that_the_program_has_closed_are_used": (
        "descriptor.h",
        "return fd >= 0 && fstat(fd, &now) == 0 &&",
        "return fd >= 0 && 1 ? 1 : fstat(fd, &now) == 0 &&",
    ),
    "a_flush_does_not_wait": (
        "session.c",
        "\tif (emitted == s->bytes_flushed)\n\t\treturn 0;",
        "\tif (emitted + 1)\n\t\treturn 0;",
    ),
    "a_child_of_a_handler_gets_no_thread": (
        "session.c",
        "if (s->forked_at && s->state != UT_FORKED && s->state != UT_CLOSED)\n\t\tut_thread_start();",
        "",
    ),
}
"""By name: the source file, the text, and what it is then."""


@functools.cache
def faulty(name: str) -> Host:
    """Programs whose library has the fault."""
    file, text, fault = OF_THE_CLIENT[name]
    build("build/tests/simulated")
    with tempfile.TemporaryDirectory(prefix="utracefs-fault-") as folder:
        copy = Path(folder) / "client" / "c"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build-*"))
        (Path(folder) / "protocol").symlink_to(ROOT / "protocol")
        source = (copy / "src" / file).read_text()
        assert source.count(text) == 1, (name, source.count(text))
        (copy / "src" / file).write_text(source.replace(text, fault))
        subprocess.run(["make", "-s", "-C", copy, "WARNINGS=", "build/tests/simulated"], check=True)
        return Host(copy / "build" / "tests" / "simulated")


def _keep_both(real: Callable[..., Any], rings: Rings, owned: Any, *, for_another: bool = False) -> None:
    if not for_another:
        real(rings, owned)


OF_THE_DAEMON: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a_ring_whose_former_connection_is_open_is_refused": (_Owned, "belongs_to", lambda real, *_: False),
    "a_ring_of_a_former_connection_is_taken_twice": (Rings, "_forget", _keep_both),
    "the_rest_of_a_dead_program_s_ring_is_dropped": (
        Rings,
        "drop",
        lambda real, rings, ring: rings._forget(rings._owned[ring]),
    ),
    "records_do_not_wait_for_their_registrations": (
        Rings,
        "adopt",
        lambda real, *args, **kwargs: real(*args, **kwargs | {"early": False}),
    ),
    "a_record_of_a_living_program_does_not_wait_for_its_next_connection": (
        Rings,
        "_may_be_filling",
        lambda real, *_: False,
    ),
    "rings_are_waited_for_forever": (Rings, "stop_waiting", lambda real, *_: None),
}
"""By name: what is replaced, and by what, whose first argument is the real one."""

FAULTS = [*OF_THE_CLIENT, *OF_THE_DAEMON]


@contextlib.contextmanager
def put_in(name: str) -> Iterator[Host | None]:
    """The programs with it; None: the daemon has it."""
    if name in OF_THE_CLIENT:
        yield faulty(name)
        return
    place, method, broken = OF_THE_DAEMON[name]
    real = getattr(place, method)
    setattr(place, method, lambda *args, **kwargs: broken(real, *args, **kwargs))
    try:
        yield None
    finally:
        setattr(place, method, real)


def find(name: str, seconds: float) -> tuple[Outcome | None, int]:
    """(how it failed, the seed, or 0 for a run of found.py); None: not within that time."""
    with put_in(name) as host:
        kept, until, seed = iter(FOUND_BY_CLIENTS.values()), time.monotonic() + seconds, 0
        while time.monotonic() < until:
            steps = next(kept, None)
            if steps is None:
                seed += 1
                steps = steps_of(seed, STEPS)
            outcome = play(steps, lambda: world(host))
            if outcome.failure:
                return outcome, seed
    return None, seed


if __name__ == "__main__":
    for wanted in named(FAULTS):
        began = time.monotonic()
        found, at = find(wanted, 60)
        took = time.monotonic() - began
        print(
            f"{took:6.1f} s  seed {at:4}  {wanted}: {found.failure if found else 'NOT FOUND':.150}",
            flush=True,
        )
