"""A program one of whose pages belongs to a file whose server does not answer: looking at it hangs."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path

from utracefs.mount import abi
from utracefs.mount.abi import Header, Opcode
from utracefs.mount.attaching import attach, detach

_FILE = stat.S_IFREG | 0o666
_FOLDER = stat.S_IFDIR | 0o777

PROGRAM = """
import ctypes, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
page = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
print(os.getpid(), ctypes.addressof(ctypes.c_char.from_buffer(page)), flush=True)
sys.stdin.readline()
mmap.mmap(-1, 1 << 30)  # it wants the lock of the address space for itself
sys.stdin.readline()
"""


class HangingFile:
    """A file system with one file, `file`, that is never read; until `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self.path = directory / "file"
        self._device = attach(self._directory)
        self._end, self._ending = os.pipe()
        self.read_begun = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Hanging calls fail. A second call does nothing."""
        if self._thread.is_alive():
            detach(self._directory)
            os.close(self._ending)
            self._thread.join()
            # Nobody serves it any more: the kernel ends what waits.
            os.close(self._device)
            os.close(self._end)

    def _serve(self) -> None:
        file, top = ([2, 4096, 8, *[0] * 6, mode, 1, 0, 0, 0, 4096, 0] for mode in (_FILE, _FOLDER))
        replies: dict[int, bytes] = {
            Opcode.INIT: abi.INIT_OUT.pack(abi.MAJOR, abi.MINOR, 4096, 0, 9, 9, 4096, 1, 0, 0, *[0] * 8),
            Opcode.LOOKUP: abi.ENTRY_OUT.pack(2, 1, 60, 60, 0, 0, *file),
            Opcode.OPEN: abi.OPEN_OUT.pack(1, 0, 0),
        }
        while True:
            if self._end in select.select([self._device, self._end], [], [])[0]:
                return
            try:
                header, _ = Header.from_request(os.read(self._device, 1 << 17))
            except BlockingIOError:
                continue
            if header.opcode == Opcode.READ:
                self.read_begun.set()
            elif header.opcode not in (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT):
                if header.opcode == Opcode.GETATTR:
                    body = abi.ATTR_OUT.pack(60, 0, 0, *(top if header.node_id == abi.ROOT_ID else file))
                else:
                    body = replies.get(header.opcode, b"")
                reply = abi.OUT_HEADER.pack(16 + len(body), 0 if body else -errno.ENOSYS, header.unique)
                with contextlib.suppress(OSError):  # nobody waits for it any more
                    os.write(self._device, reply + body)


class HangingProgram:
    """One that maps it, at `address`; until `close`, after the file's."""

    def __init__(self, file: HangingFile) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, file.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.pid, self.address = (int(word) for word in self._process.stdout.readline().split())

    def lock(self) -> None:
        """It asks for more memory, and waits for that behind everybody who looks at its page."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
