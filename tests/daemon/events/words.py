"""A program's shared words."""

import fcntl
import os
import struct

from utracefsd.events._enable_word import PAGE_SIZE


class Memory:
    """A memfd, one page unless said; a program keeps the words of its enablers in such memory."""

    def __init__(self, size: int = PAGE_SIZE, seals: int = fcntl.F_SEAL_SHRINK) -> None:
        self.fd = os.memfd_create("words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def word(self, offset: int, size: int = 4) -> int:
        return int.from_bytes(os.pread(self.fd, size, offset), "little")

    def set(self, offset: int, value: int) -> None:
        os.pwrite(self.fd, struct.pack("<I", value), offset)


def mappings() -> int:
    """How many pages of such memory this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:words" in line for line in maps)
