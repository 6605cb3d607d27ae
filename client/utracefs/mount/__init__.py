"""The tree as a directory of files, for all programs: `utracefs mount DIR`.

`serving` is the process, `file_system` answers requests, `attaching` mounts it on the directory.
"""

from utracefs.mount.serving import End, Mount, Signals, connect, signals

__all__ = ["End", "Mount", "Signals", "connect", "signals"]
