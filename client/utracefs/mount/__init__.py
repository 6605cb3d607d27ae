"""The tree as a directory of files, for all programs: `utracefs mount DIR`.

The mount is a process of its own. `attaching` mounts it on the directory; `serving` reads the kernel's
requests from /dev/fuse and sends replies; `file_system` implements them, each as a generator (`operation`)
that waits for answers of the daemon; `channel` is a connection to the daemon that never blocks. So any number
of reads can wait at a time, and an interrupt is a message (`cancel`). `user_events_data` is the kernel's file
of that name: `user_reg` has its structs, `enablers` the enablers that the daemon reports changes of. Only
`processes/memory_thread`, a second thread, accesses other processes' memory, because a page may never arrive.
"""

from utracefs.mount.serving import End, Mount, Signals, connect, signals

__all__ = ["End", "Mount", "Signals", "connect", "signals"]
