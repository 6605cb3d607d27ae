"""Triggers, their counts and their switches, over kills and ends of the daemon: the result is that of the
model, which has none."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from tests.daemon.consumers.ftrace.trigger.playing import STEPS, Step, compare, take_step
from tests.daemon.consumers.ftrace.trigger.trigger_model import Model
from tests.daemon.restarting import bury, daemon_in, die, finish
from utracefsd.daemon import Daemon
from utracefsd.events.event import CommandString

PERSIST = 1


class MortalDesk(Desk):
    """The same with a daemon, which can be followed by another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0
        self.sit_down(daemon_in(folder))
        self.daemon.instances.top.store.resize(64)

    def sit_down(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.instance = daemon.instances.top
        for name in ("a", "b"):
            command = b"a u32 v; char[8] s" if name == "a" else b"b u32 v"
            setattr(self, name, daemon.table.register(CommandString.parse(command), PERSIST, privileged=True))

    def restart(self, killed: bool) -> None:
        if killed:
            die(self.daemon)
        else:
            self.daemon.close()
        self.sit_down(daemon_in(self.folder))

    def close(self) -> None:
        finish(self.daemon)


RESTARTS = st.tuples(st.just("restart"), st.just(""), st.booleans())


@settings(max_examples=60)
@given(st.lists(st.one_of(STEPS, STEPS, RESTARTS), max_size=25))
def test_as_the_model_over_restarts(steps: list[Step]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="utracefs-test-", dir="/dev/shm"))
    desk, model = MortalDesk(folder), Model()
    try:
        for step in steps:
            if step[0] == "restart":
                desk.restart(step[2])
            else:
                take_step(desk, model, step)
                if step[0] != "emit":
                    desk.daemon.save()  # before it is answered; records do not wait for that
            compare(desk, model)
    finally:
        desk.close()
        bury()
        shutil.rmtree(folder)
