"""All ftrace instances: the top one, which always exists, and named ones (`instances/NAME`).

Each has a number: the top instance 0, a named one the lowest free number. It identifies the instance where a
name is too long: in the journal of the data rings, and in the state's log and folders.

An instance in use (an open file, see `hold`) cannot be removed, as in the kernel (kernel/trace/trace.c,
`trace_array_get` and `instance_rmdir`). Enabled events do not prevent it: removal detaches them.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

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

TOP = 0

MAX_NUMBER = 703
"""The number of bits in a slot of the journal (intake/include/journal.h, JR_MAX_BUFFERS): without a bit,
an instance would keep a record twice that was being dispatched when a daemon was killed."""

_LINES_BYTES = 4096
"""Limit of a new instance's lines in the state's log: its name, its settings, the folder of its buffer."""

_NAME_MAX = 255
"""Bytes of a file name (linux/limits.h)."""


class Instances:
    """The instances of one daemon, the top one first, then the others in the order of making."""

    def __init__(
        self,
        table: EventTable,
        comms: CommTable,
        now_ns: Callable[[], int],
        *,
        nr_cpus: int,
        storage: Callable[[int], BufferStorage | None] = lambda number: None,
        current_cpu: Callable[[], int] = lambda: 0,
        free_memory_kb: Callable[[], int],
        cells: Cells,
        tables: Tables,
        restored: Mapping[int, bytes] | None = None,
    ) -> None:
        """storage: files for the ring buffer of the instance with that number; None: it is in memory of this
        process. restored: numbers and names of the previous daemon's named instances, which are made again.
        The others are as for `Instance`. ValueError: such a name or number is invalid. MemoryError, OSError.
        """
        self.nr_cpus = nr_cpus
        self._storage = storage
        self._free_memory_kb = free_memory_kb
        self.cells = cells
        """Cells of all triggers."""
        self.tables = tables
        """Tables of all histograms."""
        # All instances share these; a name and a number are added for each.
        self._instance = partial(
            Instance,
            table,
            comms,
            now_ns,
            nr_cpus=nr_cpus,
            current_cpu=current_cpu,
            free_memory_kb=free_memory_kb,
            names=WriterNames(comms.comm, comms.last_comm),
            cells=self.cells,
            tables=self.tables,
        )
        self.owners_return = False
        """The daemon ends and leaves its state: instances with `owner_returns` stay for the next one."""
        self._numbers = LowestFree(TOP + 1, MAX_NUMBER)
        self._by_name: dict[bytes, Instance] = {}
        self._holds: dict[Instance, int] = {}
        self.on_made: list[Callable[[Instance], None]] = []
        """Called with each named instance after it was made."""
        self.on_removed: list[Callable[[Instance], None]] = []
        """Called with each instance after its removal: everything is detached, its storage still exists."""
        self.check_room: Callable[[int], None] = lambda nr_bytes: None
        """Raises TraceError when the state has no space for so many bytes, for a new instance."""
        # The id of a removed event is free once no instance has records with it.
        table.ids.records = self
        self.top = self._make(b"", TOP)
        self.top.markers.copies = lambda: [
            instance.markers for instance in self._by_name.values() if instance.options["copy_trace_marker"]
        ]
        self._by_number = {TOP: self.top}
        # Numbers stay over a restart: the journal and the folders of ring buffers have them.
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
        """Includes the top instance."""
        return 1 + len(self._by_name)

    def get(self, name: bytes) -> Instance | None:
        return self._by_name.get(name)

    def by_number(self, number: int) -> Instance | None:
        """Also the top one."""
        return self._by_number.get(number)

    def names(self) -> Iterable[bytes]:
        """Names of all but the top instance."""
        return self._by_name.keys()

    def of_removed(self) -> bool:
        """See event_ids.Records. A reader of pages keeps all that it got, under these ids."""
        return any(
            instance.settings.clear_pending or instance.sink.page_reader is not None for instance in self
        )

    def event_ids(self) -> set[int]:
        """See event_ids.Records."""
        buffers = [instance.buffer for instance in self if instance.settings.clear_pending]
        return set().union(*map(recorded_ids, buffers))

    def make(self, name: bytes) -> Instance:
        """A new instance, with its real buffer. TraceError: EEXIST; EINVAL (not a file name); ENAMETOOLONG;
        ENOMEM; ENOSPC (no free number; no space in the state's log)."""
        check_name(name)
        if name in self._by_name:
            raise TraceError(errno.EEXIST, f"there is an instance {_shown(name)} already")
        needed_kb = EXPANDED_SIZE_KB * self.nr_cpus
        if needed_kb > self._free_memory_kb():
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

    def recycle(self) -> None:
        """The state's log names nothing that triggers have freed."""
        self.cells.recycle()
        self.tables.recycle()

    def remove(self, name: bytes) -> None:
        """Detach all its events, and drop its records. TraceError: ENOENT; EBUSY (it is in use)."""
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
        """Prevent the removal of an instance until the returned function is called, once."""
        self._holds[instance] = self._holds.get(instance, 0) + 1

        def let_go() -> None:
            self._holds[instance] -= 1
            if not self._holds[instance]:
                del self._holds[instance]
                settings = instance.settings
                if settings.remove_on_close and not (self.owners_return and settings.owner_returns):
                    self.remove(instance.name)

        return let_go

    def remove_left_over(self, *, returning: bool = False) -> None:
        """Remove instances with `remove_on_close`, whose files were closed with the previous daemon.
        returning: also the ones that waited for their owner."""
        for instance in list(self._by_name.values()):
            settings = instance.settings
            if (
                settings.remove_on_close
                and settings.owner_returns <= returning
                and instance not in self._holds
            ):
                self.remove(instance.name)

    def _make(self, name: bytes, number: int) -> Instance:
        top_options = None if number == TOP else self.top.options
        return self._instance(
            name=name, number=number, top_options=top_options, storage=self._storage(number)
        )


def check_name(name: bytes) -> None:
    """TraceError when no directory can have this name: EINVAL, ENAMETOOLONG."""
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise TraceError(errno.EINVAL, f"{_shown(name)} is not a file name")
    if len(name) > _NAME_MAX:
        raise TraceError(errno.ENAMETOOLONG, f"a name has at most {_NAME_MAX} bytes, not {len(name)}")


def _shown(name: bytes) -> str:
    return repr(name[:_NAME_MAX].decode("utf-8", "backslashreplace"))
