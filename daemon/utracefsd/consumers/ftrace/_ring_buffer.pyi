"""The ring buffer: per cpu sub-buffers in the kernel's own page layout (tracefs.md section 3)."""

from collections.abc import Iterator

import attrs

@attrs.frozen
class BufferStats:
    """The numbers of `per_cpu/cpuN/stats` (tracefs.md 3.6)."""

    entries: int
    """Records not yet read."""
    overrun: int
    """Records overwritten before they were read, since the last clear."""
    commit_overrun: int
    """Always 0: nothing interrupts our writer."""
    bytes: int
    """Bytes of the unread records, their headers, time extends and page-end padding included."""
    oldest_ts: int
    """Time stamp of the oldest page in trace-clock units; 0 if never used."""
    dropped_events: int
    """Records refused because the ring was full and overwrite off."""
    read_events: int
    """Records taken by consuming readers."""

class RingBuffer:
    """`nr_cpus` rings of sub-buffers of `subbuf_size` bytes; with `folder`, their state lives in folder/cpuN files."""

    nr_cpus: int
    subbuf_size: int
    overwrite: bool
    folder: str | None

    def __init__(
        self, nr_cpus: int, size_kb: int, *, subbuf_size: int = 4096, folder: str | None = None
    ) -> None:
        """ValueError for nr_cpus < 1, size_kb < 1, or a subbuf_size other than 4096 << 0..7; MemoryError; OSError from `folder`.

        Existing cpuN files in `folder` are replaced. ENOSPC, EDQUOT, EFBIG: there is too little room for them; a MiB stays free.
        """

    @staticmethod
    def adopt(folder: str) -> RingBuffer:
        """Take over folder/cpu0, cpu1, ... from a process that is gone. ValueError if they make no sense, OSError from opening."""

    def unlink(self) -> None:
        """Remove the files (if any); `folder` is None then. The buffer itself stays usable."""

    @property
    def max_entry_size(self) -> int:
        """Bytes of the largest entry, common header included: subbuf_size - 24 (4072 for 4 KiB)."""

    def append(self, cpu: int, ts: int, data: bytes) -> bool:
        """Store one whole entry (common header first). False: dropped and counted.

        ValueError: larger than max_entry_size. IndexError: no such cpu.
        """

    def resize(self, size_kb: int, cpu: int = -1, *, in_memory: bool = False) -> None:
        """max(2, ceil(size_kb * 1024 / (subbuf_size - 16))) sub-buffers; keeps the newest records that fit.

        What does not fit counts as overrun. ValueError for size_kb < 1, MemoryError or OSError with the old ring intact.

        in_memory: every cpu's ring leaves its file for anonymous memory with all that is in it; `folder` is None then. The
        files stay as they are: the caller removes them when nobody is to adopt them any more.
        """

    def shrink_to_minimum(self) -> None:
        """Two sub-buffers per cpu, as closing `free_buffer` does."""

    def size_kb(self, cpu: int) -> int:
        """floor(nr_subbufs * (subbuf_size - 16) / 1024), what `buffer_size_kb` shows."""

    def nr_subbufs(self, cpu: int) -> int:
        """Sub-buffers in the ring, without the reader page."""

    def clear(self, cpu: int = -1) -> None:
        """Forget all records and zero all counters, the time of the last record included."""

    def stats(self, cpu: int) -> BufferStats: ...
    def entries(self, cpu: int = -1) -> int: ...
    def overruns(self, cpu: int = -1) -> int: ...
    def is_empty(self, cpu: int = -1) -> bool: ...
    def percent_full(self, cpu: int) -> int:
        """Share of the sub-buffers that hold unread data beyond the reader page, for `buffer_percent` (tracefs.md 3.7)."""

    def read_page(self, cpu: int, size: int, *, full_only: bool = False) -> bytes | None:
        """Consume like one read() of `trace_pipe_raw` of an empty-handed reader: always a page of subbuf_size bytes.

        It holds as many records as fit into size - 16 bytes, is zero-filled behind them, and carries the lost
        count of that cpu. b"": `size` is too small for the first record, nothing consumed. None: nothing to read
        (full_only: no sub-buffer that is full and complete, as splice wants it).
        A file that was asked for fewer than subbuf_size bytes hands out the rest of the page on its next reads.
        """

    def cursor(self, cpu: int = -1, consume: bool = False) -> Cursor: ...
    def _bench_append(self, n: int, size: int) -> float:
        """Nanoseconds per record of `n` appends of a `size`-byte payload in a C loop."""

class Cursor(Iterator[tuple[int, int, bytes, int]]):
    """Records of one cpu or of all, merged by (time stamp, cpu).

    Not consuming: a walk over the unread records, oldest first, that stays valid whatever happens to the ring buffer
    meanwhile: what was overwritten, consumed or cleared is skipped, what is appended is found; after StopIteration it may
    be asked again. Consuming: every record handed out is gone from the buffer.
    """

    buffer: RingBuffer
    consume: bool
    cpu: int
    ts: int
    size: int
    lost: int
    overrun: bool

    def __iter__(self) -> Cursor: ...
    def __next__(self) -> tuple[int, int, bytes, int]:
        """(cpu, ts, entry, lost)"""
