"""The tree as a directory of files, for every program: `utracefs mount DIR`.

`serving` is the process, `file_system` what it answers, `attaching` how it gets onto the directory.
"""

from utracefs.mount.serving import End, Mount, Signals, connect, signals

__all__ = ["End", "Mount", "Signals", "connect", "signals"]
