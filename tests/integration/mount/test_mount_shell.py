"""A day of work in a shell over a mount: shell.sh uses only tracefs, and gets tracefs' output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import mounted, must_mount

SCRIPT = Path(__file__).with_name("shell.sh")

EMITTER = """
import errno, struct, sys
from utracefs.tree.rpc import Rpc
from utracefs_protocol.messages.data import EventRegistration, Registered, Write

asked, answer = sys.argv[1:]
while True:
    with open(asked) as lines:
        _, count, what = lines.read().split()
    payload = struct.pack("<I8s", int(count), what.encode())
    with Rpc("user_events_data") as data:
        registration = EventRegistration(b"shop u32 count; char[8] what")
        index = Registered.from_wire(data.call(registration, "shop")).write_index
        try:
            data.call(Write(struct.pack("<i", index) + payload), "shop")
        except OSError as error:
            assert error.errno == errno.EBADF  # nobody wants it
    with open(answer, "w") as done:
        done.write("done\\n")
"""
"""Registers for one record at a time, so that the event is unused in between."""


@pytest.fixture
def emit(daemon: DaemonProcess, environment: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """A command that makes a running program emit: a Python for each record would take long."""
    asked, answer, command = tmp_path / "asked", tmp_path / "answer", tmp_path / "emit"
    os.mkfifo(asked)
    os.mkfifo(answer)
    command.write_text(f'#!/bin/bash\necho "$@" > {asked}\nread -r _ < {answer}\n')
    command.chmod(0o755)
    program = subprocess.Popen([sys.executable, "-c", EMITTER, asked, answer], env=environment)
    try:
        yield command
    finally:
        program.kill()
        program.wait()


def test_a_day_in_a_shell(daemon: DaemonProcess, emit: Path, tmp_path: Path) -> None:
    must_mount(tmp_path / "probe")
    with mounted(daemon.directory, tmp_path / "tree") as mount:
        done = subprocess.run(
            ["bash", str(SCRIPT), str(mount.path), str(emit)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.stderr == ""
    assert done.stdout == SCRIPT.with_suffix(".txt").read_text()
    assert done.returncode == 0
