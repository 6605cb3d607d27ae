"""Another process's memory: permitted reads and writes, one bit of it, unchanged neighbours."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.mount.kernel.canary import Canary
from tests.client.mount.kernel.hanging import HangingFile, HangingProgram
from tests.integration.mount.mounting import must_mount
from utracefs.mount.processes._memory import MAX_BYTES, Memory, ended, same_memory
from utracefs.mount.processes.procfs import with_start_stack

HEADERS = Path(__file__).parents[4] / "client/utracefs/mount/processes/include"


@pytest.fixture
def memory(canary: Canary) -> Iterator[Memory]:
    memory = Memory(canary.pid)
    yield memory
    memory.close()


def errno_of(call: Callable[..., object], *args: object) -> int | None:
    try:
        call(*args)
    except OSError as error:
        return error.errno
    return None


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def set_bit(memory: Memory, canary: Canary, place: str, bit: int, on: bool) -> None:
    memory.set_bit(canary.pid, canary.at[place], 8, bit, on)


def test_it_reads_what_the_program_could(memory: Memory, canary: Canary) -> None:
    assert memory.read(canary.at["text"], 6) == b"u32 a;"
    assert memory.read_string(canary.at["text"], 12) == b"u32 a; u32 b"
    assert memory.read(canary.at["private"] - 1, 10) == b"\xa5" + bytes(8) + b"\xa5"
    assert memory.read(canary.at["readonly"], 4096) == bytes(4096)
    assert memory.read(canary.at["private"], 0) == b""
    assert memory.read(canary.at["code"], 1)


@pytest.mark.parametrize("place", ["none", "hole"])
def test_what_the_program_could_not_read_is_a_fault(memory: Memory, canary: Canary, place: str) -> None:
    """Also memory that is there and may not be touched (PROT_NONE), which /proc/PID/mem would read."""
    assert errno_of(memory.read, canary.at[place], 1) == errno.EFAULT
    assert errno_of(memory.read_string, canary.at[place], 10) == errno.EFAULT


@pytest.mark.parametrize(
    "address", [0, 1, 4096, 1 << 47, (1 << 63) - 4, 1 << 63, (1 << 64) - 4, (1 << 64) - 1]
)
def test_no_address_of_a_program(memory: Memory, canary: Canary, address: int) -> None:
    assert errno_of(memory.read, address, 4) == errno.EFAULT
    assert errno_of(memory.write, address, b"1234") == errno.EFAULT
    assert errno_of(memory.set_bit, canary.pid, address, 4, 31, True) == errno.EFAULT


def test_a_text_ends_with_its_nul_or_where_memory_does(memory: Memory, canary: Canary) -> None:
    text, tail = canary.at["text"], canary.at["tail"]
    assert errno_of(memory.read_string, text, 11) == errno.EINVAL
    assert errno_of(memory.read_string, tail, 3) == errno.EINVAL
    assert errno_of(memory.read_string, tail, 4) == errno.EFAULT
    memory.write(tail + 3, b"\0")
    assert memory.read_string(tail, 511) == b"tai"


def test_a_range_must_be_readable_to_its_end(memory: Memory, canary: Canary) -> None:
    tail = canary.at["tail"]
    assert memory.read(tail, 4) == b"tail"
    assert errno_of(memory.read, tail, 5) == errno.EFAULT
    assert errno_of(memory.write, tail, b"12345") == errno.EFAULT
    assert memory.read(tail, 4) == b"tail"


def test_secret_memory_is_left_alone(memory: Memory, canary: Canary) -> None:
    if not canary.at["secret"]:
        pytest.skip("this kernel has no memfd_secret")
    assert errno_of(memory.set_bit, canary.pid, canary.at["secret"], 4, 0, True) == errno.EFAULT


@pytest.mark.parametrize("place", ["private", "shared", "memfd"])
def test_one_bit_changes(memory: Memory, canary: Canary, place: str) -> None:
    for bit, on in [(31, True), (31, True), (29, True), (40, True), (30, False), (40, False)]:
        set_bit(memory, canary, place, bit, on)
    assert canary.words()[place] == 5 << 29


def test_a_thread_without_a_cpu_does_not_hang(
    memory: Memory, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An access that is late, and does not sleep, is waited for."""
    monkeypatch.setattr("utracefs.mount.processes._memory.DEADLINE_S", 0)
    for _ in range(1000):
        assert len(memory.read(canary.at["code"] & ~4095, 4096)) == 4096


@pytest.mark.parametrize("how", ["exec", "kill"])
def test_memory_that_is_gone_is_never_another_one(
    new_canary: Callable[..., Canary], canary: Canary, how: str
) -> None:
    """Without randomized addresses the new program has its words where the old one had them."""
    canary = new_canary("setarch", "-R")
    memory = Memory(canary.pid)
    place = canary.at["private"]
    set_bit(memory, canary, "private", 5, True)
    assert ended([memory]) == []
    if how == "exec":
        canary.exec()
        assert canary.where()["private"] == place
    else:
        canary.kill()
    for _ in range(2):
        assert errno_of(memory.read, place, 8) == errno.ESRCH
        assert errno_of(memory.read_string, place, 8) == errno.ESRCH
        assert errno_of(memory.write, place, bytes(8)) == errno.ESRCH
        assert errno_of(memory.set_bit, canary.pid, place, 8, 6, True) == errno.ESRCH
        assert ended([memory]) == [memory]
    if how == "exec":
        assert canary.words()["private"] == 0
        with contextlib.closing(Memory(canary.pid)) as another:
            assert another.fingerprint != memory.fingerprint
    memory.close()


