"""The daemon's tree for programs: files by path, and perf events, over the `tracefs` socket.

    with Tracefs() as tree:
        tree.write_file("events/user_events/http_request/enable", b"1\\n")
        print(tree.read_file("trace").decode(errors="replace"))

Paths are relative to the root of the tree, `trace` and not `/trace` (a leading `/` is dropped), as str with
surrogate escapes for bytes that are not UTF-8. Contents are bytes. Before every call the daemon takes in all
that applications sent before it (docs/protocol.md, section 4).

Errors: OSError with errno, the daemon's reason, and the path as `filename`.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from typing import Any

from utracefs.tree.closing import Closing
from utracefs.tree.rpc import Rpc, checked
from utracefs_protocol.messages import tracefs as messages
from utracefs_protocol.messages.tracefs import PerfAttr, Stat
from utracefs_protocol.places import TRACEFS_SOCKET
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["PerfAttr", "Stat", "Tracefs"]


class Tracefs(Closing):
    """A blocking client; a context manager that closes the connection. Do not share it between threads.

    directory: that of the daemon's sockets; None: UTRACEFS_DIR, then the user's, then the system's.
    timeout_s: longest wait for an answer; None: no limit, which reading an empty `trace_pipe` may need.

    OSError without a daemon: FileNotFoundError, ConnectionRefusedError, PermissionError, with the socket's
    path.
    """

    def __init__(self, directory: str | None = None, *, timeout_s: float | None = None) -> None:
        self._rpc = Rpc(TRACEFS_SOCKET, directory, timeout_s=timeout_s)
        self._paths: dict[int, str] = {}

    @property
    def directory(self) -> str:
        """Directory of the daemon's sockets: the value of UTRACEFS_DIR for programs that should find it."""
        return self._rpc.directory

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set the longest wait for an answer; None: no limit."""
        self._rpc.set_timeout(timeout_s)

    def connect_again(self) -> None:
        """Connect to the next daemon in the same directory. Handles are invalid then. OSError: there is no
        daemon yet."""
        rpc = Rpc(TRACEFS_SOCKET, self.directory, timeout_s=self._rpc.timeout_s)
        self.close()
        self._rpc = rpc

    def close(self) -> None:
        """End the connection; the daemon closes its handles."""
        self._paths.clear()
        self._rpc.close()

    # Whole files.

    def read_file(self, path: str) -> bytes:
        """The whole file. EFBIG above 64 MiB: open it and read in pieces."""
        data: bytes = self._rpc.call(messages.ReadFile(_path(path)), _shown(path))
        return data

    def read_files(self, paths: Iterable[str]) -> list[bytes | OSError]:
        """Many files in few round trips; for one that cannot be read, its error is in its place."""
        return self._rpc.call_many((messages.ReadFile(_path(path)), _shown(path)) for path in paths)

    def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
        """One write, after opening like the shell's `>`, or `>>` without truncate. Returns the bytes taken:
        `set_event` takes a word at a time."""
        taken: int = self._rpc.call(messages.WriteFile(_path(path), data, truncate), _shown(path))
        return taken

    def refusal(self, path: str, data: bytes, truncate: bool = True) -> OSError | None:
        """`write_file`; returns the daemon's refusal; None: it took the data. ConnectionError, TimeoutError:
        it has ended."""
        try:
            self.write_file(path, data, truncate)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            return error
        return None

    def write_all(self, path: str, data: bytes, truncate: bool = True) -> None:
        """Repeat `write_file` until all is taken, like a shell. EIO when a write takes nothing."""
        while True:
            taken = self.write_file(path, data, truncate)
            data = data[taken:]
            if not data:
                return
            if taken <= 0:
                raise OSError(errno.EIO, f"{len(data)} bytes were not taken", _shown(path))
            truncate = False

    def list_dir(self, path: str = "") -> list[tuple[str, str]]:
        """(name, kind) of every entry; kind is `d` or `f`."""
        entries = self._rpc.call(messages.ListDir(_path(path)), _shown(path))
        found = [checked(messages.DirEntry.from_wire, entry, _shown(path)) for entry in entries]
        return [(text_of(entry.name), entry.kind) for entry in found]

    def stat(self, path: str) -> Stat:
        found = self._rpc.call(messages.StatPath(_path(path)), _shown(path))
        return checked(Stat.from_wire, found, _shown(path))

    def mkdir(self, path: str) -> None:
        """Make an instance, below `instances/` only (EPERM elsewhere)."""
        self._rpc.call(messages.Mkdir(_path(path)), _shown(path))

    def rmdir(self, path: str) -> None:
        self._rpc.call(messages.Rmdir(_path(path)), _shown(path))

    # Open files.

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open a file; returns a handle. flags are the O_ numbers. It is closed by `close_handle`, or with
        the connection."""
        handle: int = self._rpc.call(messages.Open(_path(path), flags), _shown(path))
        self._paths[handle] = _shown(path)
        return handle

    def read(self, handle: int, size: int) -> bytes:
        """Read at most `size` bytes; empty at the end of the file. Waits for data unless it was opened with
        O_NONBLOCK (then BlockingIOError)."""
        data: bytes = self._rpc.call(messages.Read(handle, size), self._about(handle))
        return data

    def ask_read(self, handle: int, size: int) -> int:
        """Begin a `read`; returns the argument of `finish_read` and `end_read`. `fileno` is readable when
        it is answered."""
        return self._rpc.ask(messages.Read(handle, size))

    def finish_read(self, asked: int, handle: int) -> bytes:
        """The result of a read that `ask_read` began; waits for it."""
        data: bytes = self._rpc.answer(asked, self._about(handle))
        return data

    def end_read(self, asked: int, handle: int) -> bytes:
        """Close the file during a read; returns the bytes that the read took out of it nevertheless."""
        data: bytes | None = self._rpc.end_ask(asked, messages.Close(handle), self._about(handle))
        self._paths.pop(handle, None)
        return data or b""

    def fileno(self) -> int:
        """Descriptor of the connection."""
        return self._rpc.fileno()

    def read_many(self, reads: Sequence[tuple[int, int]]) -> list[bytes | OSError]:
        """Carry out many reads, (handle, size) each, in few round trips; results in the same order. Errors
        are results, also ConnectionError and TimeoutError."""
        calls = [(messages.Read(handle, size), self._about(handle)) for handle, size in reads]
        return self._rpc.call_many(calls, keeps=True)

    def seek(self, handle: int, offset: int) -> None:
        """lseek(2) with SEEK_SET; ESPIPE for a stream."""
        self._rpc.call(messages.Seek(handle, offset), self._about(handle))

    def write(self, handle: int, data: bytes) -> int:
        """Write; returns the bytes taken."""
        taken: int = self._rpc.call(messages.Write(handle, data), self._about(handle))
        return taken

    def poll(self, handle: int) -> None:
        """Wait until the file is ready: `trace_pipe` and `trace_pipe_raw` of one cpu when `buffer_percent` of
        its sub-buffers are filled, a perf event when its ring has `wakeup_watermark` bytes."""
        self._rpc.call(messages.Poll(handle), self._about(handle))

    def close_handle(self, handle: int) -> None:
        """Close a file or a perf event."""
        self._rpc.call(messages.Close(handle), self._about(handle))
        self._paths.pop(handle, None)

    def open_pages(
        self, instance: str, *, size: int, watermark: int, lossless_us: int = 0
    ) -> tuple[int, int, int]:
        """A stream of the instance's pages; returns (handle, ring, doorbell), descriptors for the caller to
        close. size, watermark: bytes. lossless_us: how long programs may wait for room."""
        about = f"the pages of {instance or 'the top instance'}"
        attr = messages.StreamAttr(
            (), (bytes_of(instance),), None, size, watermark, pages=True, lossless_us=lossless_us
        )
        opened = checked(messages.StreamOpened.from_wire, self._rpc.call(attr, about), about)
        self._paths[opened.handle] = about
        ring, doorbell = self._rpc.take_fds()
        return opened.handle, ring, doorbell

    def ready(self, handle: int) -> bool:
        """Whether a perf event or a stream has something to read; a stream of pages then has all."""
        is_ready: bool = self._rpc.call(messages.Ready(handle), self._about(handle))
        return is_ready

    # perf events.

    def perf_event_open(self, attr: PerfAttr) -> tuple[int, int | None]:
        """Open a perf event; returns (handle, descriptor of the ring). The caller maps and closes the
        descriptor; None without `data_pages`.

        `read(handle, 8)` gives the count as a little-endian u64.
        """
        about = str(attr.config) if attr.name is None else text_of(attr.name)
        opened = checked(messages.PerfOpened.from_wire, self._rpc.call(attr, about), about)
        self._paths[opened.handle] = about
        fds = self._rpc.take_fds()
        for superfluous in fds[1:]:
            os.close(superfluous)
        return opened.handle, fds[0] if fds else None

    def perf_ioctl(self, handle: int, name: str, arg: Any = 0) -> Any:
        """ENABLE, DISABLE, RESET, PERIOD, ID, SET_FILTER."""
        return self._rpc.call(messages.PerfIoctl(handle, name, arg), self._about(handle))

    def _about(self, handle: int) -> str:
        return self._paths.get(handle, f"handle {handle}")


def _path(path: str) -> bytes:
    return bytes_of(path.lstrip("/"))


def _shown(path: str) -> str:
    return path.lstrip("/") or "/"
