"""Requests of the kernel, against a daemon that answers when the test says so."""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.mount.kernel.fake_kernel import FakeChannel, Kernel, poll_in, read_in, release_in, write_in
from utracefs.mount import abi, file_system
from utracefs.mount.abi import InitFlag, Opcode, OpenFlag
from utracefs.mount.channel import ANSWER_S
from utracefs_protocol.messages.rows import Params
from utracefs_protocol.messages.tracefs import (
    Close,
    ListDir,
    Mkdir,
    Open,
    Poll,
    Read,
    Ready,
    Rmdir,
    Seek,
    StatPath,
    Write,
    Writer,
)

EVENTS = [["enable", "f", 0o640], ["shop", "d", 0o755], [b"odd\xff", "d", 0o755]]


class Daemon:
    """Answers what is a fact about the tree, and lets the rest wait."""

    def __init__(self) -> None:
        self.log: list[Params] = []
        self.handle = 100

    def __call__(self, params: Params) -> Any:
        self.log.append(params)
        match params:
            case StatPath(b"gone"):
                raise FileNotFoundError(errno.ENOENT, "gone")
            case StatPath(path):
                is_file = b"trace" in path or path.endswith((b"enable", b"hist", b"data", b"README"))
                return {"kind": "f" if is_file else "d", "mode": 0o640 if is_file else 0o755, "size": 0}
            case ListDir():
                return EVENTS
            case Open():
                self.handle += 1
                return self.handle
            case Mkdir() | Rmdir() | Close() | Seek():
                return True
        return None

    def count(self, kind: type) -> int:
        return sum(isinstance(params, kind) for params in self.log)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def kernel(daemon: Daemon) -> Kernel:
    return Kernel(daemon)


