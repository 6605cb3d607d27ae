"""Whatever a program's limits are, it does as without tracing, and every record is stored or counted.

One row for each of the table in docs/operations.md.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import platform
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.client.c.building import ROOT, SOURCE
from tests.client.c.test_emit import WAYS, of_way
from tests.client.c.test_thread import compiled
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess, own_directory
from tests.integration.test_conservation import stats
from tests.judges import needs

pytestmark = pytest.mark.usefixtures("events_on")

HERE = Path(__file__).parent
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def limits(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """limits.c with an event; without it it is `plain` in the same folder."""
    source = tmp_path_factory.mktemp("limits") / "limits.c"
    source.write_text((HERE / "limits.c").read_text())
    compiled(source, built, "-DWITHOUT_TRACING", library=("-Wl,-z,now",))
    source.with_suffix("").rename(source.with_name("plain"))
    return compiled(source, built, "-Wl,-z,now")


@pytest.fixture
def program(daemon: DaemonProcess, limits: Path) -> Path:
    """The daemon knows its event."""
    with daemon.tree() as tree:
        tree.write_file("dynamic_events", b"u:c_count u32 who; u64 i\n")
    return limits


LONG_US = 1000
"""Less than any wait for a daemon."""


@attrs.frozen
class Done:
    """The end of a run."""

    own: tuple[int, str]
    """Its status and first line, which tracing must not change."""
    emits: int
    waits: int
    longest_us: int
    """The longest emit that waited; 0: none."""
    peak_kb: int
    error: str


def run(program: Path, steps: str, *before: str, **environment: str) -> Done:
    done = subprocess.run(
        [*before, program, steps],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    own, _, rest = done.stdout.partition("\n")
    emits, waits, longest, _, peak = map(int, re.findall(r" (\d+)", rest) or [-1] * 5)
    return Done((done.returncode, own), emits, waits, longest, peak, done.stderr)


def totals(daemon: DaemonProcess) -> tuple[int, int]:
    """Numbers of records that were stored, and that were counted as lost; together they are all emitted."""
    with daemon.tree() as tree:
        emitted, consumers = stats(tree.read_file("events/user_events/c_count/stats"))
    ftrace = consumers["ftrace"]
    assert emitted == ftrace["recorded"] + ftrace["lost"]
    return ftrace["recorded"], ftrace["lost"]


STORED, COUNTED, PERHAPS = "stored", "counted", "perhaps"
"""All records are stored; or some are lost, and counted; or events may be off, and then none is counted."""
LIFE = "ethfFcvs"


def within(script: str) -> str:
    """In a mount namespace that the script has changed."""
    return shlex.join(["unshare", "-m", "sh", "-c", script + '; exec "$@"', "sh"])


NO_PROC = "mount -t tmpfs -o size=4k none /proc"
NO_DEV = "mount -t tmpfs -o size=4k none /dev"
LOCKED = "setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock"
LIMITS = {
    "RLIMIT_FSIZE below the size of the data ring": [("prlimit --fsize=0", LIFE, COUNTED)],
    "RLIMIT_AS, RLIMIT_DATA": [
        ("prlimit --as=41943040 --data=4194304", LIFE, STORED),
        *((f"prlimit --as={mib << 20}", "ethfs", PERHAPS) for mib in (4, 5, 6, 8)),
    ],
    "RLIMIT_NOFILE": [
        ("prlimit --nofile=16", LIFE, STORED),
        *((f"prlimit --nofile={number}", "ethfs", PERHAPS) for number in (4, 6, 7, 8)),
    ],
    "RLIMIT_STACK": [("prlimit --stack=65536", LIFE, STORED)],
    "RLIMIT_MEMLOCK, mlockall(2)": [
        ("", "el" + LIFE, STORED),
        *((f"prlimit --memlock={mib << 20} {LOCKED}", "elthfs", PERHAPS) for mib in (0, 3, 5, 7)),
    ],
    "an alternate signal stack below 16 KiB": [("", "hes", STORED), ("", "eshCh", STORED)],
    "/dev/shm full or missing": [
        (within("umount -l /dev/shm"), LIFE, STORED),
        (within("mount -t tmpfs -o size=4k none /dev/shm; seq 9999 >/dev/shm/x 2>&-"), LIFE, STORED),
    ],
    "no /proc": [(within(NO_PROC), LIFE, STORED)],
    "a read-only root": [(within("mount -o remount,bind,ro /"), LIFE, STORED)],
    "chroot(2), setresuid(2)": [("", "eRef", COUNTED), ("", "eief", COUNTED), ("", "ek", STORED)],
    "unshare(2)": [("", "ePMf", STORED)],
    "closed or replaced descriptors": [("", "eCe", STORED), ("", "eDefCefs", STORED)],
    "vfork(2), _Fork(3), clone(2)": [("", "Fcves", STORED)],
    "all of these": [
        (
            within(f"{NO_PROC}; {NO_DEV}; mount -o remount,bind,ro /")
            + " prlimit --nofile=16 --as=8388608 --data=4194304 --memlock=0 --fsize=0 --nproc=9",
            "h" + LIFE + "PMe",
            COUNTED,
        )
    ],
}


@NEEDS_ROOT
@WAYS
@pytest.mark.parametrize("limit", LIMITS)
def test_the_program_does_as_without_tracing(
    daemon: DaemonProcess, program: Path, limit: str, way: str
) -> None:
    for before, steps, outcome in LIMITS[limit]:
        by_socket = way == "socket" or "--fsize=0" in before
        old = totals(daemon)
        done = run(program, steps, *shlex.split(before), **of_way(way))
        assert (
            done.own == run(program.with_name("plain"), steps, *shlex.split(before)).own == (3, done.own[1])
        )
        stored, lost = (new - o for new, o in zip(totals(daemon), old, strict=True))
        is_off = outcome == PERHAPS and "events are off" in done.error
        assert stored + lost == done.emits or is_off, (before, done)
        assert lost == 0 or outcome != STORED or by_socket, (before, lost)
        # Each ring is mapped twice. (Of descriptors that are taken away one by one any number is made.)
        is_small = done.peak_kb < (32 << 10) * 3 or set("CD") & set(steps)
        assert is_small, f"an arena of malloc is 64 MiB: {done.peak_kb}"
        # (For our own thread, which has a lock, of us or of the process's memory; longer if that has no cpu.)
        may_wait = by_socket or set("CD") & set(steps)
        for _ in range(9):
            if done.longest_us >= LONG_US and not may_wait:
                done = run(program, steps, *shlex.split(before), **of_way(way))
        assert done.longest_us < LONG_US or may_wait, f"an emit waits each time: {before}"


@contextlib.contextmanager
def memory_cgroup(nr_bytes: int) -> Iterator[list[str]]:
    """A cgroup of either version with so much memory; the words that put a command into it."""
    memory = re.search(r"^\d+:memory:(.*)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    parent = f"/sys/fs/cgroup/memory{memory[1]}" if memory else "/sys/fs/cgroup"
    limit = "memory.limit_in_bytes" if memory else "memory.max"
    folder = Path(parent, f"utracefs-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        if not (folder / limit).exists():
            pytest.skip(f"cgroups of {parent} do not limit memory")
        (folder / limit).write_text(str(nr_bytes))
        yield ["sh", "-c", f'echo $$ >{folder}/cgroup.procs; exec "$@"', "sh"]
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@NEEDS_ROOT
@WAYS
def test_the_memory_of_a_cgroup(daemon: DaemonProcess, program: Path, way: str) -> None:
    """Little more is needed than without tracing."""
    old = totals(daemon)
    with memory_cgroup(4 << 20) as inside:
        done = run(program, LIFE, *inside, **of_way(way))
        assert done.own == run(program.with_name("plain"), LIFE, *inside).own == (3, done.own[1])
    stored, lost = (new - o for new, o in zip(totals(daemon), old, strict=True))
    assert stored + lost == done.emits and (lost == 0 or way == "socket")


@NEEDS_ROOT
def test_a_flood_in_a_small_cgroup(daemon: DaemonProcess, program: Path) -> None:
    """The ring is a sixteenth of its memory, so a flood beside a stopped daemon does not exhaust it."""
    old = totals(daemon)
    with memory_cgroup(16 << 20) as inside, daemon.paused():
        done = run(program, "e" * 6000, *inside)  # more than 16 MiB of records
        assert done.own[0] == 3
    wait_for(lambda: sum(totals(daemon)) == sum(old) + done.emits)
    assert done.emits == 600_000


@WAYS
def test_no_emit_waits_for_a_stopped_daemon(daemon: DaemonProcess, program: Path, way: str) -> None:
    """A program that had no answer yet, and its children. Records are in a number when the daemon continues,
    but those of a program that has ended without a data ring and without an answer."""
    with daemon.paused():
        begin = time.monotonic()
        done = run(program, "ehfFct", **of_way(way))
        took = time.monotonic() - begin
    assert done.emits == 501 and took < 40
    wait_for(lambda: sum(totals(daemon)) == {"ring": 501, "socket": 300}[way], what=lambda: totals(daemon))


@NEEDS_ROOT
def test_no_thread_can_be_made(built: Path, tmp_path: Path) -> None:
    """RLIMIT_NPROC, of another user: events are off."""
    (tmp_path / "limits.c").write_text((HERE / "limits.c").read_text())
    made = compiled(tmp_path / "limits.c", built, library=("-Wl,-z,now", str(built / "libutracefs.a")))
    with own_directory() as directory:
        os.chmod(directory, 0o711)
        daemon = DaemonProcess(directory, "--group", grp.getgrgid(65534).gr_name)
        daemon.start()
        before = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--nproc=1"]
        done = run(Path(shutil.copy(made, directory)), "ethfs", *before, UTRACEFS_DIR=directory)
        daemon.stop()
    assert done.own == (3, "e1 t0 h1 f0 s1 ") and "events are off: no thread for them" in done.error


def test_memory_that_cannot_be_executed(daemon: DaemonProcess, program: Path) -> None:
    """With vm.memfd_noexec, which each pid namespace has, a new memfd has a seal already: the daemon gets the
    ring all the same."""
    setting = "echo 1 > /proc/sys/vm/memfd_noexec"
    words = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    if subprocess.run([*words, setting], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace with this setting: it needs root, and Linux 6.3")
    with subprocess.Popen(
        [*words, f'{setting} && exec "$0" esw', program],
        env={**os.environ, "UTRACEFS_DIR": daemon.directory},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        while process.stdout.readline() not in ("waits\n", ""):
            pass
        with daemon.tree() as tree:
            assert b"\ndata rings: 1\n" in tree.read_file("daemon_stats")
        process.communicate("\n", timeout=60)


@needs("musl-gcc")
def test_musl(daemon: DaemonProcess, program: Path, tmp_path: Path) -> None:
    """The library and a whole life of a program, linked with another C library."""
    headers = tmp_path / "headers"
    headers.mkdir()
    for name in ("linux", "asm-generic", "x86_64-linux-gnu/asm"):  # musl has none
        (headers / Path(name).name).symlink_to(f"/usr/include/{name}")
    compiler = f"musl-gcc -idirafter {headers}"
    subprocess.run(
        [
            "make",
            "-s",
            "-j2",
            "-C",
            SOURCE,
            f"CC={compiler}",
            f"BUILD={tmp_path}",
            f"{tmp_path}/libutracefs.a",
        ],
        check=True,
    )
    made = tmp_path / "static"
    words = [
        *compiler.split(),
        "-static",
        "-O2",
        f"-I{SOURCE / 'include'}",
        str(HERE / "limits.c"),
        "-o",
        str(made),
    ]
    subprocess.run([*words, str(tmp_path / "libutracefs.a")], check=True)
    for number, way in enumerate(["ring", "socket"], 1):
        done = run(made, LIFE + "eDefs", **of_way(way))
        assert done.own == run(program.with_name("plain"), LIFE + "eDefs").own
        assert sum(totals(daemon)) == number * done.emits == number * 901


CALLS = {
    "write": [1], "fstat newfstatat": [5, 262], "lstat": [6], "poll ppoll": [7, 271], "mmap": [9],
    "mprotect": [10], "munmap": [11], "rt_sigprocmask": [14], "writev": [20], "sched_yield": [24],
    "mremap": [25], "madvise": [28],
    "nanosleep clock_nanosleep": [35, 230], "getpid": [39], "socket": [41], "connect": [42], "sendto": [44],
    "recvfrom": [45], "sendmsg": [46], "recvmsg": [47], "socketpair": [53], "setsockopt": [54], "clone": [56],
    "kill": [62], "fcntl": [72], "readlink readlinkat": [89, 267], "geteuid": [107], "getppid": [110],
    "rt_sigpending": [127], "rt_sigtimedwait": [128], "sigaltstack": [131], "prctl": [157], "gettid": [186],
    "getcwd": [79], "prlimit64": [302], "getrandom": [318],
    "fallocate": [285], "futex": [202], "tgkill": [234], "waitid": [247], "unshare": [272], "eventfd2": [290],
    "memfd_create": [319], "clone3": [435], "close": [3],
}  # fmt: skip
"""System calls of the library, with their numbers on x86-64."""
OFF_LATER = {"fstat newfstatat", "write"}
"""Without these the client does not know its descriptors, and the program does not print its numbers."""
OFF_AT_FIRST = OFF_LATER | {"mmap", "mremap", "socket", "connect", "sendmsg", "recvmsg", "fcntl", "close"}
"""Without these there is no connection, or no memory for a record before it: events are off."""
NO_RING = {"fcntl", "sendmsg", "fallocate", "eventfd2", "memfd_create", "prlimit64"}
"""Without these the daemon cannot have the ring."""
OTHERS = {
    "execve", "exit", "exit_group", "brk", "access", "openat", "read", "pread64", "arch_prctl",
    "set_tid_address", "set_robust_list", "rseq", "wait4", "getrusage",
    "rt_sigreturn", "rt_sigaction", "vfork", "dup2", "clock_gettime",
}  # fmt: skip
"""Calls of the loader, the C library and the program."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
@WAYS
@pytest.mark.parametrize("early", [False, True])
def test_a_sandbox_that_refuses_one_call(daemon: DaemonProcess, program: Path, early: bool, way: str) -> None:
    for name, numbers in CALLS.items():
        # (Without futex the C library ends a program that waits for a thread.)
        steps = ("h" if early else "esr") + "pe" + "t" * (name != "futex") + "fFcvs"
        for error in (errno.EPERM, errno.ENOSYS):
            refused = {
                "REFUSED": " ".join(map(str, [error, *numbers, -1])),
                "UTRACEFS_DIR": os.path.relpath(daemon.directory),
                **({"EARLY": "1"} if early else {}),
            }
            old = totals(daemon)
            done = run(program, steps, **refused, **of_way(way))
            assert done.own == run(program.with_name("plain"), steps, **refused).own, (name, error)
            counted = sum(totals(daemon)) - sum(old)
            if way == "ring" and name not in (OFF_AT_FIRST if early else OFF_LATER):
                assert counted == done.emits, (name, error, done)
            assert done.waits <= 5 or way == "socket" or name in NO_RING, (name, error, done)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("call", [pytest.param(257, id="openat"), pytest.param(41, id="socket")])
