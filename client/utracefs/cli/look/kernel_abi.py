"""Whether programs that use the kernel's user_events could be traced here, for `utracefs doctor`.

| way | needs |
|---|---|
| preload | the library, and that it loads |
| `utracefs mount`, `--kernel-abi` | FUSE, /sys/kernel/tracing, a namespace; the right to write enable words |

Only a library that does not load is a FAIL: programs with the client library need none of it.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

from utracefs.cli import c_client
from utracefs.cli.common import OTHER_PID_NAMESPACE, Finding, fail, note, ok, peer_pid
from utracefs.mount.attaching import has_cap_sys_admin
from utracefs.mount.own_namespace import MOUNTPOINT, TO_ALLOW_THEM
from utracefs.mount.processes.access import why_not

_FUSE = "/dev/fuse"
_CLONE_NEWNS = 0x20000
_CLONE_NEWUSER = 0x10000000
_LOAD_S = 10.0


def examine_kernel_abi(data_socket: str | None) -> Iterator[Finding]:
    """data_socket: the daemon's, None without one."""
    yield _preload()
    if not os.path.exists("/proc/self/status"):
        yield note("/proc", "is not mounted: no `utracefs mount`, no `--kernel-abi`")
        return
    yield _fuse()
    yield _mountpoint()
    yield _namespaces()
    reason = why_not()
    if reason is None:
        yield ok("ptrace_scope", "a mount may write the enable words of programs of its user")
    else:
        yield note("ptrace_scope", reason)
    if data_socket is not None:
        yield from _pid_namespace(data_socket)
    yield _of_the_kernel()


def _preload() -> Finding:
    library = c_client.preload_library()
    if library is None:
        text = (
            "was not built (make and gcc are needed); programs that use the kernel's user_events need a mount"
        )
        return note("preload library", text)
    env = {**os.environ, "LD_PRELOAD": library}
    try:
        done = subprocess.run(
            ["/bin/true"],
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOAD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return fail("preload library", f"{library}: a program with it does not run: {error}")
    if done.returncode or done.stderr:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        return fail("preload library", f"{library} does not load: {said}")
    return ok("preload library", f"{library} loads; `record` and others use it")


def _fuse() -> Finding:
    try:
        os.close(os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        todo = {
            errno.EACCES: f"chmod 666 {_FUSE}, as udev has it",
            errno.EPERM: "a container needs --device /dev/fuse",
        }.get(error.errno or 0, "modprobe fuse; a container needs --device /dev/fuse")
        return note("FUSE", f"no mount can be made: {_FUSE}: {error.strerror} ({todo})")
    if not has_cap_sys_admin() and shutil.which("fusermount3") is None:
        return note(
            "FUSE",
            "is there, but `utracefs mount` needs fusermount3 where you are not root: apt install fuse3",
        )
    return ok("FUSE", "mounts can be made")


def _mountpoint() -> Finding:
    if os.path.isdir(MOUNTPOINT):
        return ok(MOUNTPOINT, "is there, `--kernel-abi` mounts on it")
    text = "is not there (sysfs is not mounted, or the kernel has no CONFIG_TRACING): no `--kernel-abi`"
    return note(MOUNTPOINT, text)


def _namespaces() -> Finding:
    if has_cap_sys_admin():
        return ok("namespaces", "allowed, we have CAP_SYS_ADMIN")
    error = try_user_namespace()
    if error:
        return note(
            "namespaces",
            f"no user namespace, so no `--kernel-abi` but for root: {os.strerror(error)} ({TO_ALLOW_THEM})",
        )
    return ok("namespaces", "a user namespace can be made")


def try_user_namespace() -> int:
    """0, or the errno of unshare(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if not pid:
        os._exit(ctypes.get_errno() or errno.EIO if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _pid_namespace(data_socket: str) -> Iterator[Finding]:
    """The kernel returns 0 for the pid of a daemon that our pid namespace does not have. One in a namespace
    below ours has a number in both, and does not see us."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(data_socket)
        pid = peer_pid(sock)
        if pid and pid_namespaces(pid) > 1:
            yield note(
                "pid namespace",
                f"the daemon {OTHER_PID_NAMESPACE}; their records have pid 0 and no name, and no mount takes"
                " their events",
            )
        elif pid:
            yield ok("pid namespace", "we see the daemon's process, and it ours")
        else:
            yield note(
                "pid namespace",
                "the daemon is outside of our namespace: mount the tree there, and bind its user_events_data"
                " into this container; the preload library and the clients work unchanged",
            )


def pid_namespaces(pid: int) -> int:
    """Number of nested namespaces of the process that are visible from ours (pid_namespaces(7))."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return next((len(line.split()) - 1 for line in file if line.startswith(b"NSpid:")), 1)


def _of_the_kernel() -> Finding:
    path = f"{MOUNTPOINT}/user_events_data"
    try:
        os.stat(path)
    except PermissionError:
        return note("kernel", f"may have user_events of its own; we may not look into {MOUNTPOINT}")
    except OSError:
        return ok("kernel", "shows no user_events of its own")
    return note("kernel", f"{path} exists: programs without the preload library or a mount use the kernel's")
