"""How a traced command finds the daemon.

| the command's events | how |
|---|---|
| of the client library | UTRACEFS_DIR in its environment |
| of user_events_data | LD_PRELOAD: a library that wraps open, ioctl, write of it (`--no-preload`: not) |
| of that file, statically linked | `--kernel-abi`: a namespace with a mount of the tree instead of tracefs |
| none: it reads the tree | `utracefs mount DIR -- COMMAND`: a namespace with a mount on DIR |
| none: an ASGI application | `--asgi`: PYTHONPATH, a sitecustomize that wraps it (startup/sitecustomize.py) |

`obstacle` finds in the program's file whether the preload library works for it. `mount/own_namespace`
runs a mount in a namespace of its own and passes the namespace as descriptors; the command enters it between
fork and exec, and the mount ends when the command's pidfd reports its end.

By hand: `UTRACEFS_DIR=DIR LD_PRELOAD="$(utracefs c-client --preload)" COMMAND`.
"""

import contextlib
import os
import shutil
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import click

from utracefs import startup
from utracefs.cli import F, Failure, c_client
from utracefs.cli.common import HELLO_S, OTHER_PID_NAMESPACE, telling_of_wait, with_options
from utracefs.cli.run.run_loop import Surroundings
from utracefs.tree.rpc import Rpc
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.messages.data import OpenFor
from utracefs_protocol.places import DATA_SOCKET

ROOM_KB = 32 * 1024
"""Size of the data ring of a recorded command. Emitting in a tight loop is about as fast as taking in, so
this lets the daemon be without a cpu for 30 ms. Only written pages take memory."""


@attrs.frozen
class Launch:
    preload: bool = True
    kernel_abi: bool = False
    mountpoint: str | None = None
    """Where the command sees the tree, an absolute path; with kernel_abi it is /sys/kernel/tracing."""
    asgi: bool = False


def launch_options(function: F) -> F:
    """`--no-preload`, `--kernel-abi` and `--asgi`; the parameter `launch` is a Launch."""

    def run(*args: Any, no_preload: bool, kernel_abi: bool, asgi: bool, **options: Any) -> Any:
        return function(*args, launch=Launch(not no_preload, kernel_abi, asgi=asgi), **options)

    return with_options(
        function,
        run,
        click.option(
            "--kernel-abi",
            is_flag=True,
            help="Give COMMAND a mount of its own on /sys/kernel/tracing, for statically linked programs that"
            " use the kernel's user_events.",
        ),
        click.option(
            "--no-preload",
            is_flag=True,
            help="Do not preload the library for programs that use the kernel's user_events.",
        ),
        click.option(
            "--asgi",
            is_flag=True,
            help="Make a span http_request for each request to uvicorn in COMMAND, and events python_log,"
            " without a change of the program.",
        ),
    )


@contextlib.contextmanager
def launched(launch: Launch, tree: Tracefs, command: Sequence[str]) -> Iterator[Surroundings]:
    """Yields the environment to start `command` in. Failure: it cannot be made; nothing was started."""
    mounts = launch.kernel_abi or launch.mountpoint is not None
    preload = launch.preload and not mounts
    found = obstacle(command[0]) if preload and command else None
    library = c_client.preload_library()
    if preload and command and library and not fits(library):
        text = (
            f"utracefs: {library}: LD_PRELOAD cannot name it, for a blank or colon in its path; if"
            f" {command[0]} uses the kernel's user_events, try --kernel-abi"
        )
        click.echo(text.encode("utf-8", "backslashreplace"), err=True)
    env = environment(tree.directory, preload=preload and not (found and found.ends_program))
    if launch.asgi:
        if not command:
            raise click.UsageError("--asgi goes with a COMMAND")
        (folder,) = startup.__path__
        if os.pathsep in folder:
            raise Failure(folder, "PYTHONPATH cannot name it, for a colon in its path")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))
    if not mounts:
        hint = "--asgi is for uvicorn, in a Python that has utracefs" if launch.asgi else ""
        yield Surroundings(env, hint=f"{command[0]} {found.text}" if found else hint)
        return
    if not command:
        raise click.UsageError("--kernel-abi goes with a COMMAND")
    if launch.kernel_abi:
        _must_be_trusted(tree.directory)
    from utracefs.mount.own_namespace import MOUNTPOINT, OwnNamespace

    mountpoint = launch.mountpoint or MOUNTPOINT
    try:
        namespace = OwnNamespace(tree.directory, mountpoint)
    except OSError as error:
        raise Failure(str(error.filename or mountpoint), error.strerror or str(error)) from None
    with namespace:
        yield Surroundings(env, namespace.enter, namespace.started)