def test_a_forked_child_has_the_fingerprint_and_memory_of_its_own(memory: Memory, canary: Canary) -> None:
    [child] = canary.fork()
    with contextlib.closing(Memory(child)) as other:
        assert other.fingerprint == memory.fingerprint
        assert not same_memory(canary.pid, child)
        other.set_bit(child, canary.at["private"], 8, 31, True)
        assert canary.words()["private"] == 0
        assert other.read(canary.at["private"], 8) == (1 << 31).to_bytes(8, "little")


def test_a_child_of_vfork_shares_it(memory: Memory, canary: Canary) -> None:
    child = int(canary.say("vfork"))
    assert same_memory(canary.pid, child)
    canary.say("vend")


def test_relatives_are_known_by_their_stack(new_canary: Callable[..., Canary], canary: Canary) -> None:
    def start_stack(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[25])

    other = new_canary()
    children = canary.fork(3)
    assert sorted(with_start_stack(start_stack(canary.pid))) == sorted([canary.pid, *children])
    assert list(with_start_stack(start_stack(other.pid))) == [other.pid]
    assert not list(with_start_stack(1))


def test_what_was_closed_answers_nothing(memory: Memory, canary: Canary) -> None:
    before = descriptors()
    memory.close()
    memory.close()
    assert descriptors() == before - 2
    assert errno_of(memory.read, canary.at["text"], 1) == errno.ESRCH
    assert ended([memory]) == [memory]


def test_limits(memory: Memory, canary: Canary) -> None:
    assert errno_of(memory.read, canary.at["text"], MAX_BYTES + 1) == errno.EINVAL
    assert errno_of(memory.read_string, canary.at["text"], MAX_BYTES) == errno.EINVAL
    assert errno_of(memory.write, canary.at["text"], bytes(MAX_BYTES + 1)) == errno.EINVAL
    with pytest.raises(OverflowError):
        memory.read(-1, 4)
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(memory)


def test_no_such_thread() -> None:
    before = descriptors()
    with pytest.raises(OSError) as caught:
        Memory(2**22 - 1)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(OSError):
        Memory(2)  # kthreadd has no memory, or it is not there
    assert descriptors() == before
    assert ended([]) == []


def test_many_threads_ask_at_once(memory: Memory, canary: Canary) -> None:
    """No state of it belongs to one thread."""
    wrong: list[bytes] = []

    def ask() -> None:
        for _ in range(50):
            got = memory.read_string(canary.at["text"], 64)
            if got != b"u32 a; u32 b":
                wrong.append(got)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_mapping_is(tmp_path: Path) -> None:
    """rm_find_in_text, for older kernels, against PROCMAP_QUERY, where the kernel has that, address by
    address; and what is taken for memory."""
    source = tmp_path / "find.c"
    source.write_text(FIND)
    command = [
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        "-fsanitize=address,undefined",
    ]
    subprocess.run([*command, f"-I{HEADERS}", source, "-o", tmp_path / "find"], check=True)
    subprocess.run([tmp_path / "find"], check=True)


