"""Mounting and unmounting the file system on a directory: by mount(2), or by fusermount3 for users who may
not call it.

root, and users with CAP_SYS_ADMIN in their own user namespace, call mount(2). For others fusermount3 (setuid,
Debian package fuse3) mounts and sends the descriptor over a socket, whose number is in _FUSE_COMMFD.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import subprocess
from typing import Final

from utracefs.mount.processes.access import status_of

FS_TYPE: Final = "fuse.utracefs"
"""In /proc/mounts."""

_DEVICE: Final = "/dev/fuse"
_HELPER: Final = "fusermount3"

_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_NOEXEC: Final = 8
MNT_DETACH: Final = 2

_CAP_SYS_ADMIN: Final = 1 << 21

libc = ctypes.CDLL(None, use_errno=True)


def attach(directory: str, *, allow_other: bool = False) -> int:
    """Mount; returns the non-blocking descriptor of /dev/fuse for the kernel's requests, which the caller
    closes.

    allow_other: allow other users, by modes and owners. directory: absolute. The remains of a killed mount
    there are unmounted first.

    OSError, about the directory or the device: EBUSY (mounted there already, as for a second tracefs),
    ENODEV, ENOENT (no fuse in this kernel or container), EPERM (not root, and no fusermount3), ENOTDIR, and
    errors of mount(2).
    """
    _clear_dead(directory)
    if not os.path.isdir(directory):
        number = errno.ENOTDIR if os.path.exists(directory) else errno.ENOENT
        raise OSError(number, os.strerror(number), directory)
    if is_attached(directory):
        raise OSError(errno.EBUSY, f"the tree is mounted here already; `umount {directory}` first", directory)
    options = ["default_permissions", *(["allow_other"] if allow_other else [])]
    if not by_itself():
        return _by_helper(directory, options)
    try:
        return _by_ourselves(directory, options)
    except PermissionError as error:
        if error.errno == errno.EACCES and error.filename == _DEVICE:
            raise
        raise PermissionError(
            errno.EPERM,
            "mounting is not allowed here; a container needs /dev/fuse and CAP_SYS_ADMIN"
            " (docker run --device /dev/fuse --cap-add SYS_ADMIN), or try `unshare -Urm`",
            directory,
        ) from None


def detach(directory: str) -> None:
    """Unmount the directory, even if it is in use. No error if nothing is mounted there."""
    if not by_itself():
        helper = shutil.which(_HELPER)
        if helper is not None:
            subprocess.run(
                [helper, "-u", "-q", "-z", "--", directory], check=False, stderr=subprocess.DEVNULL
            )
        return
    libc.umount2(os.fsencode(directory), MNT_DETACH)


def check(result: int, about: str) -> None:
    """The OSError of a call of libc that has failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)


def has_cap_sys_admin() -> bool:
    """Whether this process has it, in its user namespace, among the effective capabilities."""
    return bool(status_of("self")["CapEff"][0] & _CAP_SYS_ADMIN)


def by_itself() -> bool:
    """Root without CAP_SYS_ADMIN gets an error with the reason: fusermount3 would lack it, too."""
    return not os.geteuid() or has_cap_sys_admin()


def is_attached(directory: str) -> bool:
    """Whether the topmost mount there is ours."""
    found = None
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            front, _, back = line.partition(b" - ")
            if _unescaped(front.split()[4]) == os.fsencode(directory):
                found = back.split()[0]
    return found == FS_TYPE.encode()


def _unescaped(path: bytes) -> bytes:
    for code in (b" ", b"\t", b"\n", b"\\"):
        path = path.replace(b"\\%03o" % code[0], code)
    return path


def _clear_dead(directory: str) -> None:
    """Whether its process was killed, so that the directory is unusable: ENOTCONN."""
    try:
        os.stat(directory)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED) and is_attached(directory):
            detach(directory)


def _by_ourselves(directory: str, options: list[str]) -> int:
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, _without_device(error), _DEVICE) from None
    try:
        data = [
            f"fd={device}",
            "rootmode=40000",
            f"user_id={os.geteuid()}",
            f"group_id={os.getegid()}",
            *options,
        ]
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        path, kind = os.fsencode(directory), FS_TYPE.encode()
        options_text = ",".join(data).encode()
        check(libc.mount(b"utracefs", path, kind, ctypes.c_ulong(flags), options_text), directory)
    except BaseException:
        os.close(device)
        raise
    return device


def _by_helper(directory: str, options: list[str]) -> int:
    if not os.path.exists(_DEVICE):
        raise OSError(errno.ENOENT, _without_device(OSError(errno.ENOENT, "")), _DEVICE)
    helper = shutil.which(_HELPER)
    if helper is None:
        raise PermissionError(
            errno.EPERM, f"only root mounts without {_HELPER}: apt install fuse3", directory
        )
    options = ["fsname=utracefs", "subtype=utracefs", "nosuid", "nodev", "noexec", *options]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = subprocess.run(
            [helper, "-o", ",".join(options), "--", directory],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        theirs.close()
        if done.returncode:
            reason = done.stderr.strip().removeprefix(f"{_HELPER}: ") or "refused"
            raise OSError(errno.EPERM, f"{_HELPER}: {reason}", directory)
        received: list[int] = []
        with contextlib.suppress(OSError):
            received = socket.recv_fds(ours, 1, 1)[1]
    if not received:
        raise OSError(errno.EPROTO, f"{_HELPER} gave no descriptor", directory)
    (device,) = received
    os.set_inheritable(device, False)
    os.set_blocking(device, False)
    return device


def _without_device(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "this machine has no FUSE (modprobe fuse; a container needs --device /dev/fuse)"
    if error.errno == errno.ENODEV:
        return "the kernel has no FUSE (modprobe fuse)"
    if error.errno == errno.EACCES:
        return f"we may not open it (chmod 666 {_DEVICE}, as udev has it)"
    return error.strerror or str(error)
