"""Memory for rings that a client reads: it cannot be taken away."""

import errno
import fcntl
import mmap
import os

import pytest

from utracefsd.machine import disk
from utracefsd.machine._sealed_memory import SealedMemory


def test_it_is_there_and_stays() -> None:
    memory = SealedMemory("utracefs-test", 8192)
    with mmap.mmap(memory.fd, 0) as mapping:
        assert (len(mapping), memory.size) == (8192, 8192)
        assert os.fstat(memory.fd).st_blocks * 512 >= 8192
        for size in (4096, 16384):
            with pytest.raises(OSError) as caught:
                os.ftruncate(memory.fd, size)
            assert caught.value.errno == errno.EPERM
        with pytest.raises(OSError):
            fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert not os.get_inheritable(memory.fd)
        memory.close()
        memory.close()
        assert memory.fd == -1
        mapping[0] = 1  # the client's own


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(disk, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        SealedMemory("utracefs-test", 4096)
    assert sorted(os.listdir("/proc/self/fd")) == before
