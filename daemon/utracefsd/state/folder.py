"""The folder of the state: its files, and when each may be removed.

It is the folder of the status file (server/runtime.py: owned by the daemon's user, mode 0700, locked while a
daemon runs) and holds

    user_events_status     the status bytes; never taken over (events/status_file.py)
    state                  the log: events, instances and their settings, names of threads (log.py), in a file
                           with reserved space (log_file.py)
    buffer.I.N/cpu0 ...    the ring buffer of the instance with number I; N grows when the whole buffer is
                           replaced (another sub-buffer size). Absent when there was no space for it: then the
                           ring buffer is in the daemon's own memory and ends with it
    cells                  values that triggers change per record (consumers/ftrace/event/include/)
    hist.N                 the table of a histogram (consumers/ftrace/hist/include/hist_table.h)
    journal                how far each data ring is consumed (intake/include/journal.h)
    room                   pages reserved for the status files of later daemons: programs may still map the
                           old status file, so its pages are not free yet
    set-aside/             the last state that a daemon could not use

The log says which buffer folder is in use. A new folder is filled, then named in the log, and only then the
old one is removed. A daemon killed in between leaves one folder too many, which the next daemon removes; it
never leaves one too few. Only a log that is behind (log_file.py) may name a removed folder: that instance
continues with an empty buffer.

A state that cannot be used (another version, foreign, damaged) is moved to set-aside/, one line in the
daemon's log reports it, and the daemon starts with an empty state. The journal stays even then: producers
bring back data rings that are partly consumed. A file that cannot be read for a reason outside of it (EMFILE,
ENOMEM, EIO) is not damaged: the daemon does not start, and the state stays for the next attempt.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import shown
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.hist.tables import is_table_name
from utracefsd.daemon_log import daemon_log
from utracefsd.machine import disk
from utracefsd.machine.kept_file import check_readable, remove
from utracefsd.state.log import StateError, Taken, TakenInstance, is_buffer_folder, parse_log
from utracefsd.state.log_file import FIRST_ROOM, LogFile, read_log_file

LOG = "state"
JOURNAL = "journal"
CELLS = "cells"
ROOM = "room"
SET_ASIDE = "set-aside"
_BUFFER = "buffer."
_STARTS = 8
"""Number of status files to reserve space for: programs may keep the old ones mapped, and a later daemon
needs a new one even if /dev/shm is full."""
_BUFFER_LINE = 64
"""Limit of a line of the log that names a buffer folder, in bytes."""


class StateFolder:
    """The files of one state, in `path`, which must exist and be locked by this daemon."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.log = self.path / LOG
        self.journal = self.path / JOURNAL
        self.cells = self.path / CELLS
        self.on_buffer_moved: Callable[[int], None] = lambda number: None
        """An instance gets another buffer folder, which the log must name before the old one is removed."""
        self.check_room: Callable[[int], None] = lambda nr_bytes: None
        """Raises TraceError when the log has no space for so many bytes."""
        self._buffers: dict[int, BufferFolders] = {}
        self._warned = False

    def used_bytes(self) -> int:
        """Memory of all files."""
        used = 0
        for path in self.path.rglob("*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                used += 512 * path.lstat().st_blocks
        return used

    def free_bytes(self) -> int:
        """Memory that is left for further files; 0: unknown."""
        try:
            found = os.statvfs(self.path)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def give_room(self, nr_bytes: int) -> None:
        """Free so many bytes of the reserved space for a daemon that starts."""
        with contextlib.suppress(OSError):
            path = self.path / ROOM
            disk.truncate(path, max(0, path.lstat().st_size - nr_bytes))

    def keep_room(self, nr_bytes: int) -> bool:
        """Reserve so many bytes for each of some later starts. False: there is less space than that."""
        try:
            fd = disk.open(self.path / ROOM, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            for at in range(os.fstat(fd).st_size, _STARTS * nr_bytes, nr_bytes):
                disk.posix_fallocate(fd, at, nr_bytes)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def take_over(self, nr_cpus: int) -> Taken | None:
        """The state of the previous daemon; None: there is none, or it was set aside. UnreadableError."""
        self._make_way()
        remove(self.path / f"{LOG}.new")  # left by a daemon that was killed while it made one
        try:
            found = self._read_log()
            if found is None:
                return None
            data, behind = found
            taken = parse_log(data)
            for instance in taken.instances.values():
                if behind and not (self.path / instance.buffer_folder).exists():
                    instance.buffer_folder = ""
                self._adopt_buffer(instance, nr_cpus)
        except StateError as error:
            self.set_aside(str(error))
            return None
        for number, instance in taken.instances.items():
            self._buffers[number] = BufferFolders(self, number, instance.buffer, instance.buffer_folder)
        self.remove_unused_buffers()  # now, so that unused folders take no space from a new one
        if behind:
            taken.ended = False
            daemon_log("state-was-full")
        return taken

    def buffers_of(self, number: int) -> "BufferFolders":
        """The buffer folders of the instance of that number."""
        return self._buffers.setdefault(number, BufferFolders(self, number))

    def open_log(self) -> LogFile:
        """The log that was taken over, or a new one, with all the space that it needs at first. OSError: no
        space for one."""
        if self.log.exists():
            return LogFile.open(self.log)
        try:
            return LogFile.make(self.log, FIRST_ROOM)
        except OSError:
            return LogFile.make(self.log, 1)

    def _make_way(self) -> None:
        """Move away anything that is not a regular file and has the name of one of our files."""
        for name in (LOG, JOURNAL, CELLS, ROOM, f"{LOG}.new", f"{JOURNAL}.new", f"{CELLS}.new"):
            path = self.path / name
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    continue
                self._move_aside(path)
                daemon_log("state-file-foreign", path=path, aside=self.path / SET_ASIDE)
            except FileNotFoundError:
                pass
            except OSError as error:
                daemon_log("state-file-in-the-way", path=path, reason=error.strerror)

    def _move_aside(self, path: Path) -> None:
        """FileNotFoundError."""
        with contextlib.suppress(FileExistsError):
            disk.mkdir(self.path / SET_ASIDE, 0o700)
        remove(self.path / SET_ASIDE / path.name)
        disk.rename(path, self.path / SET_ASIDE / path.name)

    def set_aside(self, why: str) -> None:
        """Move the files to set-aside/, replacing what was there, for a start with an empty state."""
        aside = self.path / SET_ASIDE
        daemon_log("state-set-aside", aside=aside, reason=why)
        self._buffers.clear()
        remove(aside)
        for path in [self.log, *self._buffer_folders(), *self._tables()]:
            with contextlib.suppress(FileNotFoundError):
                self._move_aside(path)

    def remove_former_state(self) -> None:
        """Except for its journal: producers' data rings do not depend on that state."""
        remove(self.log)
        remove(self.path / SET_ASIDE)
        self.remove_unused_buffers()
        for path in self._tables():
            remove(path)

    def remove_everything(self) -> None:
        """The daemon ends and leaves nothing to a later one."""
        self._buffers.clear()
        self.remove_former_state()
        for name in (LOG, JOURNAL, CELLS, ROOM):
            remove(self.path / name)
            remove(self.path / f"{name}.new")

    def remove_unused_buffers(self) -> None:
        """Remove buffer folders whose replacement was interrupted by a kill."""
        used = {buffers.folder for buffers in self._buffers.values()}
        for path in self._buffer_folders():
            if path.name not in used:
                remove(path)

    def warn_of_too_little_room(self, why: OSError) -> None:
        """A ring buffer is in the daemon's memory now; logged once, since others will follow."""
        if self._warned:
            return
        self._warned = True
        daemon_log("buffer-in-memory", folder=self.path, reason=why.strerror, mount=self.path.parent)

    def _adopt_buffer(self, instance: TakenInstance, nr_cpus: int) -> None:
        """A damaged one costs its own records only. StateError: it is for another number of cpus."""
        was_for = nr_cpus
        if instance.buffer_folder:
            try:
                instance.buffer = self._adopted(str(self.path / instance.buffer_folder))
            except (OSError, ValueError, MemoryError) as error:
                check_readable(self.path / instance.buffer_folder, error)
                self._lose_buffer(instance, error)
            else:
                was_for = instance.buffer.nr_cpus
        elif instance.settings.get("in_memory"):
            was_for = len(instance.settings["in_memory"]) - 1
        if was_for != nr_cpus:
            raise StateError(f"its ring buffer is for {was_for} cpus, and there are {nr_cpus}")

    def _lose_buffer(self, instance: TakenInstance, error: Exception) -> None:
        """Keep the files of a damaged ring buffer in set-aside; the instance gets an empty one."""
        name = f"the instance {shown(instance.name)}" if instance.name else "the top instance"
        daemon_log("buffer-lost", instance=name, aside=self.path / SET_ASIDE, reason=error)
        with contextlib.suppress(FileNotFoundError):
            self._move_aside(self.path / instance.buffer_folder)
        instance.buffer_folder = ""

    def _adopted(self, folder: str) -> RingBuffer:
        try:
            return RingBuffer.adopt(folder)
        except (OSError, ValueError) as error:
            check_readable(folder, error)
            buffer = RingBuffer.adopt(folder, guess=True)
            daemon_log("snapshot-guessed", reason=error)
            return buffer

    def _read_log(self) -> tuple[bytes, bool] | None:
        try:
            return read_log_file(self.log)
        except OSError as error:
            check_readable(self.log, error)
            raise StateError(f"the log cannot be read: {error.strerror}") from error

    def _tables(self) -> list[Path]:
        """Files of all histograms; the log says which are in use (`Tables.remove_the_rest`)."""
        return [path for path in _entries(self.path) if is_table_name(path.name)]

    def _buffer_folders(self) -> list[Path]:
        """Buffer folders of all instances, and of older versions."""
        return [path for path in _entries(self.path) if path.name.startswith(_BUFFER)]


@attrs.define(eq=False)
class BufferFolders:
    """The successive folders of one instance's ring buffer (`BufferStorage`)."""

    _state: StateFolder
    _number: int
    adopted: RingBuffer | None = None
    """The ring buffer that was taken over."""
    folder: str = ""
    """Name of the folder in use; empty: the buffer is in memory."""

    def new_folder(self) -> str:
        """A new, empty folder for a ring buffer; in use only after `switch_to`. OSError; ENOSPC also when the
        log has no space for its name."""
        try:
            self._state.check_room(_BUFFER_LINE)
        except TraceError as error:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        last = max((int(path.name.rpartition(".")[2]) for path in self._folders()), default=0)
        path = self._state.path / f"{_BUFFER}{self._number}.{last + 1}"
        disk.mkdir(path, 0o700)
        return str(path)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder that was not used after all."""
        remove(Path(folder))

    def switch_to(self, folder: str) -> None:
        """The instance records into `folder` from now on; remove the old folder."""
        self.folder = os.path.basename(folder)
        self._state.on_buffer_moved(self._number)
        self.remove_others()

    def leave(self, why: OSError) -> None:
        """The instance's ring buffer is in memory from now on."""
        self._state.warn_of_too_little_room(why)
        self.folder = ""
        self.adopted = None  # or the next instance with this number would get it
        self._state.on_buffer_moved(self._number)
        self.remove_others()
        self._state.on_buffer_moved(self._number)  # once more: the log itself may have had no space before

    def remove(self) -> None:
        """The instance is removed, and the log says so."""
        self.folder = ""
        self.adopted = None
        self.remove_others()

    def remove_others(self) -> None:
        for path in self._folders():
            if path.name != self.folder:
                remove(path)

    def _folders(self) -> list[Path]:
        return [path for path in _entries(self._state.path) if is_buffer_folder(path.name, self._number)]


def _entries(folder: Path) -> list[Path]:
    """Entries of the folder; none if it does not exist."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
