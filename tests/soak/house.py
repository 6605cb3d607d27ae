"""The place of a run: a folder of its own, if possible a /dev/shm of its own, and the daemon in it.

`private_shared_memory` gives this process, and all that it starts, a small tmpfs at /dev/shm which ends with
the last of them. So an interrupted run leaves nothing on the machine, and the tmpfs can be filled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import attrs

from tests.soak.report import Report
from utracefs.tree.tracefs import Tracefs
from utracefsd.server.runtime import SHARED_MEMORY, locate

ROOT = Path(__file__).parents[2]

ANSWER_BOUND_S = 10.0
"""A third of systemd's watchdog. A loaded machine with two cpus needs much less, and an attack must not need
more."""

OWN_MEMORY_MIB = 200.0
"""The daemon's own memory, without rings and ring buffers, beyond its memory after the start."""

START_BOUND_S = 60.0
END_BOUND_S = 30.0
IDLE_BOUND_S = 10.0
"""Seconds in which the daemon has a cpu or sleeps (`own_time_s`). Attackers leave it up to 1900 descriptors.
260 connections with 200 requests each took 0.36 s of cpu time, which were 2.8 s of the clock at a load of 24
on two cpus; so 1600 take 2.2 s of cpu time and 17 s of the clock. A daemon that keeps a descriptor sleeps, or
runs for it, so it has no more time than before."""

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def checked_call(name: str, *arguments: object) -> int:
    """A function of libc that answers -1 with errno. OSError."""
    answer: int = getattr(_libc, name)(*arguments)
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    """mount(2)."""
    checked_call("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


def private_shared_memory(size_mib: int) -> bool:
    """A private /dev/shm for the rest of this process's life. False where that is not permitted."""
    try:
        checked_call("unshare", _CLONE_NEWNS)
        mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")
        mount("tmpfs", os.fspath(SHARED_MEMORY), "tmpfs", 0, f"size={size_mib}m,mode=1777")
    except OSError:
        return False
    return True


@attrs.frozen
class Usage:
    """The present use of resources by a process."""

    own_mib: float
    """Private memory, not of files: without rings and ring buffers in /dev/shm."""

    descriptors: int
    cpu_s: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        """FileNotFoundError, ProcessLookupError: it is gone."""
        status = Path(f"/proc/{pid}/status").read_text()
        anonymous = next((line for line in status.splitlines() if line.startswith("RssAnon:")), "x 0 kB")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return cls(
            int(anonymous.split()[1]) / 1024,
            len(os.listdir(f"/proc/{pid}/fd")),
            ticks / os.sysconf("SC_CLK_TCK"),
        )


def own_time_s(pid: int) -> float:
    """A clock that stops while the process's first thread is ready to run and has no cpu
    (Documentation/scheduler/sched-stats.rst: the second number of schedstat, in ns, 0 where the kernel does
    not count)."""
    waited_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return time.monotonic() - waited_ns / 1e9


class House:
    """One daemon in `folder`/run, its log in `folder`/log, watched by the judges for `part`.

    `open_to_all`: other users may connect to the data socket. `descriptors`: RLIMIT_NOFILE of the daemon.
    """

    def __init__(
        self,
        folder: Path,
        report: Report,
        part: str,
        *,
        open_to_all: bool = False,
        options: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.report = report
        self.part = part
        self.options = options
        self.open_to_all = open_to_all
        self.descriptors: int | None = None
        self.environ = {**os.environ, "TMPDIR": os.fspath(folder / "tmp"), **report.environ}
        self.process: subprocess.Popen[bytes] | None = None
        self.at_start: Usage | None = None
        self.directory = os.fspath(folder / "run")
        self.log = folder / "log"
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "tmp").mkdir()
        (folder / "run").mkdir(0o755)
        self._install_plugin(folder / "plugins")

    def _install_plugin(self, folder: Path) -> None:
        """The example's, as an installed distribution."""
        info = folder / "soak_count-1.dist-info"
        info.mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "count_plugin" / "utracefs_count.py", folder)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soak-count\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[utracefs.consumers]\ncount = utracefs_count:Counter\n")
        path = self.environ.get("PYTHONPATH")
        self.environ["PYTHONPATH"] = f"{folder}:{path}" if path else os.fspath(folder)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Wait until it is ready. Found if it does not get ready."""
        ready, ready_w = os.pipe()
        try:
            with open(self.log, "ab") as log:
                self.process = self._popen(log, ready_w)
            os.close(ready_w)
            readable, _, _ = select.select([ready], [], [], START_BOUND_S)
            if not readable or not os.read(ready, 16).startswith(b"READY"):
                self.report.stop("alive", self.part, "the daemon did not start\n" + self.log_tail())
        finally:
            os.close(ready)
        self.report.counts["starts of the daemon"] += 1
        if self.open_to_all:
            os.chmod(os.path.join(self.directory, "user_events_data"), 0o666)
        if self.at_start is None:
            self.note_start()

    def _popen(self, log: IO[bytes], ready_fd: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(["prlimit", f"--nofile={self.descriptors}"] if self.descriptors else []),
                *(sys.executable, "-X", "faulthandler", "-m", "utracefsd", "--dir", self.directory),
                *(["--ready-fd", str(ready_fd)] if ready_fd is not None else []),
                *self.options,
            ],
            pass_fds=[] if ready_fd is None else [ready_fd],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=self.environ,
        )

    def note_start(self) -> None:
        """Its present resources are the limit when all clients have gone."""
        self.probe()
        with self.tree() as tree:  # a plug-in that was used once keeps its object and its ring
            for plugin, _ in tree.list_dir("consumers"):
                with contextlib.suppress(OSError):
                    tree.read_file(f"consumers/{plugin}/report")
        usages = [Usage.of(self.pid)]
        for _ in range(10):  # the probe's own connection has to end first
            time.sleep(0.02)
            usages.append(Usage.of(self.pid))
        self.at_start = min(usages, key=lambda usage: usage.descriptors)

    def start_and_kill(self, after_s: float) -> None:
        """Killed at any moment of its start."""
        with open(self.log, "ab") as log:
            self.process = self._popen(log)
        time.sleep(after_s)
        self.kill()

    def wait_for_end(self, context: str = "") -> None:
        """After SIGTERM. Found: it does not end."""
        assert self.process is not None
        try:
            self.process.wait(END_BOUND_S)
        except subprocess.TimeoutExpired:
            self.report.stop(
                "end", self.part, f"alive {END_BOUND_S} s after SIGTERM\n{self._stuck()}\n{context}"
            )
        self.process = None

    def tree(self, timeout_s: float = ANSWER_BOUND_S) -> Tracefs:
        return Tracefs(self.directory, timeout_s=timeout_s)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def probe(self, context: str = "") -> None:
        """Read the tree on a new connection, and check the memory. Found: no response, or the daemon has
        ended."""
        begin = time.monotonic()
        try:
            with self.tree() as tree:
                tree.read_file("tracing_on")
        except OSError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may be ending just now
                if self.process is not None:
                    self.process.wait(1)
            self.must_be_alive(context)
            stuck = self._stuck()
            self.report.stop(
                "latency",
                self.part,
                f"a read of tracing_on: {error} after {time.monotonic() - begin:.1f} s\n{stuck}\n{context}",
            )
        took_s = time.monotonic() - begin
        self.report.counts["reads of the tree by the judge"] += 1
        self.report.worst_answer_s = max(self.report.worst_answer_s, took_s)
        self.look_at_memory(context)

    def look_at_memory(self, context: str = "") -> None:
        """Found: it has ended, or has grown too large."""
        try:
            usage = Usage.of(self.pid)
        except OSError:
            self.must_be_alive(context)
            raise
        self.report.peak_own_mib = max(self.report.peak_own_mib, usage.own_mib)
        if self.at_start is not None and usage.own_mib > self.at_start.own_mib + OWN_MEMORY_MIB:
            text = f"{usage.own_mib:.0f} MiB, {self.at_start.own_mib:.0f} MiB at the start\n{context}"
            self.report.stop("memory", self.part, text)

    def must_be_alive(self, context: str = "") -> None:
        """Found: the daemon has ended."""
        if self.process is not None and self.process.poll() is not None:
            status, self.process = self.process.returncode, None
            self.report.stop(
                "alive", self.part, f"the daemon ended, status {status}\n{self.log_tail()}\n{context}"
            )

    def judge_rest(self, context: str = "") -> None:
        """After all clients have gone: its descriptors are closed, and it is idle."""
        assert self.at_start is not None
        deadline_s = own_time_s(self.pid) + IDLE_BOUND_S
        while (now := Usage.of(self.pid).descriptors) > self.at_start.descriptors:
            if own_time_s(self.pid) > deadline_s:
                what = "\n".join(sorted(_targets(self.pid)))
                text = f"{now} are open, {self.at_start.descriptors} were\n{what}\n{context}"
                self.report.tell("descriptors", self.part, text)
                break
            time.sleep(0.05)
        deadline_s = own_time_s(self.pid) + IDLE_BOUND_S
        while True:
            before = Usage.of(self.pid).cpu_s
            time.sleep(1)
            spent_s = Usage.of(self.pid).cpu_s - before
            if spent_s <= 0.01:  # the length of a tick
                break
            if own_time_s(self.pid) > deadline_s:
                text = f"{spent_s:.2f} s of cpu time in a second, and nobody is there\n{context}"
                self.report.tell("idle", self.part, text)
                break
        self.report.counts["judgements"] += 2

    def end(self, context: str = "") -> None:
        """SIGINT, which discards the state: no file may be left, and no error in the log."""
        if self.process is not None:
            self.must_be_alive(context)
            self.signal(signal.SIGINT)
            try:
                status = self.process.wait(END_BOUND_S)
                self.report.check("end", self.part, status == 0, f"status {status}\n{self.log_tail()}")
                left = [*self._left()]
                self.report.check("leftovers", self.part, not left, "\n".join(left))
            except subprocess.TimeoutExpired:
                self.report.tell(
                    "end", self.part, f"alive {END_BOUND_S} s after SIGINT\n{self._stuck()}\n{context}"
                )
            self.kill()
        self.judge_log(context)

    def judge_log(self, context: str = "") -> None:
        """No traceback, no error of the daemon's own, no sanitizer report in it."""
        text = self.log.read_text(errors="replace")
        self.report.counts["lines in the daemon's log"] += text.count("\n")
        wrong = any(
            word in text
            for word in (
                "Traceback",
                "a mistake of ",
                "bug of the daemon",
                "internal error",
                "runtime error:",
                "Sanitizer",
            )
        )
        self.report.check("log", self.part, not wrong, f"{self.log_tail(8000)}\n{context}")

    def log_tail(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def clear(self) -> None:
        """However it ended: no process and no file of it stays."""
        self.kill()
        folder = locate(self.directory).status_folder
        subprocess.run(["rm", "-rf", "--", os.fspath(folder), os.fspath(self.folder)], check=False)

    def _left(self) -> list[str]:
        found = [str(path) for path in [*Path(self.directory).iterdir(), *(self.folder / "tmp").iterdir()]]
        folder = locate(self.directory).status_folder
        if folder.exists():
            found += [str(folder), *(str(path) for path in folder.rglob("*"))]
        return found

    def _stuck(self) -> str:
        """Log its stack, and end it (faulthandler writes the stack)."""
        if self.process is None:
            return ""
        where = []
        for name in ("wchan", "syscall", "stat"):
            with contextlib.suppress(OSError):
                where.append(f"{name}: {Path(f'/proc/{self.pid}/{name}').read_text()[:300]}")
        self.signal(signal.SIGABRT)
        self.signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return "\n".join([*where, self.log_tail()])


def _targets(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(f"{fd} {os.readlink(f'/proc/{pid}/fd/{fd}')}")
    return found
