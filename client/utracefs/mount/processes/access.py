"""May we access another process, and if not, why, and what to do?

The kernel decides (ptrace_may_access(), and security modules after it), but only returns EPERM or EACCES. The
checks here are made in its order.
"""

import errno
import os
from pathlib import Path
from typing import Final

YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
"""0 classic rules, 1 descendants and processes that allowed it, 2 CAP_SYS_PTRACE, 3 none. Missing without
Yama."""

_CAP_SYS_PTRACE: Final = 1 << 19

_OR_PRELOAD: Final = "or start the program with libutracefs-preload.so, which needs no such right"


def status_of(pid: int | str) -> dict[str, list[int]]:
    """Tgid, Uid, Gid (real, effective, saved, file system) and the masks SigPnd, CapPrm, CapEff of a thread,
    from /proc/PID/status. OSError: ESRCH."""
    found = {}
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except FileNotFoundError:
        raise OSError(errno.ESRCH, f"there is no process {pid}") from None
    for line in lines:
        name, _, value = line.partition(b":")
        if name in (b"Tgid", b"Uid", b"Gid"):
            found[name.decode()] = [int(number) for number in value.split()]
        elif name in (b"SigPnd", b"CapPrm", b"CapEff"):
            found[name.decode()] = [int(value, 16)]
    if "CapEff" not in found:  # it ended meanwhile
        raise OSError(errno.ESRCH, f"there is no process {pid}")
    return found


def why_not(pid: int | None = None) -> str | None:
    """Why the enable words of this process cannot be written, and what to do about it; None: they can.
    Without pid: what prevents it for processes of our own user in general.

    pid: the kernel's for FUSE: 0 if the process has no number in our pid namespace.
    """
    if pid is None:
        return _why_not_by_yama("a program of the same user")
    if pid <= 0:
        return (
            "the program is in a pid namespace that the mount does not see: run the mount in that container, "
            f"or where all are seen (the host), {_OR_PRELOAD}"
        )
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"there is no process {pid} in /proc here: it has ended, or /proc is mounted with hidepid"
    except OSError as error:
        try:
            return _why_not(pid, error)
        except OSError:
            return f"process {pid} has ended"
    return None


def _why_not(pid: int, error: OSError) -> str:
    theirs, ours = status_of(pid), status_of("self")
    about = f"process {pid}"
    uid, gid = ours["Uid"][1], ours["Gid"][1]
    if not ours["CapEff"][0] & _CAP_SYS_PTRACE:
        if set(theirs["Uid"][:3]) != {uid}:
            found = f"runs as user id {theirs['Uid'][1]}, we as {uid}: run the mount as that user or"
        elif set(theirs["Gid"][:3]) != {gid}:
            found = f"runs with group id {theirs['Gid'][1]}, we with {gid}: run the mount with that group or"
        elif theirs["CapPrm"][0] & ~ours["CapPrm"][0]:
            found = "has capabilities that we do not have: run the mount"
        elif os.stat(f"/proc/{pid}/mem").st_uid != theirs["Uid"][1]:
            found = (
                "is not dumpable (it changed its user, its file may not be read, or it calls "
                "prctl(PR_SET_DUMPABLE, 0)): run the mount"
            )
        else:
            found = ""
        if found:
            return f"{about} {found} as root (CAP_SYS_PTRACE), {_OR_PRELOAD}"
    return _why_not_by_yama(about) or (
        f"{about}: {os.strerror(error.errno or 0)}; a user namespace, a security module (SELinux, AppArmor) "
        f"or a seccomp filter forbids it: run the mount in the program's container, {_OR_PRELOAD}"
    )


def _why_not_by_yama(about: str) -> str | None:
    try:
        scope = int(YAMA.read_text())
    except (OSError, ValueError):
        return None
    found = f"{about}: kernel.yama.ptrace_scope is {scope}"
    if scope >= 3:
        return f"{found}, nobody may look into another process until the next boot: {_OR_PRELOAD[3:]}"
    if scope and not status_of("self")["CapEff"][0] & _CAP_SYS_PTRACE:
        allow = " let the program call prctl(PR_SET_PTRACER, pid of the mount)," if scope == 1 else ""
        return (
            f"{found}: run the mount as root (CAP_SYS_PTRACE),{allow} "
            f"set it to 0 (sysctl kernel.yama.ptrace_scope=0), {_OR_PRELOAD}"
        )
    return None
