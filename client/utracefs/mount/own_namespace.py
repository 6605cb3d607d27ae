"""A mount that only one command sees: in a mount namespace of its own the tree is mounted on a directory, for
programs that use the kernel's user_events at /sys/kernel/tracing.

    who runs the command               `python -m utracefs.mount.own_namespace`          the command
    OwnNamespace                  ──▶  unshare, mount
                                  ◀──  namespaces, root, working directory
    fork                                                                           enter, exec
    pidfd                         ──▶  serves; ends when the command has ended

With CAP_SYS_ADMIN it is only a mount namespace, else a user namespace, too, which needs no rights: user and
group are the same as outside, and all others are `nobody` there. The command has no capability in it (exec of
a program whose user is not 0 leaves none; capset(2) before that ensures it).

The serving process is in the same user namespace, where it has all capabilities: so it may read and write the
memory of the command and of its children, regardless of Yama (cap_ptrace_access_check in the kernel).
"""

import contextlib
import ctypes
import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Final

from utracefs.mount.attaching import MNT_DETACH, check, has_cap_sys_admin, libc
from utracefs.tree.closing import Closing
from utracefs_protocol.own_processes import in_background, prepare

MOUNTPOINT: Final = "/sys/kernel/tracing"
"""Where programs look for user_events_data."""

TO_ALLOW_THEM: Final = (
    "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone,"
    " kernel.apparmor_restrict_unprivileged_userns; a container needs --cap-add SYS_ADMIN"
)
"""Settings that allow user namespaces."""

START_S: Final = 20.0
"""Most of it is for Python's imports; for machines that swap."""

END_S: Final = 5.0

_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWUSER: Final = 0x10000000
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_SLAVE: Final = 1 << 19
_CAPABILITY_VERSION_3: Final = 0x20080522

_WRITTEN_BY_TRACE_CMD: Final = ("/proc/sys/kernel/ftrace_enabled", "/proc/sys/kernel/kptr_restrict")

_READY: Final = b"ready"


class OwnNamespace(Closing):
    """A context manager: mounts the tree of the daemon of `directory` on `mountpoint`, absolute, in a
    namespace that `enter` enters. If that is not possible, OSError with a text that says what to do, about
    its filename."""

    def __init__(self, directory: str, mountpoint: str = MOUNTPOINT) -> None:
        self._mountpoint = mountpoint
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._fds: list[int] = []
        self._pidfd = -1
        with theirs:
            fd = theirs.fileno()
            self.server = in_background(fd, "utracefs.mount.own_namespace", directory, mountpoint, str(fd))
        try:
            self._take_over()
        except BaseException:
            self.close()
            raise

    def _take_over(self) -> None:
        self.sock.settimeout(START_S)
        try:
            message, self._fds, _, _ = socket.recv_fds(self.sock, 4096, 4)
        except TimeoutError:
            raise OSError(
                errno.ETIMEDOUT, f"is not mounted after {START_S:.0f} s", self._mountpoint
            ) from None
        for fd in self._fds:
            os.set_inheritable(fd, False)
        if message != _READY:
            number, about, text = (message.decode("utf-8", "surrogateescape") or "\0\0").split("\0")
            reason = text or "the mount ended without a message"
            raise OSError(int(number or errno.EIO), reason, about or self._mountpoint)

    def enter(self) -> None:
        """Call it in a child between fork and exec: enters the namespace, with the same root and working
        directory. The child must have one thread. The mount lasts until it ends, even if we end before."""
        # Sent here, since the command may run, and we be killed, before `started`. The daemon may have ended.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.sock, [b"pidfd"], [os.pidfd_open(os.getpid())])
        root, cwd, *namespaces = self._fds
        for fd in namespaces:
            check(libc.setns(fd, 0), "setns")
        os.fchdir(root)
        os.chroot(".")
        os.fchdir(cwd)
        if len(namespaces) > 1:
            header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
            check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")

    def started(self, pid: int) -> None:
        """The child that entered, not waited for yet."""
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        """The mount ends with the command; if that still runs it keeps the mount."""
        self.sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        left_behind = False
        if self._pidfd >= 0:
            left_behind = not select.select([self._pidfd], [], [], 0)[0]
            os.close(self._pidfd)
            self._pidfd = -1
        if not left_behind:
            try:
                self.server.wait(END_S)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()


