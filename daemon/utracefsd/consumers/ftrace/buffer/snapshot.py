"""`snapshot`: the spare buffer of an instance, and swapping it with the live one.

A snapshot is a swap and not a copy, as in tracing_snapshot_write() of kernel/trace/trace.c: the records until
now become the snapshot, and recording continues in the former snapshot. So its cost does not depend on the
number of records, and a second one brings the records of the first back into `trace`. A trigger takes its
snapshot within a record, in compiled code (`FtraceSink.take_snapshot`).
"""

import errno
from collections.abc import Callable

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.buffer.buffer_store import BufferStore

_ALLOCATED = b"#\n# * Snapshot is allocated *\n#\n"
_FREED = b"#\n# * Snapshot is freed *\n#\n"

_COMMANDS = b"""\
# Snapshot commands:
# echo 0 > snapshot : Clears and frees snapshot buffer
# echo 1 > snapshot : Allocates snapshot buffer, if not already allocated.
#                      Takes a snapshot of the main buffer.
# echo 2 > snapshot : Clears snapshot buffer (but does not allocate or free)
#                      (Doesn't have to be '2' works with any number that
#                       is not a '0' or '1')
"""

_CPU_COMMANDS = b"""\
# Snapshot commands:
# echo 0 > snapshot : Invalid for per_cpu snapshot file.
# echo 1 > snapshot : Allocates snapshot buffer, if not already allocated.
#                      Takes a snapshot of the main buffer for this cpu.
# echo 2 > snapshot : Clears this cpu's snapshot buffer (but does not allocate)
#                      (Doesn't have to be '2' works with any number that
#                       is not a '0' or '1')
"""
"""show_snapshot_main_help() and show_snapshot_percpu_help() of kernel/trace/trace.c."""


class Snapshot:
    def __init__(self, store: BufferStore) -> None:
        self._store = store
        self._holder: object = None
        self._holds = 0

    @property
    def buffer(self) -> RingBuffer | None:
        """The spare buffer; None: freed."""
        return self._store.buffer.spare

    def allocate(self) -> None:
        """Make the spare, unless there is one. ENOMEM."""
        self._store.expand()
        self._store.add_spare()

    def take(self, cpu: int = -1) -> None:
        """Swap, of one cpu or all, after making the spare if needed. ENOMEM."""
        self.allocate()
        self._store.buffer.swap(cpu)

    def clear(self, cpu: int = -1) -> None:
        """Drop the spare's records, of one cpu or all, and keep the spare if there is one."""
        if self.buffer is not None:
            self.buffer.clear(cpu)

    def free(self) -> None:
        self._store.remove_spare()

    def hold(self, holder: object) -> Callable[[], None]:
        """Reserve it for an action of a histogram until the returned function is called, once; makes the
        spare. EBUSY: another holder has it (`tracing_snapshot_cond_enable()`); ENOMEM."""
        if self._holder is not holder:
            self._check_free()
        self.allocate()
        self._holder = holder
        self._holds += 1

        def let_go() -> None:
            self._holds -= 1
            if not self._holds:
                self._holder = None

        return let_go

    def _check_free(self) -> None:
        if self._holds:
            raise TraceError(
                errno.EBUSY, "an action of a histogram takes the snapshot; remove its trigger first"
            )

    def write(self, value: int, cpu: int = -1) -> None:
        """A number written to `snapshot`, or to that of a cpu. EINVAL: 0 for one cpu; EBUSY: it is reserved;
        ENOMEM."""
        self._store.expand()
        self._check_free()
        if value == 1:
            self.take(cpu)
        elif value:
            self.clear(cpu)
        elif cpu >= 0:
            raise TraceError(errno.EINVAL, "one cpu's snapshot cannot be freed; write 0 to that of all cpus")
        else:
            self.free()

    def help_text(self, cpu: int = -1) -> bytes:
        """The text while the spare has no records."""
        state = _FREED if self.buffer is None else _ALLOCATED
        return state + (_COMMANDS if cpu < 0 else _CPU_COMMANDS)
