"""Every call that changes a file of the daemon's, on /dev/shm or in memory: the names are those of `os`.

Modules call them here, not in `os`, so that a simulation can let each one fail, do half of its work, or be
the last one before a kill (tests/simulation/disk.py).
"""

from os import (
    fstatvfs,
    ftruncate,
    memfd_create,
    mkdir,
    open,
    posix_fallocate,
    pwrite,
    rename,
    truncate,
    unlink,
)
from shutil import rmtree

__all__ = [
    "fstatvfs",
    "ftruncate",
    "memfd_create",
    "mkdir",
    "open",
    "posix_fallocate",
    "pwrite",
    "rename",
    "rmtree",
    "truncate",
    "unlink",
]