FIND = r"""
#define _GNU_SOURCE
#include <assert.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "remote_memory.h"
int main(void)
{
	int maps = open("/proc/self/maps", O_RDONLY), i;
	static char *pages[600];
	struct rm_vma text, query;
	uint64_t around[] = {0, 4096, (uint64_t)&maps, (uint64_t)&main, (uint64_t)&query, 1ul << 47, -1ul};
	for (i = 0; i < 600; i++) { /* more than one buffer of lines */
		pages[i] = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mprotect(pages[i], 4096, i % 2 ? PROT_READ | PROT_WRITE : PROT_NONE);
	}
	for (i = 0; i < 607; i++) {
		uint64_t at = i < 600 ? (uint64_t)pages[i] + 4095 : around[i - 600];
		int a = rm_find_in_text(maps, at, &text), b = rm_find(maps, at, &query);
		assert(a == b);
		if (a == 0)
			assert(text.start == query.start && text.end == query.end && text.flags == query.flags &&
			       text.inode == query.inode);
		if (i < 600) {
			assert(a == 0 && text.start <= at && at < text.end);
			assert(!(text.flags & RM_WRITE) == !(i % 2));
		}
	}
	assert(rm_find_in_text(maps, 0, &text) == -EFAULT);
	struct perf_event_attr dummy = {.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY,
					.size = sizeof(dummy), .exclude_kernel = 1};
	int fds[3] = {-1, memfd_create("memory", 0), syscall(SYS_perf_event_open, &dummy, 0, -1, -1, 0)};
	assert(ftruncate(fds[1], 8192) == 0);
	for (i = 0; i < 3; i++) {
		int flags = i ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
		char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, flags, fds[i], 0);
		if (i == 2 && at == MAP_FAILED)
			break; /* no perf events here */
		assert(rm_find(maps, (uint64_t)at, &query) == 0 && (query.flags & RM_WRITE));
		assert(rm_is_memory(getpid(), (uint64_t)at, &query) == (i < 2));
	}
	return 0;
}
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[HangingFile, HangingProgram]]:
    must_mount(tmp_path / "tree")
    file = HangingFile(tmp_path / "tree")
    try:
        program = HangingProgram(file)
    except BaseException:
        file.close()
        raise
    yield file, program
    file.close()
    program.close()


SMALL = r"""
static int call(int n, int a, int b, int c)
{
	int r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(n), "b"(a), "c"(b), "d"(c) : "memory");
	return r;
}
unsigned word;
char digits[9];
void _start(void)
{
	unsigned value = (unsigned)&word;
	int i;
	for (i = 7; i >= 0; i--, value >>= 4)
		digits[i] = "0123456789abcdef"[value & 15];
	digits[8] = '\n';
	call(4, 1, (int)digits, 9);
	call(3, 0, (int)digits, 1);
	call(1, 0, 0, 0);
}
"""


def test_a_32_bit_program(tmp_path: Path) -> None:
    """Its auxiliary vector has words of its own size."""
    (tmp_path / "small.c").write_text(SMALL)
    command = ["gcc", "-m32", "-O1", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-fno-stack-protector"]
    made = subprocess.run(
        [*command, tmp_path / "small.c", "-o", tmp_path / "small"], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("no compiler for 32-bit programs")
    try:
        process = subprocess.Popen(
            [tmp_path / "small"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    except OSError:
        pytest.skip("this kernel runs no 32-bit programs")
    with process:
        assert process.stdout is not None
        address = int(process.stdout.readline(), 16)
        with contextlib.closing(Memory(process.pid)) as memory:
            memory.set_bit(process.pid, address, 4, 31, True)
            memory.set_bit(process.pid, address, 4, 30, True)
            assert memory.read(address, 4) == b"\0\0\0\xc0"
        assert process.stdin is not None
        process.stdin.close()


LEADERLESS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile unsigned word = 2; /* in a page of the program's file */
static void *stay(void *unused)
{
	char path[64], text[512];
	FILE *file;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	do {
		file = fopen(path, "r");
		fgets(text, sizeof(text), file);
		fclose(file);
	} while (!strstr(text, ") Z "));
	printf("%d %lx\n", (int)syscall(SYS_gettid), (unsigned long)&word);
	fflush(stdout);
	getchar();
	printf("%u\n", word);
	exit(0);
}
int main(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, stay, NULL);
	pthread_exit(NULL);
}
"""


def test_the_first_thread_has_ended(tmp_path: Path) -> None:
    """Others of the process have its memory still."""
    (tmp_path / "leaderless.c").write_text("#define _GNU_SOURCE\n#include <string.h>\n" + LEADERLESS)
    program = tmp_path / "leaderless"
    subprocess.run(["gcc", "-O1", "-w", "-pthread", tmp_path / "leaderless.c", "-o", program], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        tid, address = process.stdout.readline().split()
        with contextlib.closing(Memory(int(tid))) as memory:
            memory.set_bit(process.pid, int(address, 16), 4, 0, True)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.readline() == "3\n"


def test_memory_that_hangs_delays_no_other(
    hanging: tuple[HangingFile, HangingProgram], memory: Memory, canary: Canary
) -> None:
    """A page of a file whose server does not answer; everybody else's is served on."""
    file, program = hanging
    before = descriptors()
    slow, other = Memory(program.pid), Memory(program.pid)
    began = time.monotonic()
    assert errno_of(slow.read, program.address, 4) == errno.EFAULT
    assert time.monotonic() - began >= 1
    assert file.read_begun.is_set()
    assert slow.hangs
    assert memory.read_string(canary.at["text"], 64) == b"u32 a; u32 b"
    # Known now: nobody waits for it again, for 400 seconds in all.
    for _ in range(100):
        assert errno_of(slow.read, program.address, 4) == errno.EFAULT
        assert errno_of(slow.write, program.address, b"1234") == errno.EFAULT
        assert errno_of(slow.set_bit, program.pid, program.address, 4, 0, True) == errno.EFAULT
        assert ended([slow, memory]) == []
    # A thread that waits for the lock of the address space makes all others wait, also a check whether it
    # exists.
    program.lock()
    state = Path(f"/proc/{program.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "D")
    canary.kill()
    assert ended([other, memory]) == []
    assert other.hangs
    assert ended([other, memory]) == [memory]
    # Its descriptors are in use until it is over.
    slow.close()
    assert descriptors() == before + 4
    file.close()
    wait_for(lambda: not other.hangs)
    assert other.read(program.address, 0) == b""
    other.close()
    wait_for(lambda: descriptors() <= before)
