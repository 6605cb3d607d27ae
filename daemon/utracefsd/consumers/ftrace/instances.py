"""All ftrace instances: the top one, which is always there, and further ones with a name (`instances/NAME`).

Each has a number: 0 is the top one, a further one gets the lowest free number. The number stands for the
instance where a name is too long: in the journal of the data rings, and in the state's log and folders.

An instance that something holds (an open file, see `hold`) cannot be removed, as in the kernel, where opening
takes a reference to the trace_array (kernel/trace/trace.c, `trace_array_get` and `instance_rmdir`). Enabled
events do not hold it: removing it lets go of them. One with the setting `remove_on_close` goes when nothing
holds it any more.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.buffer.buffer_store import EXPANDED_SIZE_KB, BufferStorage, memory_errors
from utracefsd.consumers.ftrace.event._sink import recorded_ids
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.hist.tables import Tables
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.events.event_table import EventTable
from utracefsd.events.lowest_free import LowestFree
from utracefsd.machine._writer_names import WriterNames
from utracefsd.machine.comms import CommTable

__all__ = ["MAX_NUMBER", "TOP", "Instances", "check_name"]

TOP = 0
"""Number of the top instance."""

MAX_NUMBER = 703
"""As many as a slot of the journal has bits for (intake/include/journal.h, JR_MAX_BUFFERS): without one an
instance would keep the record that was under way when a daemon was killed twice."""

_LINES_BYTES = 4096
"""What a new one takes in the log of the state at most: its name, its settings, the folder of its buffer."""

_NAME_MAX = 255
"""Bytes of a file name (linux/limits.h)."""


class Instances:
    """The instances of one daemon. Iterating gives the top one first, then the others in the order of
    making."""

    def __init__(
        self,
        table: EventTable,
        comms: CommTable,
        now_ns: Callable[[], int],
        *,
        nr_cpus: int,
        storage: Callable[[int], BufferStorage | None] = lambda number: None,
        current_cpu: Callable[[], int] = lambda: 0,
        free_memory_kb: Callable[[], int] | None = None,
        cells: Cells | None = None,
        tables: Tables | None = None,
        restored: Mapping[int, bytes] | None = None,
    ) -> None:
        """storage: where the ring buffer of the instance of that number lives; None: in memory of this
        process.

        cells: where triggers have their counts; tables: where histograms do; None: in memory of this process.

        restored: numbers and names of the further instances of a daemon before this one, which are made
        again. The others are as for `Instance`. ValueError: such a name or number is invalid. MemoryError,
        OSError.
        """
        self.nr_cpus = nr_cpus
        self._names = WriterNames(comms.comm, comms.last_comm)
        self._table = table
        self._comms = comms
        self._now_ns = now_ns
        self._storage = storage
        self._current_cpu = current_cpu
        self._free_memory_kb = free_memory_kb
        self.cells = Cells() if cells is None else cells
        """Of all triggers."""
        self.tables = Tables(free_memory_kb=free_memory_kb) if tables is None else tables
        """Of all histograms."""
        self._numbers = LowestFree(TOP + 1, MAX_NUMBER)
        self._by_name: dict[bytes, Instance] = {}
        self._holds: dict[Instance, int] = {}
        self.on_made: list[Callable[[Instance], None]] = []
        """Told of each further instance that was made."""
        self.on_removed: list[Callable[[Instance], None]] = []
        """Told of each that was removed, when nothing is attached to it any more and its storage is still
        there."""
        self.check_room: Callable[[int], None] = lambda nr_bytes: None
        """TraceError when so many bytes could not be written down for a new one."""
        table.ids.records = self
        self.top = self._make(b"", TOP)
        self.top.markers.copies = lambda: [
            instance.markers for instance in self._by_name.values() if instance.options["copy_trace_marker"]
        ]
        self._by_number = {TOP: self.top}
        names = {} if restored is None else dict(restored)
        if not self._numbers.reserve(names) or len(set(names.values())) != len(names):
            raise ValueError("two instances are the same, or a number is invalid")
        for number, name in names.items():
            check_name(name)
            self._by_name[name] = self._by_number[number] = self._make(name, number)

    def __iter__(self) -> Iterator[Instance]:
        yield self.top
        yield from self._by_name.values()

    def __len__(self) -> int:
        """The top one counts."""
        return 1 + len(self._by_name)

    def get(self, name: bytes) -> Instance | None:
        """The instance of that name; None: there is none."""
        return self._by_name.get(name)

    def by_number(self, number: int) -> Instance | None:
        """The instance of that number, the top one included; None: there is none."""
        return self._by_number.get(number)

    def names(self) -> Iterable[bytes]:
        """Names of the further ones."""
        return self._by_name.keys()

    def of_removed(self) -> bool:
        """See event_ids.Records."""
        return any(instance.settings.clear_pending for instance in self)

    def event_ids(self) -> set[int]:
        """See event_ids.Records."""
        buffers = [instance.buffer for instance in self if instance.settings.clear_pending]
        return set().union(*map(recorded_ids, buffers))

    def make(self, name: bytes) -> Instance:
        """A new instance, with its real buffer.

        TraceError: EEXIST; EINVAL (not a file name); ENAMETOOLONG; ENOMEM; ENOSPC (as many as there are
        numbers; no room to write it down).
        """
        check_name(name)
        if name in self._by_name:
            raise TraceError(errno.EEXIST, f"there is an instance {_shown(name)} already")
        needed_kb = EXPANDED_SIZE_KB * self.nr_cpus
        if self._free_memory_kb is not None and needed_kb > self._free_memory_kb():
            raise TraceError(errno.ENOMEM, f"too little memory for {needed_kb} KiB more")
        self.check_room(_LINES_BYTES)
        number = self._numbers.allocate()
        if number is None:
            raise TraceError(errno.ENOSPC, f"there are {MAX_NUMBER} instances, which is the limit")
        try:
            with memory_errors():
                instance = self._make(name, number)
        except BaseException:
            self._numbers.free(number)
            raise
        self._by_name[name] = self._by_number[number] = instance
        for made in self.on_made:
            made(instance)
        return instance

    def remove(self, name: bytes) -> None:
        """Let go of all its events, and forget what it recorded. TraceError: ENOENT; EBUSY (something holds
        it)."""
        instance = self._by_name.get(name)
        if instance is None:
            raise TraceError(errno.ENOENT, f"there is no instance {_shown(name)}")
        if instance in self._holds:
            raise TraceError(errno.EBUSY, f"files of the instance {_shown(name)} are open; close them first")
        instance.close()
        del self._by_name[name], self._by_number[instance.number]
        for removed in self.on_removed:
            removed(instance)
        instance.store.remove()
        self._numbers.free(instance.number)

    def hold(self, instance: Instance) -> Callable[[], None]:
        """Keep an instance from being removed until what this returns is called, once."""
        self._holds[instance] = self._holds.get(instance, 0) + 1

        def let_go() -> None:
            self._holds[instance] -= 1
            if not self._holds[instance]:
                del self._holds[instance]
                if instance.settings.remove_on_close:
                    self.remove(instance.name)

        return let_go

    def remove_left_over(self) -> None:
        """Remove those that were to go with an open file, which ended with the daemon before this one."""
        for instance in list(self._by_name.values()):
            if instance.settings.remove_on_close:
                self.remove(instance.name)

    def _make(self, name: bytes, number: int) -> Instance:
        return Instance(
            self._table,
            self._comms,
            self._now_ns,
            nr_cpus=self.nr_cpus,
            name=name,
            number=number,
            top_options=None if number == TOP else self.top.options,
            storage=self._storage(number),
            current_cpu=self._current_cpu,
            free_memory_kb=self._free_memory_kb,
            names=self._names,
            cells=self.cells,
            tables=self.tables,
        )


def check_name(name: bytes) -> None:
    """TraceError when no directory can have this name: EINVAL, ENAMETOOLONG."""
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise TraceError(errno.EINVAL, f"{_shown(name)} is not a file name")
    if len(name) > _NAME_MAX:
        raise TraceError(errno.ENAMETOOLONG, f"a name has at most {_NAME_MAX} bytes, not {len(name)}")


def _shown(name: bytes) -> str:
    return repr(name[:_NAME_MAX].decode("utf-8", "backslashreplace"))
