"""emitted = recorded + filtered + lost, for every event and every consumer, whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for

ROOT = Path(__file__).parents[2]


def compiled(folder: Path, source: str) -> Path:
    """A program in C."""
    (folder / "program.c").write_text(source)
    client = ROOT / "client" / "utracefs" / "c"
    options = [f"-I{client}/include", f"{client}/lib/libutracefs.a", "-pthread"]
    subprocess.run(["gcc", "-o", "program", "program.c", *options], cwd=folder, check=True)
    return folder / "program"


def stats(text: bytes) -> tuple[int, dict[str, dict[str, int]]]:
    emitted = re.match(rb"emitted: (\d+)\n", text)
    assert emitted, text
    rows = re.findall(rb"^(\S+): recorded (\d+) filtered (\d+) lost (\d+)$", text, re.MULTILINE)
    return int(emitted[1]), {
        r[0].decode(): {"recorded": int(r[1]), "filtered": int(r[2]), "lost": int(r[3])} for r in rows
    }


LAST = """
import time, utracefs
utracefs.event("cons u64 n; __rel_loc char[] s").emit(1, "")
print(time.monotonic(), flush=True)
"""


def test_a_program_in_python_waits_once_for_a_stopped_daemon(
    daemon: DaemonProcess, environment: dict[str, str]
) -> None:
    """Half a second for the ends of the interpreter and of the process together."""

    def end_s() -> float:
        done = subprocess.run(
            [sys.executable, "-c", LAST], env=environment, stdout=subprocess.PIPE, check=True
        )
        return time.monotonic() - float(done.stdout)

    with daemon.paused():
        assert 0.5 <= min(end_s() for _ in range(3)) < 0.9


REFUSED = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utracefs.h>
UTRACEFS_EVENT(cons, (u64, n));
int main(int argc, char **argv)
{
	if (argc > 2 && fork())
		return wait(NULL) < 0;
	for (int i = 0; i < atoi(argv[1]); i++)
		UTRACEFS_EMIT(cons, i);
	_exit(0);
}
"""


@pytest.mark.parametrize(
    ("ring", "child", "count"),
    [("1", "", 10), ("1", "", 5000), ("1", "child", 10), ("0", "child", 10)],
    ids=["ring", "full", "child", "socket"],
)
def test_records_of_a_refused_event_by_a_program_that_ends_at_once(
    daemon: DaemonProcess, environment: dict[str, str], tmp_path: Path, ring: str, child: str, count: int
) -> None:
    """Its name is another event's, and the program does not live to count them."""
    program = compiled(tmp_path, REFUSED)
    with daemon.tree() as tree:
        tree.write_file("dynamic_events", b"u:cons u32 other\n")
        with daemon.paused():
            subprocess.run(
                [program, str(count), *child.split()],
                env={**environment, "UTRACEFS_DATA_RING": ring, "UTRACEFS_RING_KB": "64"},
                check=True,
            )
        wait_for(lambda: f"events: {count}\n".encode() in tree.read_file("daemon_stats"), "all counted")


SHORT = """
#include <unistd.h>
#include <utracefs.h>
UTRACEFS_EVENT(cons, (u64, n), (string, s));
int main(void)
{
	UTRACEFS_EMIT(cons, 1, "");
	return usleep(60000);
}
"""


TAKES = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utracefs.h>
UTRACEFS_EVENT(cons, (u64, n));
static int calls;
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (calls++ == 0)
		dup2(open("/dev/null", O_RDWR), fd);
	return syscall(SYS_sendmsg, fd, message, flags);
}
int main(void)
{
	for (int i = 0; i < 100; i++)
		UTRACEFS_EMIT(cons, i);
	return 0;
}
"""


def test_a_program_that_replaces_the_clients_socket_before_its_first_message(
    daemon: DaemonProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    """It connects again at once; before, its events were off for 50 ms."""
    program = compiled(tmp_path, TAKES)
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:cons\n")
        subprocess.run([program], env=environment, check=True)
        assert stats(tree.read_file("events/user_events/cons/stats"))[0] == 100


WAITS = """
#include <stdio.h>
#include <unistd.h>
#include <utracefs.h>
UTRACEFS_EVENT(cons, (u64, n));
int main(void)
{
	uint64_t n = 1;
	struct iovec iov = {&n, sizeof(n)};
	while (!utracefs_enabled(&cons) || utracefs_event_error(&cons, NULL, 0))
		usleep(1000);
	puts("on");
	fflush(stdout);
	getchar();
	return printf("%d\\n", utracefs_emit_iov(&cons, &iov, 1)) < 0;
}
"""


def test_a_record_that_is_not_taken_is_an_error_where_it_is_in_no_number(
    daemon: DaemonProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    """The daemon has closed the ring and is gone, and the program has not noticed yet."""
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:cons\n")
    with subprocess.Popen(
        [compiled(tmp_path, WAITS)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == b"on\n"
        (ring,) = (
            fd
            for fd in Path(f"/proc/{program.pid}/fd").iterdir()
            if os.readlink(fd).startswith("/memfd:utracefs-data-ring")
        )
        with daemon.paused(), ring.open("r+b") as memory:
            os.unlink(f"{daemon.directory}/user_events_data")
            memory.seek(64)  # head, whose highest byte has DR_CLOSED
            head = int.from_bytes(memory.read(8), "little")
            memory.seek(64)
            memory.write((head | 1 << 62).to_bytes(8, "little"))
            memory.flush()
            program.stdin.write(b"\n")
            program.stdin.flush()
            assert program.stdout.readline() == b"-9\n"


@contextlib.contextmanager
def full_queue(daemon: DaemonProcess) -> Iterator[None]:
    """The daemon is stopped, and no connection to it is possible."""
    with contextlib.ExitStack() as opened, daemon.paused():
        with contextlib.suppress(BlockingIOError):
            while True:
                sock = opened.enter_context(socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                sock.connect(f"{daemon.directory}/user_events_data")
        yield


def test_a_program_that_ends_while_the_daemon_has_a_full_queue(
    daemon: DaemonProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    """In the time between two attempts to connect."""
    short = compiled(tmp_path, SHORT)
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:cons\n")
        with full_queue(daemon):
            program = subprocess.Popen([short], env=environment)
            time.sleep(0.3)
        assert program.wait(60) == 0
        # A busy daemon accepts it some time later, behind the connections that filled the queue.
        wait_for(lambda: b"entries-written: 1/1 " in tree.read_file("trace"), "its record")
        emitted, _ = stats(tree.read_file("events/user_events/cons/stats"))
    assert emitted == 1


@pytest.mark.parametrize("forks", ["", 'if (fork()) return wait(NULL) < 0; UTRACEFS_EMIT(cons, 2, "");'])
def test_programs_at_a_full_queue_leave_the_machine_to_others(
    daemon: DaemonProcess, environment: dict[str, str], tmp_path: Path, forks: str
) -> None:
    """There may be a thousand, so each tries more and more seldom."""
    source = SHORT.replace("return usleep(60000)", f"{forks} return usleep(1500000)")
    program = compiled(tmp_path, f"#include <sys/wait.h>\n{source}")
    with full_queue(daemon):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program], env=environment, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_nvcsw - before.ru_nvcsw < 300
