"""Recordings of two daemons on one machine: programs that take turns stay in turn."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import utracefs
from tests.integration.conftest import DaemonProcess, own_directory

PROGRAM = """
import sys, utracefs

turn = utracefs.event("turn u32 number")
first, take, give = sys.argv[1:]
# A FIFO opened for both does not wait for its other end.
with open(take, "r+b", buffering=0) as taken, open(give, "r+b", buffering=0) as given:
    for number in range(int(first), 2000, 2):
        if number:
            taken.read(1)
        turn.emit(number)
        given.write(b".")
"""


def test_turns_stay_in_turn(tmp_path: Path) -> None:
    """The first recording is a perf.data, the second one a trace.dat."""
    pipes = [str(tmp_path / name) for name in ("to-first", "to-second")]
    for pipe in pipes:
        os.mkfifo(pipe)
    files = [tmp_path / "first.data", tmp_path / "second.dat"]
    (tmp_path / "turns.py").write_text(PROGRAM)
    with ExitStack() as stack:
        running = []
        for number, command in enumerate((["perf", "record", "-e", "turn"], ["record"])):
            directory = stack.enter_context(own_directory())
            daemon = DaemonProcess(directory)
            daemon.start()
            stack.callback(daemon.stop)
            if command != ["record"]:
                subprocess.run(
                    [sys.executable, "-m", "utracefs", "reg", "turn u32 number"],
                    env={**os.environ, "UTRACEFS_DIR": directory},
                    check=True,
                    timeout=60,
                )
            words = [*command, "-o", str(files[number]), "--", sys.executable, str(tmp_path / "turns.py")]
            process = subprocess.Popen(
                [sys.executable, "-m", "utracefs", *words, str(number), pipes[number], pipes[1 - number]],
                env={**os.environ, "UTRACEFS_DIR": directory},
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            running.append(process)
        for process in running:
            _, told = process.communicate(timeout=120)
            assert process.returncode == 0, told.decode()
    with utracefs.open(files) as recording:
        assert recording.is_merged
        found = [(r.fields["number"], Path(r.file)) for r in recording if r.name == "turn"]
    assert found == [(number, files[number % 2]) for number in range(2000)]