def test_a_sandbox_with_a_handler(daemon: DaemonProcess, program: Path, call: int) -> None:
    """The handler of SIGSYS answers also calls of this library."""
    refused = {"REFUSED": f"{errno.EPERM} {call} -1", "TRAP": "1", "EARLY": "1"}
    refused["UTRACEFS_DIR"] = daemon.directory
    assert run(program, "ep", **refused).own == run(program.with_name("plain"), "ep", **refused).own


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
def test_a_sandbox_that_kills(program: Path) -> None:
    numbers = " ".join(map(str, CALLS["sendmsg"]))
    assert run(program, "es", REFUSED=f"0 {numbers} -1", EARLY="1").own[0] == -signal.SIGSYS


@needs("strace")
@WAYS
def test_each_call_of_the_library_is_refused_above(
    daemon: DaemonProcess, program: Path, tmp_path: Path, way: str
) -> None:
    """A whole life: with children, over restarts, to the end."""
    words = ["strace", "-f", "-qq", "-o", str(tmp_path / "calls"), str(program), "p" + LIFE + "DeCefswefsws"]
    here = {"UTRACEFS_DIR": os.path.relpath(daemon.directory), **of_way(way)}
    traced = subprocess.Popen(
        words, env={**os.environ, **here}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert traced.stdin and traced.stdout
    for kill in (True, False):
        while traced.stdout.readline() != b"waits\n":
            pass
        daemon.stop(kill)
        daemon.start()
        traced.stdin.write(b"\n")
        traced.stdin.flush()
    traced.communicate(timeout=60)
    assert traced.returncode == 3
    calls = (tmp_path / "calls").read_text()
    # Under a low number the program may write or dup2 at the same time.
    used = {
        int(number)
        for number in re.findall(r" (?:connect|fallocate|recvmsg|sendmsg|sendto|recvfrom)\((\d+),", calls)
    }
    assert used and min(used) >= 40
    used = {int(number) for number in re.findall(r" read\((\d+), \"\d+:[^:]*:/", calls)}  # a cgroup file
    assert bool(used) == (way == "ring") and min(used, default=40) >= 40
    found = set(re.findall(r"^\d+ +(\w+)\(", calls, re.MULTILINE))
    assert found - OTHERS <= {call for name in CALLS for call in name.split()}
    assert {"recvmsg", "clone3", "sendmsg", "getcwd", "getrandom"} <= found


ACTIONS = ("stop", "kill", "stop and kill", "be down")


def torment(daemon: DaemonProcess, seconds: float, seed: int) -> None:
    """The daemon is stopped and killed at times that the seed gives."""
    chance = random.Random(seed)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.05, 0.5))
        action = chance.choice(ACTIONS)
        if "stop" in action:
            with daemon.paused():
                time.sleep(chance.uniform(0.01, 1))
        if action != "stop":
            daemon.stop(kill=True)
            time.sleep(chance.uniform(0, 1) if action == "be down" else 0)
            daemon.start()