def _must_be_trusted(directory: str) -> None:
    """Failure if the daemon takes no records from us on behalf of other processes."""
    from utracefs.mount.processes.procfs import start_time_of

    start_time = start_time_of(os.getpid())
    if start_time is None:
        raise Failure("/proc/self/stat", "cannot be read")
    ourselves = OpenFor(os.getpid(), start_time, os.geteuid(), os.getegid())
    try:
        with telling_of_wait(directory), Rpc(DATA_SOCKET, directory, timeout_s=HELLO_S) as data:
            data.call(ourselves, data.address)
    except ProcessLookupError:
        raise Failure("--kernel-abi", f"the daemon {OTHER_PID_NAMESPACE}") from None
    except PermissionError as error:
        raise Failure(
            "--kernel-abi",
            f"{error.strerror}; run this as root or as the daemon's user, or `record --embedded` with a"
            " daemon of your own",
        ) from None


def fits(library: str) -> bool:
    """Add to LD_PRELOAD, whose names end at colons and blanks, however they are quoted (ld.so(8))."""
    return " " not in library and ":" not in library


def environment(directory: str, *, preload: bool = True) -> dict[str, str]:
    """Our environment with the daemon's directory and size of the ring, unless these are set.
    preload: add the library in front of LD_PRELOAD, unless it was not built or cannot be named.

    A program built with AddressSanitizer ends at its start if a library was loaded before the sanitizer's,
    and with ThreadSanitizer a forked child ends when the library starts its thread there; their options
    against that are set.
    """
    env = {"UTRACEFS_RING_KB": str(ROOM_KB), **os.environ, "UTRACEFS_DIR": os.path.abspath(directory)}
    library = c_client.preload_library()
    before = env.pop("LD_PRELOAD", "")
    # Inside another recording the library is listed already.
    libraries = [word for word in before.replace(":", " ").split() if word != library]
    if preload and library and fits(library):
        libraries.insert(0, library)
        for name, option in (
            ("ASAN_OPTIONS", "verify_asan_link_order=0"),
            ("TSAN_OPTIONS", "die_after_fork=0"),
        ):
            env[name] = ":".join(filter(None, [option, env.get(name)]))  # a later option takes precedence
    if libraries:
        env["LD_PRELOAD"] = ":".join(libraries)
    return env


_PROGRAM_HEADER = struct.Struct("=I4xQ16xQ16x")
"""Members of Elf64_Phdr: p_type, p_offset, p_filesz."""

_PT_INTERP = 3
_MAX_HEADERS = 1000


@attrs.frozen
class Obstacle:
    """Why the library cannot be loaded."""

    text: str
    """The program `is ...`, and what to do."""
    ends_program: bool = False
    """With LD_PRELOAD the program does not start."""


_USE_MOUNT = "; if it uses the kernel's user_events, try --kernel-abi"
_USE_ROOT = (
    ", for which LD_PRELOAD is ignored; if it uses the kernel's user_events, it needs a mount, as root"
)


def obstacle(program: str) -> Obstacle | None:
    """Why ld.so(8) would not load the preload library; None: no obstacle found. program: as for execvp(3).

    The program must be dynamically linked to glibc, have as many bits as the library, and must not gain
    rights at exec (setuid, capabilities). The interpreter of a script is not checked.
    """
    path = shutil.which(program)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:4] != b"\x7fELF" or len(head) < 64 or head[5] != our_byte_order():
                return None
            if head[4] == 1 and sys.maxsize > 1 << 32:
                return Obstacle(f"is a program of 32 bits{_USE_MOUNT}")
            if head[4] != 2:
                return None
            (start,), (count,) = struct.unpack_from("=Q", head, 32), struct.unpack_from("=H", head, 56)
            file.seek(start)
            table = file.read(_PROGRAM_HEADER.size * min(count, _MAX_HEADERS))
            whole = len(table) // _PROGRAM_HEADER.size * _PROGRAM_HEADER.size
            headers = _PROGRAM_HEADER.iter_unpack(table[:whole])
            found = [(offset, length) for kind, offset, length in headers if kind == _PT_INTERP]
            if not found:
                return Obstacle(f"is statically linked{_USE_MOUNT}")
            ((offset, length), *_) = found
            file.seek(offset)
            interpreter = file.read(min(length, 4096)).rstrip(b"\0")
            status = os.fstat(file.fileno())
    except (OSError, ValueError, struct.error):
        return None
    if b"musl" in os.path.basename(interpreter):
        return Obstacle(f"is linked with musl{_USE_MOUNT}", ends_program=True)
    if _gains_rights(path, status):
        return Obstacle(f"gets more rights than you have{_USE_ROOT}")
    return None


def our_byte_order() -> int:
    return 1 if sys.byteorder == "little" else 2


def _gains_rights(path: str, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid():
        return True
    try:
        return bool(os.geteuid() and os.getxattr(path, "security.capability"))
    except OSError:
        return False
