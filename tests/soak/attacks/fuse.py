"""A file system with faulty closes: a flush of `fails` is answered with EIO, one of `hangs` is not answered.

Written on /dev/fuse with struct (<linux/fuse.h>, protocol 7.31), since that needs no package. Only closes by
the daemon are faulty: an attacker closes his own descriptor without trouble.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import stat
import struct

from tests.soak.house import checked_call, mount

_FORGET, _INIT, _BATCH_FORGET = 2, 26, 42
_LOOKUP, _GETATTR, _OPEN, _RELEASE, _FLUSH, _OPENDIR = 1, 3, 14, 18, 25, 27
_NODES = {b"fails": 2, b"hangs": 3, b"slow": 4}
_MNT_DETACH = 2
_SLOW_REQUESTS = 20
"""A flush of `slow` is answered after so many further requests."""


class FuseFiles:
    """Mounted at `path` by root; `close` unmounts it and ends its server, which ends all hanging calls."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._daemon = mmap.mmap(-1, 8)
        os.mkdir(path)
        device = os.open("/dev/fuse", os.O_RDWR)
        try:
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
            mount("soak", path, "fuse.soak", 0, options)
            self._pid = os.fork()
            if not self._pid:
                _serve(device, self._daemon)
        finally:
            os.close(device)

    def watch(self, daemon_pid: int) -> None:
        """The process whose closes fail and hang."""
        self._daemon[:8] = struct.pack("<Q", daemon_pid)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            checked_call("umount2", self.path.encode(), _MNT_DETACH)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o666
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(device: int, daemon: mmap.mmap) -> None:
    """Until it is unmounted, or this process is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    delayed: list[tuple[int, int]] = []
    requests = 0
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):  # the request was interrupted
                continue
            os._exit(0)
        _, opcode, unique, node, _, _, tid, _ = struct.unpack_from("<IIQQIIII", request)
        requests += 1
        while delayed and delayed[0][0] <= requests:
            _answer(device, delayed.pop(0)[1])
        if opcode in (_FORGET, _BATCH_FORGET):
            continue
        if opcode == _INIT:
            _answer(device, unique, struct.pack("<IIIIHHII", 7, 31, 0, 0, 16, 12, 4096, 1) + bytes(36))
        elif opcode == _LOOKUP:
            found = _NODES.get(request[40:].rstrip(b"\0"))
            if found is None:
                _answer(device, unique, error=errno.ENOENT)
            else:
                _answer(device, unique, struct.pack("<QQQQII", found, 0, 60, 60, 0, 0) + _attributes(found))
        elif opcode == _GETATTR:
            _answer(device, unique, struct.pack("<QII", 60, 0, 0) + _attributes(node))
        elif opcode in (_OPEN, _OPENDIR):
            _answer(device, unique, bytes(16))
        elif opcode == _FLUSH and os.path.exists(f"/proc/{struct.unpack('<Q', daemon[:8])[0]}/task/{tid}"):
            if node == _NODES[b"fails"]:
                _answer(device, unique, error=errno.EIO)
            elif node == _NODES[b"slow"]:
                delayed.append((requests + _SLOW_REQUESTS, unique))
        elif opcode in (_FLUSH, _RELEASE):
            _answer(device, unique)
        else:
            _answer(device, unique, error=errno.ENOSYS)


def _answer(device: int, unique: int, body: bytes = b"", error: int = 0) -> None:
    with contextlib.suppress(OSError):  # ENOENT: it was interrupted
        os.write(device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