def unshare(mountpoint: str = MOUNTPOINT) -> list[str]:
    """Enter a new mount namespace with private propagation; returns the names in /proc/self/ns of the new
    namespaces, in the order in which to enter them. This process must have one thread. OSError with what to
    do."""
    if not os.path.isdir(mountpoint):
        text = "there is no such directory, so nothing can be mounted on it"
        if mountpoint == MOUNTPOINT:
            text += (
                " (sysfs is not mounted, or the kernel has no CONFIG_TRACING); without"
                " --kernel-abi the command gets the preload library instead"
            )
        raise OSError(errno.ENOENT, text, mountpoint)
    if has_cap_sys_admin():
        check(libc.unshare(_CLONE_NEWNS), "unshare")
        _be_slave(mountpoint)
        return ["mnt"]
    uid, gid = os.geteuid(), os.getegid()
    try:
        check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(text)
    except OSError as error:
        text = f"run this as root, or allow them ({TO_ALLOW_THEM}; a chroot has none)"
        text = f"no user namespace for the command ({error.strerror}): {text}"
        raise OSError(error.errno, text, mountpoint) from None
    return ["user", "mnt"]


def _be_slave(directory: str) -> None:
    """Later mounts outside are visible here, too, and later mounts here not outside. In a chroot "/" need not
    be a mount: it lies on one above, where `..` leads a process that is outside of its root."""
    root, cwd = os.open("/", os.O_PATH), os.open(".", os.O_PATH)
    try:
        os.chroot(directory)
        os.fchdir(root)
        while libc.mount(b"none", b".", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None):
            check(ctypes.get_errno() != errno.EINVAL or os.path.samefile(".", ".."), "/")
            os.chdir("..")
    finally:
        os.fchdir(root)
        os.chroot(".")
        os.fchdir(cwd)
        os.close(root)
        os.close(cwd)


def _hide_kernel_trace() -> None:
    """In this namespace, hide the machine's own tracefs except below the future mount on MOUNTPOINT, and
    replace two of its settings by files of the same content.

    trace-cmd and other users of libtracefs take the first tracefs in /proc/mounts, by its type, and mount one
    on MOUNTPOINT, over ours, if they find none. trace-cmd writes to the settings, and fails if it may not.
    Calls that are not allowed here, in a container, are not allowed to these programs either.
    """
    found = set()
    with open("/proc/self/mounts", "rb") as file:
        for line in file:
            _, path, kind = line.split()[:3]
            if kind == b"tracefs":
                found.add(path)
    for path in found - {MOUNTPOINT.encode()}:
        libc.umount2(path, MNT_DETACH)
    if MOUNTPOINT.encode() not in found:
        libc.mount(b"tracefs", MOUNTPOINT.encode(), b"tracefs", ctypes.c_ulong(0), None)
    for setting in _WRITTEN_BY_TRACE_CMD:
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix="utracefs-") as file:
            shutil.copyfile(setting, file.name)
            libc.mount(file.name.encode(), setting.encode(), None, ctypes.c_ulong(_MS_BIND), None)


def _serve(directory: str, mountpoint: str, sock: socket.socket) -> None:
    from utracefs.mount.serving import Mount, connect, signals

    names = unshare(mountpoint)
    if mountpoint == MOUNTPOINT:
        _hide_kernel_trace()
    with (
        signals() as stop,
        Mount(mountpoint, connect(directory), allow_other=True) as mounted,
    ):
        fds = [os.open("/", os.O_PATH), os.open(".", os.O_PATH)]
        fds += [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in names]
        socket.send_fds(sock, [_READY], fds)
        for fd in fds:
            os.close(fd)
        threading.Thread(target=_end_with_the_command, args=[sock], daemon=True).start()
        mounted.serve(stop)


def _end_with_the_command(sock: socket.socket) -> None:
    """The signal ends Mount.serve. Without a command: when it is certain that there will be none."""
    _, fds, _, _ = socket.recv_fds(sock, 16, 1)
    if fds:
        select.select(fds, [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def main(directory: str, mountpoint: str, fd: str) -> None:
    """Report the result over the socket `fd`: `ready`, or errno, filename and reason, separated by NULs."""
    with socket.socket(fileno=int(fd)) as sock:
        try:
            _serve(directory, mountpoint, sock)
        except OSError as error:
            text = f"{error.errno or errno.EIO}\0{error.filename or ''}\0{error.strerror or error}"
            with contextlib.suppress(BrokenPipeError):
                sock.send(text.encode("utf-8", "surrogateescape"))
            sys.exit(1)


if __name__ == "__main__":
    prepare()
    main(*sys.argv[1:])
