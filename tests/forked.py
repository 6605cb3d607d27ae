"""`python -m utracefs.cli`, `-m utracefsd` and `-c PROGRAM` as processes, without the time to start Python.

    test ── Popen ─── request, file descriptors ──▶ template ── fork ──▶ runs the module as `__main__`
                 ◀──── pid, then exit status ──────

Each test process has one template, which imports the command line and the daemon once. A fork of it runs
after a few ms, where a new interpreter needs 140. A fork has its own pid, arguments, environment, working
directory, standard streams, session and process group; signals, its exit and os.getppid are as usual. Two
things differ: for the kernel its parent is the template, and /proc/PID/cmdline and environ are those of the
template. Where that matters, use subprocess. A daemon started by a forked command line is a fork, too.

`Popen` starts a new interpreter for any other command, and for everything that the template cannot provide:
a test's `preexec_fn`, other users, a variable that an interpreter or the dynamic linker reads at its start.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import importlib
import inspect
import os
import pickle
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.left_over import FOLDER_VARIABLE, VARIABLE, LeftOver

ROOT = Path(__file__).parents[1]
MODULES = ("utracefs", "utracefs.cli", "utracefsd")
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "COVERAGE_")
COVERAGE = "COVERAGE_PROCESS_CONFIG"
"""Python starts to measure where this variable is set. Under coverage, only the template and its forks do."""
ABOVE = 512
"""Received descriptors are moved above this number, away from the numbers that they get later."""

_RIGHTS = 253
_PID = struct.Struct("=i")


class Template:
    """The template process, started at first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # They exist from the start: a test that counts its descriptors sees no new one.
        self._requests, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = os.memfd_create("errors of the template")
        self._environ = dict(os.environ)
        self._owner = os.getpid()
        self._is_started = False

    def can_give(self, environ: Mapping[str, str]) -> bool:
        """Only variables that are read at the start of an interpreter must be equal in the template."""
        return all(
            environ.get(name) == self._environ.get(name)
            for name in {*environ, *self._environ}
            if name.startswith(READ_AT_START) and name not in ("PYTHONPATH", COVERAGE)
        )

    def can_run(self, words: Sequence[str]) -> bool:
        """`-m MODULE`, and the `-c PROGRAM` of a test."""
        return words[1] in MODULES if words[0] == "-m" else words[0] == "-c" and os.getpid() == self._owner

    def fork(self, request: Mapping[str, Any], fds: list[int]) -> tuple[int, socket.socket]:
        """The pid of the new process, and the socket where its exit status arrives.

        fds: of its standard input, output and error, then of each of `request["fds"]`.
        """
        if not self._is_started:
            self._start()
        ours, theirs = socket.socketpair()
        text = os.memfd_create("request")
        try:
            with open(text, "wb", closefd=False) as file:
                pickle.dump(request, file)
            socket.send_fds(self._requests, [b"fork"], [text, theirs.fileno(), self._requests.fileno(), *fds])
        except ConnectionError:
            pass  # and the other end of `theirs` is closed
        finally:
            os.close(text)
            theirs.close()
        pid = ours.recv(_PID.size, socket.MSG_WAITALL)
        if not pid:
            ours.close()
            raise ChildProcessError(f"the template did not fork:\n{self._error_text()}")
        return _PID.unpack(pid)[0], ours

    def _error_text(self) -> str:
        if os.getpid() != self._owner:
            return "(its error is in the test process)"
        return os.pread(self._errors, 1 << 20, 0).decode(errors="replace")

    def _start(self) -> None:
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import tests.forked as f; f.serve(*sys.argv[2:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(ROOT), str(self._far.fileno()), str(self._owner)],
            stdin=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[self._far.fileno()],
            env={**self._environ, **{name: os.environ.get(name, "") for name in (VARIABLE, FOLDER_VARIABLE)}},
        )
        self._far.close()  # so requests fail when the template has ended
        self._is_started = True

    def adopt(self, fd: int) -> None:
        """In a fork: programs that it starts are forks of the same template. fd: for requests."""
        self._requests = socket.socket(fileno=fd)
        self._is_started = True
        subprocess.Popen = Popen  # type: ignore[misc]

    def end(self) -> None:
        """Its children continue. It cannot be used again."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(OSError):  # not started, or ended
            self._requests.send(b"end")
        self._requests.close()
        self._far.close()
        os.close(self._errors)
        if self._process is not None:
            self._process.wait(60)


_template = Template()
end_template = _template.end


class Popen(subprocess.Popen[Any]):
    """As subprocess.Popen."""

    _status: socket.socket | None = None

    def _execute_child(self, *arguments: Any) -> None:  # every version of Python has its own parameters
        real = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(real).bind(*arguments).arguments
        words = given["args"]
        if words[1:2] == ["-P"]:  # the fork puts its directory into sys.path, and our commands take it away
            words = [words[0], *words[2:]]
        environ = {os.fsdecode(k): os.fsdecode(v) for k, v in (given["env"] or os.environ).items()}
        before = given["preexec_fn"]
        names = ("shell", "executable", "gid", "gids", "uid", "umask")
        if (
            not isinstance(words, list)
            or words[0] != sys.executable
            or not _template.can_run(words[1:])
            or (before is not None and not before.__module__.startswith("utracefs"))
            or any(given[name] not in (None, False, -1) for name in names)
            or not _template.can_give(environ)
        ):
            real(*arguments)
            return
        sys.audit("subprocess.Popen", words[0], words, given["cwd"], environ)
        pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {
            "option": words[1],
            "program": words[2],
            "words": [os.fsdecode(word) for word in words[3:]],
            "environ": environ,
            "cwd": given["cwd"] or os.getcwd(),
            "fds": [0, 1, 2, *given["pass_fds"]],
            "cpus": os.sched_getaffinity(0),
            "before": before,
            "parent": os.getpid(),
            "session": given["start_new_session"],
            "group": os.getpgid(0) if given["process_group"] == -1 else given["process_group"],
        }
        standard = [number if fd == -1 else fd for number, fd in enumerate(pipes)]
        self.pid, self._status = _template.fork(request, [*standard, *given["pass_fds"]])
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]

    def _waitpid(self, pid: int, flags: int) -> tuple[int, int]:
        """Like os.waitpid, which works only for children of this process."""
        if self._status is None:
            return os.waitpid(pid, flags)
        self._status.setblocking(not flags & os.WNOHANG)
        try:
            status = self._status.recv(_PID.size)
        except BlockingIOError:
            return 0, 0
        self._status.close()
        if not status:
            raise ChildProcessError(f"the template ended before {self.args!r}")
        return pid, _PID.unpack(status)[0]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        return self._waitpid(self.pid, flags)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        wait: Any = self._waitpid
        if sys.version_info >= (3, 13):
            wait = types.SimpleNamespace(waitpid=wait, WNOHANG=os.WNOHANG, ECHILD=errno.ECHILD)
        return super()._internal_poll(_deadstate, wait)  # type: ignore[misc, no-any-return]


def serve(fd: str, owner: str) -> None:
    """The template: forks until its end, and reports the end of each fork. A fork does not return.

    When the test process dies first, the programs and mounts of its tests are removed."""
    sys.path.remove(str(ROOT))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Ctrl-C is for pytest and for the programs that it tests. With a process group of its own, this process
    # would be the only parent outside of pytest's group: at the end of the last fork the kernel sends SIGHUP
    # to all of pytest's group if one process in it is stopped.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tester = os.pidfd_open(int(owner))  # it waits for our end, so it is there: its fork starts us
    _import_all()
    if (coverage := sys.modules.get("coverage")) and (measured := coverage.Coverage.current()):
        measured.save()  # so a fork saves only the lines that it has run itself: 50 ms less
    requests = socket.socket(fileno=int(fd))
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(tester, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj == tester:
                if mine := os.environ[VARIABLE]:
                    tests = LeftOver(Path(os.environ[FOLDER_VARIABLE]))
                    tests.word = mine
                    tests.remove()
                return
            if key.fileobj is not requests:
                assert isinstance(key.fileobj, int)
                pid, answers = running.pop(key.fileobj)
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                with answers, contextlib.suppress(OSError):
                    answers.send(_PID.pack(os.waitpid(pid, 0)[1]))
                continue
            word, fds, _, _ = socket.recv_fds(requests, 16, _RIGHTS)
            if word != b"fork":
                return
            answers = socket.socket(fileno=fds[1])
            pid = os.fork()
            if not pid:
                selector.close()
                for one in (requests, *(of for _, of in running.values())):
                    one.close()
                _become(fds, answers)
            for other in (fds[0], *fds[2:]):
                os.close(other)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = (pid, answers)
            selector.register(pidfd, selectors.EVENT_READ)


def _import_all() -> None:
    """The modules that most commands need; not the bridges, which import other libraries."""
    importlib.import_module("utracefsd.main")
    for module in pkgutil.walk_packages(importlib.import_module("utracefs").__path__, "utracefs."):
        if not module.name.endswith("__main__") and ".bridges." not in module.name:
            importlib.import_module(module.name)


def _become(fds: list[int], answers: socket.socket) -> NoReturn:
    """In the fork: run the requested module and exit. fds: request, responses, requests, then its own
    files."""
    with open(fds[0], "rb") as file:
        file.seek(0)
        request = pickle.load(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    else:
        os.setpgid(0, request["group"])
    os.sched_setaffinity(0, request["cpus"])
    answers.send(_PID.pack(os.getpid()))
    answers.close()
    above = max(ABOVE, *request["fds"]) + 1
    requests, *moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds[2:]]
    for number, fd in zip(request["fds"], moved, strict=True):
        os.dup2(fd, number)
    start = 0
    for number in [*sorted(request["fds"]), requests, 1 << 16]:
        if start < number:
            os.closerange(start, number)
        start = number + 1
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[0:1] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.getppid = lambda: request["parent"]
    if request["program"] == "utracefsd":
        os.close(requests)
    else:
        _template.adopt(requests)
    if request["before"]:
        request["before"]()
    sys.argv[:] = [request["option"], *request["words"]]
    options: dict[str, Any] = {"encoding": sys.stdout.encoding, "closefd": False}
    sys.stdin = open(0, errors=sys.stdin.errors, **options)  # noqa: SIM115
    sys.stdout = open(1, "w", errors=sys.stdout.errors, **options)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors=sys.stderr.errors, **options)  # noqa: SIM115
    try:
        if request["option"] == "-m":
            runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(request["program"], "<string>", "exec"), main.__dict__)  # noqa: S102 - as python -c
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else end.code is not None
        if status is True:
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        status = 1
    # As Python ends, but without freeing the modules, which takes longer than most commands.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = 120
    os._exit(status)
