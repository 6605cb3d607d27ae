"""The memory of an instance's ring buffer, and its size.

The buffer is in files of the `storage`, which the next daemon takes over, as long as there is space for them
(a container's /dev/shm is often 64 MiB). Otherwise it moves to memory of this process, with its records, and
stays there. Only then can a lack of memory make an operation fail.

The top instance starts with the smallest buffer and gets the full one when something is to be recorded
(`expand`, in the kernel tracing_update_buffers); named instances start with theirs.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import SUBBUF_HEADER_SIZE, SUBBUF_SIZE
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.settings import MAX_SUBBUF_ORDER, Settings
from utracefsd.daemon_log import daemon_log

EXPANDED_SIZE_KB = 1408
"""KiB per cpu once something is recorded (TRACE_BUF_SIZE_DEFAULT is 1441792 bytes); until then a buffer has
two pages."""

_MAX_SUBBUF_KB = (SUBBUF_SIZE << MAX_SUBBUF_ORDER) // 1024

NO_ROOM = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    | {errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM}
)
"""Errors of posix_fallocate(3), open(2), mkdir(2): the file system or our quota is full, or a file may not
be so large (RLIMIT_FSIZE); the folder was removed, or is not writable any more. Memory may still be
available."""


class BufferStorage(Protocol):
    """Successive folders for the ring buffer of one instance (state/folder.py, BufferFolders)."""

    adopted: RingBuffer | None
    """The ring buffer that was taken over; None: make one."""

    def new_folder(self) -> str: ...
    def remove_folder(self, folder: str) -> None: ...
    def switch_to(self, folder: str) -> None: ...
    def remove(self) -> None: ...
    def leave(self, why: OSError) -> None: ...


class BufferStore:
    def __init__(
        self,
        settings: Settings,
        *,
        nr_cpus: int,
        storage: BufferStorage | None = None,
        free_memory_kb: Callable[[], int],
    ) -> None:
        """storage: None: memory of this process alone. free_memory_kb: limit of a larger buffer. MemoryError,
        OSError."""
        self.nr_cpus = nr_cpus
        self.free_memory_kb = free_memory_kb
        self._settings = settings
        self._storage = storage
        """None once it had no space."""
        self.buffer: RingBuffer
        """The ring buffer in use."""
        self.on_replaced: Callable[[RingBuffer], None] = lambda buffer: None
        """Called with a ring buffer that replaces `buffer`, before the next daemon would find it."""
        adopted = None if storage is None else storage.adopted
        self._adopted = adopted is not None
        if adopted is not None:
            self.buffer = adopted
            return
        self.buffer, in_use = self._new_buffer([EXPANDED_SIZE_KB if settings.expanded else 1] * nr_cpus)
        self._note_sizes()
        in_use()

    # Sizes.

    def expand(self) -> None:
        """Give the top instance its full buffer, once. ENOMEM."""
        if not self._settings.expanded:
            self.resize(EXPANDED_SIZE_KB)

    def resize(self, size_kb: int, cpu: int = -1) -> None:
        """KiB per cpu, of one cpu or all; keeps the records that fit. EINVAL for 0, ENOMEM with the old
        buffer intact."""
        if size_kb < 1:
            raise TraceError(errno.EINVAL, "a buffer needs at least 1 KiB per cpu")
        cpus = range(self.nr_cpus) if cpu < 0 else (cpu,)
        growth_kb = sum(max(0, size_kb - self.buffer.size_kb(n)) for n in cpus)
        self._check_memory(growth_kb if self.buffer.spare is None else 2 * growth_kb)
        self._resize(size_kb, cpu)

    def shrink_to_minimum(self) -> None:
        """Two sub-buffers per cpu, as closing free_buffer makes it."""
        self._resize(1)

    # The spare, which holds a snapshot.

    def add_spare(self) -> None:
        """Make the spare, of the buffer's sizes. ENOMEM, with nothing changed."""
        if self.buffer.spare is not None:
            with memory_errors():
                self.buffer.fit_spare()
            return
        self._check_memory(sum(self._sizes_kb()))
        with memory_errors():
            try:
                self.buffer.add_spare()
            except OSError as error:
                if self._storage is None or error.errno not in NO_ROOM:
                    raise
                self.buffer.move_to_memory()
                self._note_sizes()
                self._leave_storage(error)
                self.buffer.add_spare()
        self._settings.snapshot = True

    def remove_spare(self) -> None:
        self.buffer.remove_spare()
        self._settings.snapshot = False

    def _check_memory(self, more_kb: int) -> None:
        if more_kb > self.free_memory_kb():
            raise TraceError(errno.ENOMEM, f"too little memory for {more_kb} KiB more")

    def size_text(self) -> bytes:
        """`buffer_size_kb`."""
        sizes = set(self._sizes_kb())
        if len(sizes) > 1:
            return b"X\n"
        return self._size_text(sizes.pop(), EXPANDED_SIZE_KB)

    def total_size_text(self) -> bytes:
        """`buffer_total_size_kb`."""
        return self._size_text(sum(self._sizes_kb()), EXPANDED_SIZE_KB * self.nr_cpus)

    def set_subbuf_size(self, size_kb: int) -> None:
        """Sub-buffers of so many KiB, rounded up to a power of two of pages; records are lost, sizes stay.

        EINVAL: 0, or more than 512. ENOMEM.
        """
        if not 0 < size_kb <= _MAX_SUBBUF_KB:
            raise TraceError(errno.EINVAL, f"a sub-buffer has 1 to {_MAX_SUBBUF_KB} KiB")
        pages = -(-size_kb * 1024 // SUBBUF_SIZE)
        size = SUBBUF_SIZE << (pages - 1).bit_length()
        if size == self.buffer.subbuf_size:
            return
        # Whole sub-buffers that hold at least as much: ring_buffer_subbuf_order_set of
        # kernel/trace/ring_buffer.c.
        payload = self.buffer.subbuf_size - SUBBUF_HEADER_SIZE
        room_kb = [
            -(-self.buffer.nr_subbufs(cpu) * payload // (size - SUBBUF_HEADER_SIZE))
            * (size - SUBBUF_HEADER_SIZE)
            // 1024
            for cpu in range(self.nr_cpus)
        ]
        self._replace(room_kb, size)

    def restore_sizes(self, in_memory: Sequence[int], *, expanded: bool, snapshot: bool = False) -> None:
        """After a restart: give an empty buffer the sizes of a lost one that was in memory
        (`Settings.in_memory`), and a spare if that had one. A buffer that was taken over has its own."""
        if self._adopted:
            self._settings.expanded = expanded
            self._settings.snapshot = self.buffer.spare is not None
            return
        if not in_memory:
            return  # incomplete settings: the buffer stays that of a new instance
        self._settings.expanded, self._settings.snapshot = expanded, snapshot
        subbuf_size, *sizes_kb = in_memory
        if subbuf_size == self.buffer.subbuf_size and sizes_kb == self._sizes_kb() and not snapshot:
            return
        try:
            self._replace(sizes_kb, subbuf_size)
        except TraceError as error:
            self._settings.snapshot = False
            daemon_log("buffer-not-resized", reason=error.text)

    def _sizes_kb(self) -> list[int]:
        return [self.buffer.size_kb(cpu) for cpu in range(self.nr_cpus)]

    def _size_text(self, size_kb: int, expanded_kb: int) -> bytes:
        if self._settings.expanded:
            return b"%d\n" % size_kb
        return b"%d (expanded: %d)\n" % (size_kb, expanded_kb)

    def _note_sizes(self) -> None:
        """Call it after every change of the buffer, before the storage gets it: the next daemon may have to
        make the buffer anew."""
        in_memory = self.buffer.folder is None
        self._settings.in_memory = (self.buffer.subbuf_size, *self._sizes_kb()) if in_memory else ()

    def remove(self) -> None:
        """The instance is removed, and no daemon will take its buffer over."""
        if self._storage is not None:
            self._storage.remove()
            self._storage = None

    # Memory.

    def _resize(self, size_kb: int, cpu: int = -1) -> None:
        with memory_errors():
            why = None
            try:
                self.buffer.resize(size_kb, cpu)
            except OSError as error:
                if self._storage is None or error.errno not in NO_ROOM:
                    raise
                self.buffer.resize(size_kb, cpu, in_memory=True)
                why = error
        self._settings.expanded = True
        self._note_sizes()
        if why is not None:
            self._leave_storage(why)

    def _replace(self, sizes_kb: Sequence[int], subbuf_size: int) -> None:
        """Replace the buffer by an empty one. ENOMEM, with the old one intact."""
        with memory_errors():
            self.buffer, in_use = self._new_buffer(sizes_kb, subbuf_size)
        self._note_sizes()
        self.on_replaced(self.buffer)
        in_use()

    def _new_buffer(
        self, sizes_kb: Sequence[int], subbuf_size: int = SUBBUF_SIZE
    ) -> tuple[RingBuffer, Callable[[], None]]:
        """An empty buffer, in a folder of its own if there is storage, and a function to call once it is in
        use: a process that is killed before that leaves the old one. MemoryError, OSError."""
        if self._storage is None:
            return self._sized_buffer(sizes_kb, subbuf_size, None), lambda: None
        storage = self._storage
        try:
            folder = storage.new_folder()
            try:
                buffer = self._sized_buffer(sizes_kb, subbuf_size, folder)
            except BaseException:
                storage.remove_folder(folder)
                raise
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            why = error
            return self._sized_buffer(sizes_kb, subbuf_size, None), lambda: self._leave_storage(why)
        return buffer, lambda: storage.switch_to(folder)

    def _sized_buffer(self, sizes_kb: Sequence[int], subbuf_size: int, folder: str | None) -> RingBuffer:
        buffer = RingBuffer(self.nr_cpus, sizes_kb[0], subbuf_size=subbuf_size, folder=folder)
        for cpu, size_kb in enumerate(sizes_kb):
            if size_kb != sizes_kb[0]:
                buffer.resize(size_kb, cpu)
        if self._settings.snapshot:
            buffer.add_spare()
        buffer.overwrite = "overwrite" in self._settings.options
        return buffer

    def _leave_storage(self, why: OSError) -> None:
        """The buffer has been moved to memory."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.leave(why)


@contextmanager
def memory_errors(what: str = "a buffer of that size") -> Iterator[None]:
    """Convert errors about memory or space for `what` to an errno."""
    try:
        yield
    except MemoryError as error:
        raise TraceError(errno.ENOMEM, f"no memory for {what}: {error}".removesuffix(": ")) from None
    except OSError as error:
        raise TraceError(error.errno or errno.ENOMEM, f"no room for {what}: {error.strerror}") from error
