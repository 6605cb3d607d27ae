"""A tree over a real event table and a real instance, with a clock and a /proc that the test sets."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.record_path import write
from tests.daemon.status_files import nameless_status
from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.hist.tables import Tables
from utracefsd.consumers.ftrace.instances import Instances
from utracefsd.consumers.plugins.plugins import Plugins
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine.comms import CommTable, Task
from utracefsd.machine.peer import Peer
from utracefsd.tree import OpenFile, Parts, Tree

ADMIN = Peer(46, 0, 0, privileged=True)
PID = 46


class World:
    """Two cpus, one producer (pid 46, called drv), the clock `counter` unless a test sets another."""

    def __init__(self, nr_cpus: int = 2, plugins: Callable[[EventTable], Plugins] | None = None) -> None:
        self.now = 1_000_000_000
        self.tasks = {PID: Task(b"drv", 1)}
        self.tgids = {PID: PID}
        self.parents: dict[int, int] = {}
        self.free_memory_kb = 1 << 20
        self.status = nameless_status()
        self._folder = Path(tempfile.mkdtemp(prefix="utracefs-test-"))
        """For the tables of histograms."""
        self.table = EventTable(self.status)
        self.comms = CommTable(
            self.tasks.get, lambda tid: self.tgids.get(tid), self.parents.get, kernel_release=b"6.12.117"
        )
        self.instances = Instances(
            self.table,
            self.comms,
            self.now_ns,
            nr_cpus=nr_cpus,
            free_memory_kb=lambda: self.free_memory_kb,
            cells=Cells(),
            tables=Tables(self._folder, free_memory_kb=lambda: self.free_memory_kb),
        )
        self.instance = self.instances.top
        self.plugins = plugins(self.table) if plugins else Plugins(self.table, self.now_ns, entry_points=list)
        self.tree = Tree(Parts(self.table, self.instances, self.plugins, self.comms, lambda: b"faults: 0\n"))

    def now_ns(self) -> int:
        return self.now

    def close(self) -> None:
        self.plugins.close()
        self.status.close()
        shutil.rmtree(self._folder)

    def event(self, command: bytes, flags: int = 0) -> Event:
        """Register, and keep a reference as a connection would."""
        event = self.table.register(CommandString.parse(command), flags, privileged=True)
        self.table.acquire(event)
        return event

    def let_go(self, event: Event) -> None:
        """The connection closes, and the table has time to notice."""
        self.table.release(event)
        self.reap()

    def reap(self) -> None:
        self.now += 1_000_000_000
        self.table.reap()

    def emit(
        self, event: Event, payload: bytes, *, cpu: int = 0, pid: int = PID, ts_ns: int | None = None
    ) -> int:
        self.now += 1000
        return write(event.tracepoint, payload, ts_ns=self.now if ts_ns is None else ts_ns, cpu=cpu, pid=pid)

    # The script language of the transcripts, as far as it is useful here.

    def open(self, path: bytes, flags: int = os.O_RDONLY, peer: Peer = ADMIN) -> OpenFile:
        return self.tree.open(path, flags, peer=peer)

    def cat(self, path: bytes) -> bytes:
        return b"".join(filter(None, self.tree.read_pieces(path, ADMIN)))

    def w(self, path: bytes, text: bytes, peer: Peer = ADMIN) -> int:
        return self.tree.write_file(path, text + b"\n", True, peer)

    def wa(self, path: bytes, text: bytes, peer: Peer = ADMIN) -> int:
        return self.tree.write_file(path, text + b"\n", False, peer)

    def wn(self, path: bytes, text: bytes, peer: Peer = ADMIN) -> int:
        return self.tree.write_file(path, text, True, peer)

    def trace_lines(self, path: bytes = b"trace") -> list[bytes]:
        """The records of trace, without the header."""
        return [line for line in self.cat(path).split(b"\n") if line and not line.startswith(b"#")]

    def bodies(self, path: bytes = b"trace") -> list[bytes]:
        """The part behind the time stamps."""
        return [line.split(b": ", 1)[1] for line in self.trace_lines(path)]


def errno_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """The errno that a call fails with."""
    with pytest.raises(TraceError) as caught:
        call(*args, **kwargs)
    return caught.value.errno
