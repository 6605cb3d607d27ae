"""A record whose fields are invalid is EFAULT if a tracer gets as far as its fields, and taken otherwise:
trace_event_buffer_reserve() and trace_trigger_soft_disabled() come before user_event_validate().
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.abi.programs import VIA, World, world
from tests.integration.abi.test_abi_ends import stopped
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for

PROGRAM = """
import ctypes, fcntl, os, resource, struct, sys
def switches():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
name = ctypes.create_string_buffer(b"odd __data_loc char[] text")
word = ctypes.c_uint32()
reg = bytearray(struct.pack("=IBBHQQI", 28, 0, 4, 0, ctypes.addressof(word), ctypes.addressof(name), 0))
fd = os.open(sys.argv[1] + "/user_events_data", os.O_RDWR)
fcntl.ioctl(fd, 0xc0082a00, reg)
index = reg[-4:]
bad, good = struct.pack("=I5s", 5 << 16 | 12, b"hello"), struct.pack("=I5s", 5 << 16 | 12, b"hell")
records = {"bad": [index, bad], "one": [index + bad], "good": [index, good], "long": [index, bad * 900],
           "longest": [index, bad * 9000]}
print(os.getpid(), flush=True)
for line in sys.stdin:
    record, before = records[line.strip()], switches()
    try:
        result = os.writev(fd, record)
    except OSError as error:
        result = -error.errno
    print(result, switches() - before, flush=True)
"""


TAKEN, FAULT = 13, -errno.EFAULT


class Odd:
    def __init__(self, there: World) -> None:
        self.waits = 0
        """How many writes gave the cpu away."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, there.tree],
            env=there.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def write(self, record: str) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(record + "\n")
        self.process.stdin.flush()
        result, switches = map(int, self.process.stdout.readline().split())
        self.waits += switches > 0
        return result

    def is_taken(self, record: str = "bad", size: int = TAKEN) -> None:
        """Perhaps not at first: the preload library waits for no slow daemon."""
        wait_for(lambda: self.write(record) == size, record)


@pytest.mark.parametrize("via", VIA)
def test_invalid_fields(via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    with world(via, daemon, tmp_path) as there:
        odd = Odd(there)
        event = there.tree / "events/user_events/odd"

        def put(name: str, text: str) -> None:
            (there.tree / name).write_text(text)

        assert odd.write("bad") == -errno.EBADF
        (event / "enable").write_text("1")
        assert [odd.write(each) for each in ("bad", "one", "good")] == [FAULT, FAULT, TAKEN]
        put("tracing_on", "0")
        for each in "bad", "one", "good":
            odd.is_taken(each)
        put("tracing_on", "1")
        # Too long for a sub-buffer: dropped before.
        odd.is_taken("long", 4 + 9 * 900)
        odd.is_taken("longest", 4 + 9 * 9000)
        put("set_event_pid", "1")
        odd.is_taken()
        put("set_event_pid", f"{odd.pid}")
        assert odd.write("bad") == FAULT
        put("set_event_pid", "")
        put("set_event_notrace_pid", f"{odd.pid}")
        odd.is_taken()
        put("set_event_notrace_pid", "")
        (event / "filter").write_text('text == "x"')  # after the fields
        assert odd.write("bad") == FAULT
        put("tracing_on", "0")
        assert odd.write("bad") == FAULT  # a record to be filtered is first written elsewhere
        (event / "filter").write_text("0")
        os.mkdir(there.tree / "instances/more")
        put("instances/more/events/user_events/odd/enable", "1")
        assert odd.write("bad") == FAULT
        put("instances/more/tracing_on", "0")
        odd.is_taken()
        assert "hello" not in (there.tree / "trace").read_text()
        odd.process.communicate()


def test_a_daemon_that_is_stopped(daemon: DaemonProcess, tmp_path: Path) -> None:
    """The first write waits for less than a millisecond, the others not at all until it answers again."""
    with world("preload", daemon, tmp_path) as there:
        odd = Odd(there)
        (there.tree / "events/user_events/odd/enable").write_text("1")
        assert odd.write("bad") == FAULT
        with stopped(daemon.pid):
            began, odd.waits = time.monotonic(), 0
            assert {odd.write("bad") for _ in range(50)} == {FAULT}
            assert odd.waits <= 5 and time.monotonic() - began < 1
            assert odd.write("good") == TAKEN
        (there.tree / "tracing_on").write_text("0")
        odd.is_taken()
        odd.process.communicate()