IN_PYTHON = """
import resource, select, utracefs
def switches():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
event = utracefs.event("c_count u32 who; u64 i")
event.emit(0, 0)
waits = emits = 0
print("\\nwaits", flush=True)
while not select.select([0], [], [], 0.001)[0]:
    for i in range(100):
        before = switches()
        event.emit(1, i)
        waits += switches() > before
        emits += 1
print(f"\\nemits {emits} waits {waits}")
"""


@pytest.mark.parametrize("kind", ["ring", "socket", "Python"])
@pytest.mark.parametrize("seconds", [3, pytest.param(120, marks=pytest.mark.soak)])
def test_no_emit_waits_for_the_daemon(
    daemon: DaemonProcess, program: Path, kind: str, seconds: float
) -> None:
    """Whatever the daemon does, none but the first gives the cpu away, or hardly ever, for some 0.2 ms."""
    words = [sys.executable, "-c", IN_PYTHON] if kind == "Python" else [str(program), "ewL"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **of_way(kind)}
    )
    assert process.stdin and process.stdout
    try:
        while process.stdout.readline() != "waits\n":
            pass
        if kind != "Python":
            process.stdin.write("\n")
            process.stdin.flush()
        torment(daemon, seconds, seed=5)
        out, _ = process.communicate("\n", timeout=60)
    finally:
        process.kill()
        process.wait()
    emits, waits = map(int, re.findall(r"emits (\d+) waits (\d+)", out)[0])
    # (Where the end of a connection, or its begin, changes the place of records, an emit takes a lock.)
    assert emits > 10_000 and waits <= 2 + emits // (10_000 if kind == "socket" else 100_000), out