def fails(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == number, caught.value


class TestInit:
    def test_what_both_can(self, kernel: Kernel) -> None:
        reply = kernel.call(Opcode.INIT, 0, abi.INIT_IN.pack(7, 40, 4096, 0xFFFF_FFFF) + bytes(48))
        major, minor, _, flags, background, _, max_write = abi.INIT_OUT.unpack(reply)[:7]
        assert (major, minor) == (7, 31)
        assert flags == sum(InitFlag)
        assert (background, max_write) == (4096, file_system.MAX_WRITE)
        assert file_system.MAX_WRITE + 4096 == file_system.REQUEST_BYTES

    def test_an_old_kernel(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR):
            fails(errno.EPROTO, lambda: kernel.call(Opcode.INIT, 0, abi.INIT_IN.pack(7, 8, 0, 0)))
        assert "7.31 is needed" in caplog.text

    def test_what_is_not_known(self, kernel: Kernel) -> None:
        fails(errno.ENOSYS, lambda: kernel.call(22, 1))
        assert len(kernel.call(Opcode.STATFS, 1)) == abi.STATFS_OUT.size


class TestNames:
    def test_lookup(self, kernel: Kernel, daemon: Daemon) -> None:
        reply = abi.ENTRY_OUT.unpack(kernel.call(Opcode.LOOKUP, abi.ROOT_ID, b"trace\0"))
        assert daemon.log == [StatPath(b"trace")]
        assert stat.S_ISREG(reply[6 + 9]) and reply[2] == 3600
        fails(errno.ENOENT, lambda: kernel.lookup(b"gone"))
        fails(errno.ESTALE, lambda: kernel.call(Opcode.LOOKUP, 4711, b"trace\0"))

    @pytest.mark.parametrize(
        ("path", "valid_s"),
        [
            (b"events", 3600),
            (b"per_cpu/cpu0", 3600),
            (b"per_cpu/cpu0/trace", 3600),
            (b"options/overwrite", 3600),
            (b"events/user_events", 0),
            (b"events/user_events/shop", 0),
            (b"events/user_events/shop/enable", 3600),
            (b"instances", 3600),
            (b"instances/one", 0),
            (b"instances/one/trace", 3600),
            (b"instances/one/events/user_events/shop", 0),
            (b"instances/one/events/user_events/shop/enable", 3600),
            (b"consumers/one", 0),
        ],
    )
    def test_only_what_stays_is_believed_in(self, kernel: Kernel, path: bytes, valid_s: int) -> None:
        parent, _, name = path.rpartition(b"/")
        node = kernel.lookup(parent) if parent else abi.ROOT_ID
        assert abi.ENTRY_OUT.unpack(kernel.call(Opcode.LOOKUP, node, name + b"\0"))[2] == valid_s

    def test_a_listing_saves_the_lookups_behind_it(self, kernel: Kernel, daemon: Daemon) -> None:
        node = kernel.lookup(b"events/user_events")
        fh = abi.OPEN_OUT.unpack(kernel.call(Opcode.OPENDIR, node))[0]
        kernel.call(Opcode.READDIR, node, read_in(fh, 0, 4096))
        asked = len(daemon.log)
        for name in (b"enable", b"shop", b"odd\xff"):
            kernel.call(Opcode.LOOKUP, node, name + b"\0")
        assert len(daemon.log) == asked
        kernel.now += file_system.SEEN_S
        kernel.call(Opcode.LOOKUP, node, b"shop\0")
        assert len(daemon.log) == asked + 1

    @pytest.mark.parametrize("by", ["write", "truncate", "close", "mkdir", "rmdir"])
    def test_what_is_changed_through_the_mount_is_seen_at_once(
        self, kernel: Kernel, daemon: Daemon, by: str
    ) -> None:
        fh = kernel.open(b"trace", os.O_WRONLY)
        kernel.lookup(b"events/user_events/shop")
        match by:
            case "write":
                kernel.send(Opcode.WRITE, 2, write_in(fh, b"x"))
                kernel.lookup(b"events/user_events/shop")  # before it is carried out
                kernel.main.answer(1)
            case "truncate":
                kernel.open(b"trace", os.O_WRONLY | os.O_TRUNC)
            case "close":
                kernel.call(Opcode.RELEASE, 2, release_in(fh, os.O_WRONLY))
            case "mkdir":
                kernel.call(Opcode.MKDIR, kernel.lookup(b"instances"), bytes(8) + b"one\0")
            case "rmdir":
                kernel.call(Opcode.RMDIR, kernel.lookup(b"instances"), b"one\0")
        asked = daemon.count(StatPath)
        kernel.lookup(b"events/user_events/shop")
        assert daemon.count(StatPath) == asked + 3

    def test_what_is_remembered_is_limited(
        self, kernel: Kernel, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_system, "_MAX_SEEN", 2)
        for _ in range(2):
            for name in (b"a", b"b", b"c"):
                kernel.lookup(name)
        assert daemon.count(StatPath) == 6

    def test_forgetting(self, kernel: Kernel) -> None:
        one, two = kernel.lookup(b"trace"), kernel.lookup(b"README")
        kernel.send(Opcode.FORGET, one, abi.FORGET_IN.pack(1))
        fails(errno.ESTALE, lambda: kernel.call(Opcode.GETATTR, one))
        body = abi.BATCH_FORGET_IN.pack(1, 0) + abi.FORGET_ONE.pack(two, 1)
        kernel.send(Opcode.BATCH_FORGET, 0, body)
        fails(errno.ESTALE, lambda: kernel.call(Opcode.GETATTR, two))
        assert kernel.replies == {}

    def test_a_killed_process_has_no_node(self, kernel: Kernel) -> None:
        kernel.send(Opcode.LOOKUP, abi.ROOT_ID, b"trace\0", killed=True)
        assert len(kernel.nodes) == 1


class TestDirectories:
    def test_a_listing_in_pieces(self, kernel: Kernel, daemon: Daemon) -> None:
        node = kernel.lookup(b"events")
        fh = abi.OPEN_OUT.unpack(kernel.call(Opcode.OPENDIR, node))[0]
        names, offset = [], 0
        while piece := kernel.call(Opcode.READDIR, node, read_in(fh, offset, 70)):
            while piece:
                _ino, offset, length, kind = abi.DIRENT.unpack_from(piece)
                names.append((piece[abi.DIRENT.size : abi.DIRENT.size + length], kind))
                piece = piece[abi.DIRENT.size + (length + 7) // 8 * 8 :]
        assert names == [(b".", 4), (b"..", 4), (b"enable", 8), (b"shop", 4), (b"odd\xff", 4)]
        assert daemon.count(ListDir) == 1
        kernel.call(Opcode.READDIR, node, read_in(fh, 0, 4096))  # rewinddir
        assert daemon.count(ListDir) == 2
        assert kernel.call(Opcode.RELEASEDIR, node, release_in(fh)) == b""

    @pytest.mark.parametrize("answer", [5, [5], [["a", "f"]], [["a", 1, 2]]])
    def test_a_daemon_that_talks_nonsense(self, answer: Any) -> None:
        kernel = Kernel(lambda params: answer)
        fh = abi.OPEN_OUT.unpack(kernel.call(Opcode.OPENDIR, abi.ROOT_ID))[0]
        fails(errno.EPROTO, lambda: kernel.call(Opcode.READDIR, abi.ROOT_ID, read_in(fh, 0, 100)))
        fails(errno.EPROTO, lambda: kernel.lookup(b"trace"))


class TestReading:
    def test_while_another_read_is_under_way_each_says_where(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace")
        kernel.send(Opcode.READ, 2, read_in(fh, 0, 5))
        kernel.send(Opcode.READ, 2, read_in(fh, 5, 5))
        assert kernel.main.log[-3:] == [Read(101, 5), Seek(101, 5), Read(101, 5)]

    def test_a_refused_seek_is_the_error_of_the_read(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace")
        kernel.main.answers = lambda params: None
        unique = kernel.send(Opcode.READ, 2, read_in(fh, 7, 5))
        kernel.main.answer(error=errno.ESPIPE)
        kernel.main.answer(b"data")
        assert kernel.replies[unique] == (errno.ESPIPE, b"")

    def test_direct_and_streams(self, kernel: Kernel) -> None:
        def flags(path: bytes) -> int:
            reply = kernel.call(Opcode.OPEN, kernel.lookup(path), abi.OPEN_IN.pack(0, 0))
            found: int = abi.OPEN_OUT.unpack(reply)[1]
            return found

        assert flags(b"trace") == flags(b"events/a/b/hist") == OpenFlag.DIRECT_IO
        stream = OpenFlag.DIRECT_IO | OpenFlag.STREAM | OpenFlag.NONSEEKABLE
        assert flags(b"trace_pipe") == flags(b"trace_marker") == stream

    def test_flags_of_the_open_that_matter(self, kernel: Kernel, daemon: Daemon) -> None:
        flags = os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK
        kernel.open(b"trace", flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        assert daemon.log[-1] == Open(b"trace", flags)

    def test_a_handle_that_is_not_open(self, kernel: Kernel) -> None:
        fails(errno.EBADF, lambda: kernel.call(Opcode.READ, 2, read_in(4711, 0, 5)))
        assert kernel.call(Opcode.RELEASE, 2, release_in(4711)) == b""


class TestStreams:
    def test_each_has_its_connection(self, kernel: Kernel) -> None:
        one, two = kernel.open(b"trace_pipe"), kernel.open(b"per_cpu/cpu0/trace_pipe_raw")
        assert [channel.log for channel in kernel.channels] == [
            [Open(b"trace_pipe", 0)],
            [Open(b"per_cpu/cpu0/trace_pipe_raw", 0)],
        ]
        kernel.call(Opcode.RELEASE, 2, release_in(one))
        kernel.call(Opcode.RELEASE, 2, release_in(two))
        assert all(channel.closed for channel in kernel.channels)

    def test_it_may_take_for_ever_unless_it_must_not(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_pipe")
        kernel.send(Opcode.READ, 2, read_in(fh, 0, 100))
        kernel.send(Opcode.READ, 2, read_in(fh, 0, 100, os.O_NONBLOCK | os.O_RDWR))
        waits, must_not = kernel.channels[0].asked.values()
        assert (waits.params, waits.answer_s) == (Read(101, 100, 0), None)
        assert (must_not.params, must_not.answer_s) == (Read(101, 100, os.O_NONBLOCK), ANSWER_S)

    def test_reads_that_wait_are_limited(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_pipe")
        for _ in range(file_system.MAX_WAITING_READS):
            kernel.send(Opcode.READ, 2, read_in(fh, 0, 100))
        fails(errno.EBUSY, lambda: kernel.call(Opcode.READ, 2, read_in(fh, 0, 100)))
        kernel.channels[0].answer(b"x")
        kernel.send(Opcode.READ, 2, read_in(fh, 0, 100))
        assert len(kernel.channels[0].asked) == file_system.MAX_WAITING_READS

    def test_connections_are_limited(self, kernel: Kernel) -> None:
        handles = [kernel.open(b"trace_pipe") for _ in range(file_system.MAX_WAITED_FILES)]
        fails(errno.ENFILE, lambda: kernel.open(b"trace_pipe"))
        kernel.open(b"trace")
        kernel.call(Opcode.RELEASE, 2, release_in(handles[0]))
        kernel.open(b"trace_pipe")

    def test_an_open_that_is_refused_leaves_no_connection(self, daemon: Daemon) -> None:
        def busy(params: Params) -> Any:
            if isinstance(params, Open):
                raise OSError(errno.EBUSY, "taken")
            return daemon(params)

        kernel = Kernel(busy)
        for _ in range(file_system.MAX_WAITED_FILES + 1):
            fails(errno.EBUSY, lambda: kernel.open(b"trace_pipe"))
        assert all(channel.closed for channel in kernel.channels)

    def test_an_open_comes_after_earlier_closes(self, daemon: Daemon) -> None:
        closes: list[Params] = []

        def slow_close(params: Params) -> Any:
            if isinstance(params, Close):
                closes.append(params)
                return None
            return daemon(params)

        kernel = Kernel(slow_close)
        node = kernel.lookup(b"trace_pipe")
        fh = kernel.open(b"trace_pipe")
        instances = kernel.lookup(b"instances")
        kernel.send(Opcode.RELEASE, node, release_in(fh))
        opening = kernel.send(Opcode.OPEN, node, abi.OPEN_IN.pack(0, 0))
        removing = kernel.send(Opcode.RMDIR, instances, b"one\0")
        assert daemon.count(Open) == 1 and daemon.count(Rmdir) == 0
        kernel.channels[0].answer(error=errno.EIO)
        assert daemon.count(Open) == 2 and daemon.count(Rmdir) == 1
        assert kernel.replies[opening][0] == kernel.replies[removing][0] == 0
        assert kernel.channels[0].closed

    def test_a_process_killed_during_open_holds_nothing(self, kernel: Kernel, daemon: Daemon) -> None:
        node = kernel.lookup(b"trace_pipe")
        kernel.send(Opcode.OPEN, node, abi.OPEN_IN.pack(0, 0), killed=True)
        assert daemon.log[-1] == Close(101)
        assert kernel.channels[0].closed
        kernel.send(Opcode.OPENDIR, abi.ROOT_ID, b"", killed=True)


class TestPoll:
    def poll(self, kernel: Kernel, fh: int, *, ready: bool, notify: bool = True) -> int:
        unique = kernel.send(Opcode.POLL, 2, poll_in(fh, 55, int(notify)))
        assert kernel.channels[0].log[-1] == Ready(101)
        msgid = max(kernel.channels[0].asked)
        kernel.channels[0].asked.pop(msgid).answer(ready)
        events: int = abi.POLL_OUT.unpack(kernel.replies.pop(unique)[1])[0]
        return events

    def test_somebody_waits(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_pipe")
        assert self.poll(kernel, fh, ready=False) == 0
        assert self.poll(kernel, fh, ready=False) == 0
        [waiting] = kernel.channels[0].asked.values()
        assert (waiting.params, waiting.answer_s) == (Poll(101), None)
        assert kernel.notices == []
        kernel.channels[0].answer(True)
        assert kernel.notices == [(abi.NOTIFY_POLL, abi.NOTIFY_POLL_OUT.pack(55))]
        assert self.poll(kernel, fh, ready=False) == 0
        assert len(kernel.channels[0].asked) == 1

    def test_nobody_waits(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_pipe")
        assert self.poll(kernel, fh, ready=False, notify=False) == 0
        assert kernel.channels[0].asked == {}


class TestWriting:
    def test_a_write_and_how_much_was_taken(self, kernel: Kernel) -> None:
        fh = kernel.open(b"set_event_trace", os.O_WRONLY)
        unique = kernel.send(Opcode.WRITE, 2, write_in(fh, b"one two"))
        assert kernel.main.answer(4) == Write(101, b"one two")
        assert kernel.replies.pop(unique) == (0, abi.WRITE_OUT.pack(4, 0))

    def test_a_marker_says_whose_it_is(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_marker", os.O_WRONLY)
        for pid, writer in ((77, Writer(77, 5000)), (78, None), (0, None)):
            kernel.send(Opcode.WRITE, 2, write_in(fh, b"x"), pid=pid)
            assert kernel.main.answer(1) == Write(101, b"x", writer)

    def test_a_daemon_that_does_not_see_the_thread(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_marker", os.O_WRONLY)
        for _ in range(2):
            unique = kernel.send(Opcode.WRITE, 2, write_in(fh, b"x"))
            assert kernel.main.answer(error=errno.ESRCH) == Write(101, b"x", Writer(77, 5000))
            assert kernel.main.answer(1) == Write(101, b"x")
            assert kernel.replies.pop(unique)[0] == 0

    def test_a_daemon_that_refuses_us_gets_one_request(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_marker", os.O_WRONLY)
        kernel.send(Opcode.WRITE, 2, write_in(fh, b"x"))
        kernel.main.answer(error=errno.EPERM)
        kernel.main.answer(1)
        kernel.send(Opcode.WRITE, 2, write_in(fh, b"y"))
        assert kernel.main.answer(1) == Write(101, b"y")

    def test_other_errors_are_the_writers(self, kernel: Kernel) -> None:
        fh = kernel.open(b"trace_marker", os.O_WRONLY)
        unique = kernel.send(Opcode.WRITE, 2, write_in(fh, b"x"))
        kernel.main.answer(error=errno.EBADF)
        assert kernel.replies.pop(unique) == (errno.EBADF, b"")

    def test_user_events_data_is_a_file_of_its_own(self, kernel: Kernel, daemon: Daemon) -> None:
        """test_user_events_data.py has the rest."""
        unique = kernel.send(Opcode.OPEN, kernel.lookup(b"user_events_data"), abi.OPEN_IN.pack(2, 0))
        assert daemon.count(Open) == 0
        kernel.data_channels[0].answer()
        fh = abi.OPEN_OUT.unpack(kernel.replies.pop(unique)[1])[0]
        waits = kernel.send(Opcode.OPEN, 2, abi.OPEN_IN.pack(0, 0))
        kernel.main.asked.clear()
        assert kernel.call(Opcode.RELEASE, 2, release_in(fh)) == b""
        assert kernel.data_channels[0].closed and waits not in kernel.replies

    def test_a_killed_process_is_answered_at_once(self, kernel: Kernel, daemon: Daemon) -> None:
        """Its request is carried out, and undone if no process gets the result."""
        node = kernel.lookup(b"user_events_data")
        unique = kernel.send(Opcode.OPEN, node, abi.OPEN_IN.pack(2, 0))
        kernel.send(Opcode.INTERRUPT, 0, abi.INTERRUPT_IN.pack(unique))
        assert unique not in kernel.replies, "another signal"
        kernel.killed.add(77)
        for _ in range(2):
            kernel.send(Opcode.INTERRUPT, 0, abi.INTERRUPT_IN.pack(unique))
        assert kernel.replies.pop(unique) == (errno.EINTR, b"")
        kernel.data_channels[0].answer()
        assert unique not in kernel.replies
        assert kernel.data_channels[0].closed
        kernel.send(Opcode.INTERRUPT, 0, abi.INTERRUPT_IN.pack(unique))

    def test_the_next_daemon(self, kernel: Kernel, daemon: Daemon) -> None:
        """Handles of the one before are dead, and names are asked for again."""
        waited, text = kernel.open(b"trace_pipe"), kernel.open(b"README")
        before = kernel.main
        before.close()
        kernel.channels[0].close()
        kernel.main = FakeChannel(daemon)
        kernel.files.daemon_came(kernel.main)  # type: ignore[arg-type]
        for fh in (waited, text):
            for opcode, body in ((Opcode.READ, read_in(fh, 0, 10)), (Opcode.RELEASE, release_in(fh))):
                fails(errno.ENOTCONN, functools.partial(kernel.call, opcode, 2, body))
        kernel.open(b"README")
        assert len(kernel.main.asked_for(Open)) == 1
        assert len([kernel.open(b"trace_pipe") for _ in range(file_system.MAX_WAITED_FILES)]) == 200
