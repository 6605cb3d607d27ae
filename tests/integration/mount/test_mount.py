"""The tree as files: the system calls of any program on a mount."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from tests.client.mount.test_file_system import fails
from tests.integration.mount.mounting import run, wait_for


@pytest.fixture
def tree(shared_mount: tuple[str, Path]) -> Path:
    """The mount, reset after earlier tests."""
    _, path = shared_mount
    for name in os.listdir(path / "instances"):
        os.rmdir(path / "instances" / name)
    if os.path.exists(path / "events/user_events"):
        write(path / "events/enable", b"0")
    write(path / "dynamic_events", b"\n")
    write(path / "tracing_on", b"1")
    write(path / "trace", b"\n")
    write(path / "error_log", b"\n")
    return path


def write(path: Path, data: bytes, flags: int = os.O_TRUNC) -> None:
    """One open, one write."""
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def records(tree: Path) -> list[str]:
    return [line for line in (tree / "trace").read_text().splitlines() if not line.startswith("#")]


class TestFiles:
    def test_reading_and_writing(self, tree: Path) -> None:
        write(tree / "dynamic_events", b"u:shop u32 count; char[8] what\nu:other\n")
        assert (tree / "dynamic_events").read_text() == "u:shop u32 count; char[8] what\nu:other\n"
        assert sorted(os.listdir(tree / "events/user_events")) == ["enable", "filter", "other", "shop"]
        write(tree / "events/user_events/shop/enable", b"1\n")
        assert (tree / "events/user_events/shop/enable").read_text() == "1\n"
        assert "field:u32 count;" in (tree / "events/user_events/shop/format").read_text()
        assert "shop # Used by ftrace" in (tree / "user_events_status").read_text()
        fails(errno.EINVAL, lambda: write(tree / "events/user_events/shop/enable", b"2\n"))

    def test_truncating_and_appending(self, tree: Path) -> None:
        write(tree / "dynamic_events", b"u:one\nu:two\n")
        write(tree / "set_event", b"one\n")
        write(tree / "set_event", b"two\n", os.O_APPEND)
        assert (tree / "set_event").read_text().split() == ["user_events:two", "user_events:one"]
        write(tree / "set_event", b"two\n")
        assert (tree / "set_event").read_text().split() == ["user_events:two"]
        write(tree / "trace_marker", b"kept")
        os.close(os.open(tree / "trace", os.O_RDWR))
        os.truncate(tree / "trace", 0)
        assert len(records(tree)) == 1
        os.close(os.open(tree / "trace", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        assert records(tree) == []

    def test_positions(self, tree: Path) -> None:
        write(tree / "tracing_on", b"0")
        with open(tree / "README", "rb", buffering=0) as file:
            text = file.readall()
            assert len(text) > 500
            file.seek(0)
            assert file.read(7) + file.read(9) == text[:16]
            assert os.pread(file.fileno(), 20, 30) == text[30:50]
            assert file.read(4) == text[16:20]
            assert file.seek(len(text)) and file.read(10) == b""
        with open(tree / "tracing_on", "rb", buffering=0) as file:
            assert file.readall() == b"0\n"
            write(tree / "tracing_on", b"1")
            file.seek(0)
            assert file.readall() == b"1\n"

    def test_two_readers_have_a_position_each(self, tree: Path) -> None:
        write(tree / "buffer_size_kb", b"512")
        for i in range(2000):
            write(tree / "trace_marker", b"number %d" % i)
        with open(tree / "trace", "rb", buffering=0) as one, open(tree / "trace", "rb", buffering=0) as two:
            pieces = [(one.read(1000), two.read(777)) for _ in range(50)]
            first = b"".join(piece for piece, _ in pieces) + one.readall()
            second = b"".join(piece for _, piece in pieces) + two.readall()
        assert first == second
        assert first.count(b"number") == 2000

    def test_threads_share_a_description(self, tree: Path) -> None:
        text = (tree / "README").read_bytes()
        fd = os.open(tree / "README", os.O_RDONLY)
        wrong: list[int] = []

        def look(offset: int) -> None:
            for _ in range(50):
                if os.pread(fd, 10, offset) != text[offset : offset + 10]:
                    wrong.append(offset)

        threads = [threading.Thread(target=look, args=(100 * i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.close(fd)
        assert wrong == []

    def test_large_writes(self, tree: Path) -> None:
        """One write(2) is one command, however long."""
        lines = b"".join(b"u:event_%d u32 a\n" % i for i in range(3000))
        assert len(lines) > 3 * 4096
        write(tree / "dynamic_events", lines)
        assert (tree / "dynamic_events").read_bytes() == lines
        assert len(os.listdir(tree / "events/user_events")) == 3002


class TestAttributes:
    def test_modes_owners_sizes(self, tree: Path) -> None:
        modes = {
            "": 0o40700,
            "events": 0o40755,
            "instances": 0o40750,
            "README": 0o100440,
            "trace": 0o100640,
            "trace_marker": 0o100220,
        }
        for name, mode in modes.items():
            found = os.stat(tree / name)
            assert found.st_mode == mode, name
            assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
            assert (found.st_size, found.st_nlink, found.st_blocks) == (0, 1, 0)
        assert len({os.stat(tree / name).st_ino for name in modes}) == len(modes)

    def test_the_size_stays_0(self, tree: Path) -> None:
        fd = os.open(tree / "trace", os.O_RDWR)
        os.write(fd, b"some bytes")
        assert os.fstat(fd).st_size == os.stat(tree / "trace").st_size == 0
        os.close(fd)

    def test_chmod_and_chown_stick(self, tree: Path) -> None:
        os.chmod(tree / "trace", 0o604)
        assert stat.S_IMODE(os.stat(tree / "trace").st_mode) == 0o604
        if not os.geteuid():
            os.chown(tree / "trace", 1234, 4321)
            found = os.stat(tree / "trace")
            assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o604)
        os.utime(tree / "trace")
        assert stat.S_IMODE(os.stat(tree / "trace").st_mode) == 0o604


class TestRefusals:
    @pytest.mark.parametrize(
        ("number", "call"),
        [
            (errno.EACCES, lambda tree: os.open(tree / "new", os.O_WRONLY | os.O_CREAT)),
            (errno.EACCES, lambda tree: os.open(tree / "events/new", os.O_WRONLY | os.O_CREAT)),
            (errno.EACCES, lambda tree: os.mknod(tree / "new")),
            (errno.EPERM, lambda tree: os.mkfifo(tree / "new")),
            (errno.EPERM, lambda tree: os.mkdir(tree / "new")),
            (errno.EPERM, lambda tree: os.mkdir(tree / "events/new")),
            (errno.EPERM, lambda tree: os.rmdir(tree / "events")),
            (errno.EPERM, lambda tree: os.unlink(tree / "trace")),
            (errno.EISDIR, lambda tree: os.unlink(tree / "events")),
            (errno.EPERM, lambda tree: os.rename(tree / "trace", tree / "trace2")),
            (errno.EPERM, lambda tree: os.symlink("trace", tree / "trace2")),
            (errno.EPERM, lambda tree: os.link(tree / "trace", tree / "trace2")),
            (errno.EEXIST, lambda tree: os.open(tree / "trace", os.O_CREAT | os.O_EXCL | os.O_RDWR)),
            (errno.ENOENT, lambda tree: os.open(tree / "events/user_events/none", os.O_RDONLY)),
            (errno.ENOTDIR, lambda tree: os.open(tree / "trace/x", os.O_RDONLY)),
            (errno.EOPNOTSUPP, lambda tree: os.getxattr(tree / "trace", "user.x")),
        ],
    )
    def test_as_tracefs_refuses(self, tree: Path, number: int, call: Callable[[Path], object]) -> None:
        fails(number, lambda: call(tree))

    @pytest.mark.skipif(os.geteuid() != 0, reason="modes keep others than root from trying")
    def test_root_gets_einval_where_there_is_no_such_operation(self, tree: Path) -> None:
        fails(errno.EINVAL, lambda: write(tree / "README", b"x"))
        fails(errno.EINVAL, lambda: (tree / "trace_marker").read_bytes())


class TestInstances:
    def test_made_anew_it_is_new(self, tree: Path) -> None:
        for number in range(5):
            os.mkdir(tree / "instances/one")
            assert records(tree / "instances/one") == []
            os.chmod(tree / "instances/one/trace", 0o600 + number)
            write(tree / "instances/one/trace_marker", b"there")
            os.rmdir(tree / "instances/one")
        os.mkdir(tree / "instances/one")
        assert stat.S_IMODE(os.stat(tree / "instances/one/trace").st_mode) == 0o640

    def test_names_go_with_what_they_name(self, tree: Path) -> None:
        """Looked up, listed, removed and looked up again: no name is cached too long."""
        for _ in range(10):
            write(tree / "dynamic_events", b"u:shop u32 a\n", os.O_APPEND)
            assert os.listdir(tree / "events/user_events") == ["enable", "filter", "shop"]
            assert (tree / "events/user_events/shop/id").read_bytes()
            write(tree / "dynamic_events", b"!u:shop u32 a\n", os.O_APPEND)
            assert not os.path.exists(tree / "events/user_events/shop/id")
            assert not os.path.exists(tree / "events/user_events")


class Interrupted(Exception):
    pass


class TestStreams:
    def test_a_read_waits_for_a_record(self, tree: Path) -> None:
        fd = os.open(tree / "trace_pipe", os.O_RDONLY)
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(os.read(fd, 4096)))
        reader.start()
        assert (tree / "tracing_on").read_text() == "1\n"  # others are served meanwhile
        write(tree / "trace_marker", b"at last\n")
        reader.join(60)
        assert got and got[0].endswith(b"tracing_mark_write: at last\n")
        os.close(fd)

    @pytest.mark.parametrize("name", ["trace_pipe", "per_cpu/cpu0/trace_pipe", "per_cpu/cpu0/trace_pipe_raw"])
    def test_a_signal_interrupts_it(self, tree: Path, name: str) -> None:
        def interrupt(_number: int, _frame: FrameType | None) -> None:
            raise Interrupted

        fd = os.open(tree / name, os.O_RDONLY)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interrupted):
                os.read(fd, 4096)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        # the interrupted read consumed nothing
        for cpu in range(os.cpu_count() or 1):
            if cpu in os.sched_getaffinity(0):
                write(tree / "trace_marker", b"later\n")
        os.set_blocking(fd, False)
        if name == "trace_pipe":
            assert os.read(fd, 4096).count(b"later") >= 1
        os.close(fd)

    def test_a_reader_that_is_killed_leaves_the_file_free(self, tree: Path) -> None:
        for _ in range(10):
            reader = subprocess.Popen(["cat", str(tree / "trace_pipe")], stdout=subprocess.PIPE)
            assert reader.stdout is not None
            write(tree / "trace_marker", b"one line\n")
            assert b"one line" in reader.stdout.readline()
            reader.kill()
            reader.wait()
            reader.stdout.close()

    def test_nonblocking_from_the_open_and_by_fcntl(self, tree: Path) -> None:
        fd = os.open(tree / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        fails(errno.EAGAIN, lambda: os.read(fd, 100))
        os.set_blocking(fd, True)
        write(tree / "trace_marker", b"there\n")
        assert b"there" in os.read(fd, 4096)
        os.set_blocking(fd, False)
        fails(errno.EAGAIN, lambda: os.read(fd, 100))
        os.close(fd)

    def test_no_position(self, tree: Path) -> None:
        for name, flags in (("trace_pipe", os.O_RDONLY), ("trace_marker", os.O_WRONLY)):
            fd = os.open(tree / name, flags)
            fails(errno.ESPIPE, lambda fd=fd: os.lseek(fd, 0, os.SEEK_SET))  # type: ignore[misc]
            os.close(fd)

    def test_partial_reads_of_raw_pages(self, tree: Path) -> None:
        write(tree / "trace_marker", b"a record")
        for cpu in range(os.cpu_count() or 1):
            fd = os.open(tree / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
            try:
                page = _or_empty(fd, 1000)
                if page:
                    assert len(page) == 1000 and b"a record" in page
                    assert len(os.read(fd, 4096)) == 3096
                    return
            finally:
                os.close(fd)
        raise AssertionError("no cpu has it")

    def test_ioctl_and_mmap(self, tree: Path) -> None:
        fd = os.open(tree / "per_cpu/cpu0/trace_pipe_raw", os.O_RDONLY)
        assert fcntl.ioctl(fd, 0) == 0
        fails(errno.ENODEV, lambda: fcntl.ioctl(fd, 0x5220))
        fails(errno.ENOTTY, lambda: fcntl.ioctl(fd, 0x5221))
        os.close(fd)
        program = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(sys.argv[1], os.O_RDONLY)
got = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0))
print(ctypes.get_errno() if got == ctypes.c_void_p(-1).value else 0)
"""
        done = run([sys.executable, "-c", program, str(tree / "per_cpu/cpu0/trace_pipe_raw")], tree)
        assert done.stdout == f"{errno.ENODEV}\n", done.stderr
        assert mmap.PAGESIZE


