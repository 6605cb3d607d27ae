"""Harmful readers of streams: a real daemon continues, and other readers get exact data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import utracefs
from tests.integration.conftest import DaemonProcess
from utracefs.tree.rpc import Rpc
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.messages.tracefs import StreamAttr, StreamOpened

Eventually = Callable[[Callable[[], object], str], None]
COUNT = 60_000

HOSTILE = """
import fcntl, mmap, os, random, struct, sys
from utracefs.tree.rpc import Rpc
from utracefs_protocol.messages.tracefs import StreamAttr
rpc = Rpc("tracefs", sys.argv[1])
rpc.call(StreamAttr((b"work",), size=1 << 18), "work")
memory, bell = rpc.take_fds()
mapping = mmap.mmap(memory, 0)
fcntl.fcntl(bell, fcntl.F_SETFL, 0)
print("there", flush=True)
while True:
    for at in (0, 64, 128, 128, 192, 4096 + 8 * random.randrange(1 << 15)):
        struct.pack_into("<Q", mapping, at, random.getrandbits(64) >> random.randrange(64))
"""


def test_hostile_and_stalled_readers(daemon: DaemonProcess, eventually: Eventually) -> None:
    """One writes all over its ring and its doorbell, one is stopped, one is honest: that one gets everything,
    and the counts add up for each."""
    hostile = subprocess.Popen([sys.executable, "-c", HOSTILE, daemon.directory], stdout=subprocess.PIPE)
    try:
        assert hostile.stdout is not None
        assert hostile.stdout.readline() == b"there\n"
        with (
            Rpc("tracefs", daemon.directory) as stalled,
            utracefs.attach("work", directory=daemon.directory, timeout_s=20) as honest,
            utracefs.Session(daemon.directory) as session,
        ):
            attr = StreamAttr((b"work",), size=1 << 18)
            handle = StreamOpened.from_wire(stalled.call(attr, "work")).handle
            event = session.event("work u64 n")
            eventually(lambda: event, "the event is wanted")
            received = 0
            batches = honest.batches()
            for start in range(0, COUNT, 2000):
                for number in range(start, start + 2000):
                    event.emit(number)
                assert session.flush(60)
                while received + sum(honest.lost.values()) < start + 2000:
                    received += sum(next(batches).counts.values())
            assert received + sum(honest.lost.values()) == COUNT
            with Tracefs(daemon.directory) as tree:
                stats = tree.read_file("events/user_events/work/stats").decode()
            lines = dict(line.split(": ", 1) for line in stats.splitlines() if ": " in line)
            assert lines["emitted"] == str(COUNT)
            streams = [text.split() for name, text in lines.items() if name.startswith("stream:")]
            assert [sum(map(int, words[1::2])) for words in streams] == [COUNT] * 3
            assert int(lines[f"stream:{handle}"].split()[5]) > 0
            for fd in stalled.take_fds():
                os.close(fd)
    finally:
        hostile.kill()
        hostile.communicate()
    with Tracefs(daemon.directory) as tree:
        eventually(
            lambda: b"streams: 0 of" in tree.read_file("daemon_stats"), "streams end with their connections"
        )