SETNS = """
import ctypes, errno, os, sys
import utracefs

libc = ctypes.CDLL(None, use_errno=True)

def enter():
    errors = []
    for name in ("mnt", "time_for_children"):
        with open(f"/proc/self/ns/{name}") as namespace:
            failed = libc.setns(namespace.fileno(), 0)
            errors.append(errno.errorcode[ctypes.get_errno()] if failed else "done")
    os.write(1, (" ".join(errors) + chr(10)).encode())  # at once: parent and child write at the same time

enter()
event = utracefs.event("c_count u32 who; u64 i")
enter()
pid = os.fork()
enter()
if pid:
    os.waitpid(pid, 0)
else:
    event.emit(0, 0)
    enter()
    os._exit(0)
"""


ENTER = """
import ctypes, os
with open("/proc/self/ns/mnt") as namespace:
    print(*os.stat("/")[1:3], ctypes.CDLL(None).setns(namespace.fileno(), 0), *os.stat("/")[1:3])
"""


@NEEDS_ROOT
@pytest.mark.parametrize("is_there", [True, False])
def test_setns_needs_a_process_without_the_thread(
    daemon: DaemonProcess, tmp_path: Path, *, is_there: bool
) -> None:
    ino, dev, _, *entered = subprocess.check_output([sys.executable, "-c", ENTER], text=True).split()
    if [ino, dev] != entered:
        pytest.skip("setns(2) leads out of this root directory (chroot)")
    directory = daemon.directory if is_there else str(tmp_path)
    program = [sys.executable, "-c", SETNS]
    out = subprocess.check_output(program, env={**os.environ, "UTRACEFS_DIR": directory}, text=True)
    before, declared, *rest = out.splitlines()
    assert (before, declared) == ("done done", "EINVAL EUSERS")
    # The parent; the child before its first record, and after it. A child without a daemon has its thread for
    # a moment.
    assert len(rest) == 3 and {*rest} == {"EINVAL EUSERS", "done done"}
    if is_there:
        assert rest.count("done done") == 1


def test_the_page_has_each_row() -> None:
    """The others have a test of their own."""
    page = (ROOT / "docs" / "operations.md").read_text().partition("### Limits and sandboxes")[2]
    rows = re.findall(r"^\| (.+?) \|", page.partition("\n### ")[0], re.MULTILINE)
    elsewhere = {
        "limit, or refused call", "RLIMIT_NPROC", "memory of a cgroup", "seccomp with EPERM or ENOSYS",
        "seccomp that kills", "setns(2)", "dlopen(3) and dlclose(3)", "musl", "`_exit` of a forked child",
    }  # fmt: skip
    assert set(rows) == {*LIMITS, *elsewhere} - {"all of these"}
