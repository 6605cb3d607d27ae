"""Checks by a program's file whether the preload library can be loaded into it.

ld.so(8) loads the libraries of LD_PRELOAD. So the program must be dynamically linked to glibc, have as many
bits as the library, and must not gain rights at exec (setuid, capabilities). The interpreter of a script is
not checked.
"""

import os
import shutil
import stat
import struct
import sys

import attrs

_PROGRAM_HEADER = struct.Struct("=I4xQ16xQ16x")
"""Members of Elf64_Phdr: p_type, p_offset, p_filesz."""

_PT_INTERP = 3
_MAX_HEADERS = 1000


@attrs.frozen
class Obstacle:
    """Why the library cannot be loaded."""

    text: str
    """The program `is ...`, and what to do."""
    ends_program: bool = False
    """With LD_PRELOAD the program does not start."""


_USE_MOUNT = "; if it uses the kernel's user_events, try --kernel-abi"
_USE_ROOT = (
    ", for which LD_PRELOAD is ignored; if it uses the kernel's user_events, it needs a mount, as root"
)


def obstacle(program: str) -> Obstacle | None:
    """None: no obstacle found. program: as for execvp(3)."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:4] != b"\x7fELF" or len(head) < 64 or head[5] != _our_byte_order():
                return None
            if head[4] == 1 and sys.maxsize > 1 << 32:
                return Obstacle(f"is a program of 32 bits{_USE_MOUNT}")
            if head[4] != 2:
                return None
            (start,), (count,) = struct.unpack_from("=Q", head, 32), struct.unpack_from("=H", head, 56)
            file.seek(start)
            table = file.read(_PROGRAM_HEADER.size * min(count, _MAX_HEADERS))
            whole = len(table) // _PROGRAM_HEADER.size * _PROGRAM_HEADER.size
            headers = _PROGRAM_HEADER.iter_unpack(table[:whole])
            found = [(offset, length) for kind, offset, length in headers if kind == _PT_INTERP]
            if not found:
                return Obstacle(f"is statically linked{_USE_MOUNT}")
            ((offset, length), *_) = found
            file.seek(offset)
            interpreter = file.read(min(length, 4096)).rstrip(b"\0")
            status = os.fstat(file.fileno())
    except (OSError, ValueError, struct.error):
        return None
    if b"musl" in os.path.basename(interpreter):
        return Obstacle(f"is linked with musl{_USE_MOUNT}", ends_program=True)
    if _gains_rights(path, status):
        return Obstacle(f"gets more rights than you have{_USE_ROOT}")
    return None


def _our_byte_order() -> int:
    return 1 if sys.byteorder == "little" else 2


def _gains_rights(path: str, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid():
        return True
    try:
        return bool(os.geteuid() and os.getxattr(path, "security.capability"))
    except OSError:
        return False
