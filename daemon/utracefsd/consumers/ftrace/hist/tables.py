"""All tables of a daemon's histograms: their files, sizes and names.

A table is in a file of the state's folder, `hist.N`, which the next daemon takes over; without space for it,
in memory of this process. Its memory is allocated when the first record is counted: otherwise triggers on
thousands of events that no program emits would take the memory of others. So allocation may fail, and then
the records are dropped, which `hist` shows, and the reason is logged.
"""

import contextlib
import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from utracefs_protocol.errors import TraceError
from utracefs_protocol.hist.parse import MAX_BITS, MIN_BITS
from utracefsd.consumers.ftrace.buffer.buffer_store import NO_ROOM
from utracefsd.consumers.ftrace.hist._hist import HistTable, warn_of_memory
from utracefsd.daemon_log import daemon_log
from utracefsd.machine.kept_file import check_readable, remove

MAX_INSTANCE_BYTES = 128 << 20
"""Limit of all tables of an instance. The largest possible one (131072 entries with a dynamic string and a
stack as keys) takes 71 MiB, the default one with one number as its key 82 KiB."""

MAX_BYTES = 256 << 20
"""Limit of all tables of a daemon. Beyond it an administrator gets ENOMEM."""


def is_table_name(name: str) -> bool:
    """Whether a file of this name in the state's folder can be a table."""
    return re.fullmatch(r"hist\.[1-9]\d{0,17}", name) is not None


def saved_table(extra: object) -> tuple[str, bool]:
    """The parts of `SavedTrigger.extra`: the name of the table's file, empty if there was none, and whether
    the trigger was made for another one."""
    match extra:
        case str(name):
            return name, False
        case [str(name), True]:
            return name, True
    return "", False


class Tables:
    """folder: for the files. free_memory_kb: a further limit of all tables."""

    def __init__(
        self,
        folder: Path,
        *,
        free_memory_kb: Callable[[], int],
        instance_bytes: int = MAX_INSTANCE_BYTES,
        in_all: int = MAX_BYTES,
    ) -> None:
        self._folder = folder
        self._free_memory_kb = free_memory_kb
        self._instance_bytes = instance_bytes
        self._in_all = in_all
        self.holders: dict[HistTable, list[int]] = {}
        """Numbers of the instances whose triggers use the table."""
        self._sizes: dict[HistTable, int] = {}
        """Bytes, with the memory that a table takes at its first record."""
        self._sums: Counter[int] = Counter()
        """Bytes by instance; a shared table counts for the first instance."""
        self._dropped: list[HistTable] = []
        self.named: dict[bytes, list[Any]] = {}
        """Histograms by `name=NAME`, the oldest first (`named_triggers` of the kernel: of all instances)."""
        self._last = 0
        self.reserve(path.name for path in self._files())

    def __len__(self) -> int:
        return len(self.holders)

    def reserve(self, names: Iterable[str]) -> None:
        """Give no table a name that the log has, though its file is gone: two triggers would count in it."""
        self._last = max([self._last, *(int(name[5:]) for name in names if is_table_name(name))])

    def make(self, instance: int, bits: int, key_size: int, nr_words: int) -> HistTable:
        """An empty table, held by that instance. ENOMEM."""
        size = HistTable.bytes_of(bits, key_size, nr_words)
        self._check(instance, size)
        try:
            table = self._make(bits, key_size, nr_words)
        except MemoryError:
            raise TraceError(errno.ENOMEM, f"no memory for a table of {size >> 10} KiB") from None
        return self._hold_first(table, instance)

    def adopt(self, instance: int, name: str, bits: int, key_size: int, nr_words: int) -> HistTable:
        """The previous daemon's table in the file of this name, held by that instance; an empty one if it
        cannot be used. bits: of an empty one. ENOMEM, UnreadableError."""
        for table in self.holders:
            if table.path is not None and os.path.basename(table.path) == name:
                self.hold(table, instance)
                return table
        if is_table_name(name):
            try:
                table = self._adopt(self._folder / name, bits, key_size, nr_words)
            except (OSError, ValueError, MemoryError) as error:
                check_readable(self._folder / name, error)
                daemon_log("hist-lost", reason=error)
            else:
                return self._hold_first(table, instance)
        return self.make(instance, bits, key_size, nr_words)

    def _adopt(self, path: Path, bits: int, key_size: int, nr_words: int) -> HistTable:
        """Open an existing table. If triggers share it by its name, the first one chose its size."""
        size = path.stat().st_size
        for n in range(MIN_BITS, MAX_BITS + 1):
            if HistTable.bytes_of(n, key_size, nr_words) == size:
                bits = n
        return HistTable.adopt(bits, key_size, nr_words, str(path))

    def _hold_first(self, table: HistTable, instance: int) -> HistTable:
        self.holders[table] = [instance]
        self._resize(table, table.nr_bytes)
        table.check_room = self._check_room
        return table

    def _check_room(self, table: HistTable) -> None:
        self._check(self.holders[table][0], table.full_bytes - self._sizes[table])
        self._resize(table, table.full_bytes)

    def _resize(self, table: HistTable, size: int) -> None:
        self._sums[self.holders[table][0]] += size - self._sizes.get(table, 0)
        self._sizes[table] = size

    def hold(self, table: HistTable, instance: int) -> None:
        """One more trigger uses it."""
        self.holders[table].append(instance)

    def drop(self, table: HistTable, instance: int) -> None:
        """One trigger less uses it; with the last one it goes, its file with `recycle`."""
        size, held = self._sizes[table], self.holders[table]
        self._sums[held[0]] -= size
        held.remove(instance)
        if held:
            self._sums[held[0]] += size
        else:
            del self.holders[table], self._sizes[table]
            table.check_room = None
            if table.path is not None:
                self._dropped.append(table)

    def recycle(self) -> None:
        """The log names no dropped table any more: remove their files. (Before that a kill would leave the
        next daemon a trigger without its counts.)"""
        for table in self._dropped:
            try:
                with contextlib.suppress(FileNotFoundError):
                    table.remove()
            except OSError as error:
                daemon_log("hist-file-left", reason=error.strerror)
        self._dropped.clear()

    def bytes_of(self, instance: int) -> int:
        return self._sums[instance]

    def remove_the_rest(self) -> None:
        """After everything was adopted: remove files of unused tables, except those for `recycle`."""
        used = {table.path for table in (*self.holders, *self._dropped)}
        for path in self._files():
            if str(path) not in used:
                remove(path)

    def _check(self, instance: int, size: int) -> None:
        held = self.bytes_of(instance)
        total = self._sums.total()
        if held + size > self._instance_bytes or total + size > self._in_all:
            raise TraceError(
                errno.ENOMEM,
                f"a table of {size >> 10} KiB: the instance has {held >> 10} KiB of at most"
                f" {self._instance_bytes >> 10}, and all have {total >> 10} of {self._in_all >> 10};"
                " choose a smaller size=, or remove histograms",
            )
        if size >> 10 > self._free_memory_kb():
            raise TraceError(errno.ENOMEM, f"too little memory for a table of {size >> 10} KiB")

    def _make(self, bits: int, key_size: int, nr_words: int) -> HistTable:
        self._last += 1
        path = self._folder / f"hist.{self._last}"
        try:
            return HistTable.create(bits, key_size, nr_words, str(path))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise TraceError(error.errno or errno.EIO, f"{path}: {error.strerror}") from error
            warn_of_memory(self._folder, error)
        return HistTable.create(bits, key_size, nr_words)

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if is_table_name(path.name)]
        except OSError:
            return []