def _or_empty(fd: int, size: int) -> bytes:
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return b""


class TestPolling:
    def test_select_poll_and_epoll(self, tree: Path) -> None:
        fd = os.open(tree / "trace_pipe", os.O_RDONLY)
        poll, epoll = select.poll(), select.epoll()
        poll.register(fd, select.POLLIN)
        epoll.register(fd, select.EPOLLIN)
        waits: list[Callable[[], object]] = [
            lambda: select.select([fd], [], [], 20)[0],
            lambda: poll.poll(20_000),
            lambda: epoll.poll(20),
        ]
        assert not select.select([fd], [], [], 0)[0]
        assert not poll.poll(0) and not epoll.poll(0)
        for wait in waits:
            ready: list[object] = []
            waiting = threading.Thread(target=lambda wait=wait, ready=ready: ready.append(wait()))
            waiting.start()
            write(tree / "trace_marker", b"wake up\n")
            waiting.join(60)
            assert ready and ready[0]
            while _nonblocking(fd):
                pass
        os.close(fd)
        epoll.close()

    def test_one_cpu_waits_for_its_watermark_and_a_read_does_not(self, tree: Path) -> None:
        os.mkdir(tree / "instances/one")
        one = tree / "instances/one"
        write(one / "buffer_size_kb", b"64")
        cpu = min(os.sched_getaffinity(0))
        write(one / "tracing_cpumask", b"%x" % (1 << cpu))
        before = os.sched_getaffinity(0)
        fd = os.open(one / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        try:
            wait_for(lambda: _mark(one), "a record")
            assert poll.poll(0) == []
            while not poll.poll(0):
                _mark(one)
            assert len(os.read(fd, 1 << 16)) == 4096
        finally:
            os.sched_setaffinity(0, before)
            os.close(fd)

    def test_files_of_a_text_are_always_ready(self, tree: Path) -> None:
        fd = os.open(tree / "tracing_on", os.O_RDWR)
        poll = select.poll()
        poll.register(fd, select.POLLIN | select.POLLOUT)
        assert poll.poll(0) == [(fd, select.POLLIN | select.POLLOUT)]
        os.close(fd)

    def test_many_wait_at_a_time(self, tree: Path) -> None:
        """More than libfuse has threads, and no other call waits for them."""
        readers = []
        for number in range(24):
            os.mkdir(tree / f"instances/i{number}")
            readers.append(
                subprocess.Popen(
                    ["cat", str(tree / f"instances/i{number}/trace_pipe")], stdout=subprocess.PIPE
                )
            )
        try:
            for number, reader in enumerate(readers):
                assert reader.stdout is not None
                write(tree / f"instances/i{number}/trace_marker", b"number %d\n" % number)
                assert reader.stdout.readline().endswith(b": number %d\n" % number)
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()


def _mark(instance: Path) -> bool:
    """Whether a marker was recorded: the daemon may run on a cpu that is not in the mask."""
    try:
        write(instance / "trace_marker", b"x" * 1000)
    except OSError as error:
        assert error.errno == errno.EBADF
        return False
    return True


def _nonblocking(fd: int) -> bytes:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.set_blocking(fd, True)


class TestMarkers:
    def test_they_belong_to_the_writer(self, tree: Path) -> None:
        writer = subprocess.Popen(
            ["bash", "-c", f"exec -a x dd if=/dev/stdin of={tree}/trace_marker status=none"],
            stdin=subprocess.PIPE,
        )
        writer.communicate(b"from dd")
        thread_ids: list[int] = []

        def mark() -> None:
            thread_ids.append(threading.get_native_id())
            write(tree / "trace_marker", b"from a thread")

        thread = threading.Thread(target=mark)
        thread.start()
        thread.join()
        lines = records(tree)
        assert f"dd-{writer.pid} " in lines[0] and "from dd" in lines[0]
        assert f"-{thread_ids[0]} " in lines[1] and "from a thread" in lines[1]
        assert thread_ids[0] != os.getpid()

    def test_a_descriptor_that_a_child_inherits_is_the_childs(self, tree: Path) -> None:
        done = run("exec 3>trace_marker; echo $BASHPID >&3; (echo $BASHPID >&3)", tree)
        assert done.returncode == 0, done.stderr
        for line in records(tree):
            pid = line.rpartition(": ")[2]
            assert f"bash-{pid} " in line


class TestTools:
    @pytest.fixture
    def shop(self, tree: Path) -> Path:
        write(tree / "dynamic_events", b"u:shop u32 count\nu:other\n")
        write(tree / "events/user_events/shop/enable", b"1")
        return tree

    @pytest.mark.parametrize(
        ("command", "says"),
        [
            ("cat events/user_events/shop/enable tracing_on", "1\n1\n"),
            ("echo 0 > tracing_on && cat tracing_on && cat < tracing_on", "0\n0\n"),
            ("grep -rl --exclude=inject 'field:u32 count' events", "events/user_events/shop/format\n"),
            (
                "find events/user_events -name id -type f | sort",
                "events/user_events/other/id\nevents/user_events/shop/id\n",
            ),
            ("find . -type d -name cpu0", "./per_cpu/cpu0\n"),
            ("ls -lR | grep -c ' trace_marker$'", "1\n"),
            ("wc -l < events/user_events/shop/id", "1\n"),
            ("head -c 4 README; head -n 1 trace", "utra# tracer: nop\n"),
            ("test -w trace && test ! -e events/user_events/nothing && echo yes", "yes\n"),
            ("printf 'shop\\nother\\n' > set_event; sort set_event", "user_events:other\nuser_events:shop\n"),
            ("df . | tail -1 | cut -d' ' -f1; stat -f -c %l .", "utracefs\n255\n"),
            ("tee tracing_on <<< 1; sed -n 1p tracing_on; dd if=tracing_on status=none bs=1", "1\n1\n1\n"),
        ],
    )
    def test_output(self, shop: Path, command: str, says: str) -> None:
        done = run(command, shop)
        assert (done.stdout, done.stderr) == (says, "")


def test_copies(tree: Path, tmp_path: Path) -> None:
    """sendfile(2) and splice(2) read through the kernel's page cache, by its size of the file."""
    for _ in range(100):
        write(tree / "trace_marker", b"x" * 900)
    write(tree / "tracing_on", b"0")
    for name in ("trace", "README", "tracing_on", "events/ftrace/print/format", "saved_cmdlines"):
        content = (tree / name).read_bytes()
        shutil.copyfile(tree / name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content
        subprocess.run(["cp", tree / name, tmp_path / "copy"], check=True)
        assert (tmp_path / "copy").read_bytes() == content
        with open(tree / name, "rb") as file:
            reader, writer = os.pipe()
            spliced = b""
            while os.splice(file.fileno(), writer, 1 << 16):
                spliced += os.read(reader, 1 << 17)
            os.close(reader)
            os.close(writer)
            assert spliced == content
            assert os.fstat(file.fileno()).st_size == os.stat(tree / name).st_size == 0
            assert file.seek(0, os.SEEK_END) == 0
    write(tree / "tracing_on", b"1")
    shutil.copyfile(tree / "tracing_on", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"1\n"
    with open(tree / "trace", "rb") as file:  # tail looks for lines at the end of a file with a size
        last = subprocess.check_output(["tail", "-n", "1", tree / "trace"])
        assert last and file.read().endswith(last)
