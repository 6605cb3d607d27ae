"""Open, ioctl, write and close of user_events_data, against a daemon and processes that are plain objects."""

from __future__ import annotations

import errno
import functools
import logging
import os
import struct
from typing import Any

import pytest

from tests.client.mount.kernel.fake_kernel import (
    NIL,
    FakeSpace,
    Kernel,
    ioctl_in,
    poll_in,
    read_in,
    release_in,
    write_in,
)
from tests.client.mount.test_file_system import fails
from utracefs.mount import abi
from utracefs.mount.abi import Opcode, OpenFlag
from utracefs.mount.user_events_data import MAX_RECORD, WRITE_S
from utracefs.mount.user_reg import USER_REG, USER_UNREG
from utracefs_protocol.messages.data import (
    EventDeletion,
    EventRegistration,
    NotifyEnablers,
    OpenFor,
    Write,
)
from utracefs_protocol.messages.rows import Params
from utracefs_protocol.messages.tracefs import StatPath

REG, DEL, UNREG = 0xC0082A00, 0x40082A01, 0x40082A02
STRUCT, NAME, WORD = 0x1000, 0x2000, 0x3000
PID = 77


class Daemon:
    """Gives write indexes by command string, refuses what `errors` has, and counts nothing."""

    def __init__(self) -> None:
        self.log: list[Params] = []
        self.enabled = False
        self.indexes: dict[bytes, int] = {}
        self.errors: dict[type, int] = {}
        self.enabler_error = 0
        self.silent: set[type] = set()

    def __call__(self, params: Params) -> Any:
        self.log.append(params)
        if type(params) in self.errors:
            raise OSError(self.errors[type(params)], "refused")
        if type(params) in self.silent:
            return None
        match params:
            case StatPath():
                return {"kind": "f", "mode": 0o640, "size": 0}
            case EventRegistration(token=None, name_args=command):
                index = self.indexes.setdefault(command, len(self.indexes))
                return {"status_index": 1, "write_index": index, "id": 300, "size": 4}
            case EventRegistration():
                if self.enabler_error:
                    raise OSError(self.enabler_error, "refused")
                return {"status_index": 1, "id": 300, "enabled": int(self.enabled)}
            case Write(record):
                return len(record)
        return NIL

    def of(self, kind: type) -> list[Any]:
        return [params for params in self.log if isinstance(params, kind)]


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


class Program:
    """A process with three pages: its struct, its command string, its words."""

    def __init__(self, kernel: Kernel, pid: int = PID, uid: int = 0) -> None:
        self.kernel = kernel
        self.pid = pid
        self.uid = uid
        self.space = kernel.spaces.spaces[pid] = FakeSpace(pid, uid)
        for address in (STRUCT, NAME, WORD):
            self.space.map(address)

    def open(self) -> int:
        return self.kernel.open(b"user_events_data", os.O_RDWR, pid=self.pid, uid=self.uid)

    def ioctl(self, fh: int, command: int, argument: int = STRUCT, flags: int = 0) -> None:
        reply = self.kernel.call(
            Opcode.IOCTL, 2, ioctl_in(fh, command, argument, flags), pid=self.pid, uid=self.uid
        )
        assert reply == abi.IOCTL_OUT.pack(0, 0, 0, 0), "nothing for the kernel to copy"

    def fill(self, command: bytes, bit: int, word: int, flags: int) -> None:
        self.space.write(NAME, command + b"\0")
        self.space.write(STRUCT, USER_REG.pack(28, bit, 4, flags, word, NAME, 99))

    def register(self, fh: int, command: bytes, bit: int = 0, word: int = WORD, flags: int = 0) -> int:
        self.fill(command, bit, word, flags)
        self.ioctl(fh, REG)
        return self.space.word(STRUCT + 24)

    def unregister(self, fh: int, bit: int = 0, word: int = WORD) -> None:
        self.space.write(STRUCT, USER_UNREG.pack(16, bit, 0, 0, word))
        self.ioctl(fh, UNREG)

    def delete(self, fh: int, name: bytes) -> None:
        self.space.write(NAME, name + b"\0")
        self.ioctl(fh, DEL, NAME)

    def write(self, fh: int, record: bytes, **options: int) -> int:
        body = write_in(fh, record, **options)
        reply = self.kernel.call(Opcode.WRITE, 2, body, pid=self.pid, uid=self.uid)
        taken: int = abi.WRITE_OUT.unpack(reply)[0]
        return taken

    def release(self, fh: int) -> None:
        self.kernel.call(Opcode.RELEASE, 2, release_in(fh))


@pytest.fixture
def kernel(daemon: Daemon) -> Kernel:
    return Kernel(daemon)


@pytest.fixture
def program(kernel: Kernel) -> Program:
    return Program(kernel)


def record(index: int, payload: bytes = b"\1\0\0\0") -> bytes:
    return struct.pack("=i", index) + payload


class TestFiles:
    def test_each_has_a_connection_for_its_opener(self, kernel: Kernel, program: Program) -> None:
        other = Program(kernel, 78, 1000)
        fhs = [program.open(), program.open(), other.open()]
        assert len(set(fhs)) == 3
        assert [channel.log for channel in kernel.data_channels] == [
            [OpenFor(77, 5000, 0, 0)],
            [OpenFor(77, 5000, 0, 0)],
            [OpenFor(78, 5000, 1000, 0)],
        ]

    def test_it_has_no_position_and_writers_do_not_wait_for_each_other(self, kernel: Kernel) -> None:
        node = kernel.lookup(b"user_events_data")
        reply = kernel.call(Opcode.OPEN, node, abi.OPEN_IN.pack(os.O_RDWR, 0))
        flags = abi.OPEN_OUT.unpack(reply)[1]
        streams = OpenFlag.STREAM | OpenFlag.NONSEEKABLE | OpenFlag.PARALLEL_DIRECT_WRITES
        assert flags == OpenFlag.DIRECT_IO | streams

    def test_errors(self, kernel: Kernel, daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
        program = Program(kernel, 0)
        with caplog.at_level(logging.WARNING):
            fails(errno.EPERM, program.open)
        assert "pid namespace" in caplog.text
        daemon.errors[OpenFor] = errno.EMFILE
        fails(errno.EMFILE, Program(kernel).open)
        assert all(channel.closed for channel in kernel.data_channels)

    def test_reading_and_polling(self, kernel: Kernel, program: Program) -> None:
        fh = program.open()
        fails(errno.EINVAL, lambda: kernel.call(Opcode.READ, 2, read_in(fh, 0, 10)))
        assert kernel.call(Opcode.POLL, 2, poll_in(fh, 1, 1)) == abi.POLL_OUT.pack(0x145, 0)


class TestRegistering:
    def test_more_enablers_than_allowed(self, daemon: Daemon, program: Program) -> None:
        fh = program.open()
        daemon.enabler_error = errno.ENOMEM
        fails(errno.ENOMEM, lambda: program.register(fh, b"shop"))
        assert not program.space.enablers
        daemon.enabler_error = 0
        assert program.register(fh, b"shop") == 0

    def test_a_struct_that_cannot_be_written(self, program: Program) -> None:
        """The kernel does not look, either."""
        fh = program.open()
        program.fill(b"shop", 0, WORD, 0)
        program.space.read_only.add(STRUCT)
        program.ioctl(fh, REG)
        assert program.space.word(STRUCT + 24) == 99 and program.space.enablers

    def test_memory_that_is_not_ours(
        self, kernel: Kernel, program: Program, caplog: pytest.LogCaptureFixture
    ) -> None:
        fh = program.open()
        del kernel.spaces.spaces[PID]
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                fails(errno.EPERM, lambda: program.ioctl(fh, REG))
        assert caplog.text.count("is not ours to look into") == 1

    def test_flags(self, kernel: Kernel, program: Program) -> None:
        """Flags that make an event persistent are sent once, flags that find it every time."""
        program.register(program.open(), b"shop", flags=3)
        file, space = kernel.data_channels
        assert file.asked_for(EventRegistration)[0].flags == 3
        assert space.asked_for(EventRegistration)[0].flags == 2


class TestDeleting:
    def test_it_is_the_callers_doing(self, kernel: Kernel, daemon: Daemon, program: Program) -> None:
        fh = program.open()
        other = Program(kernel, 78, 1000)
        other.delete(fh, b"shop")
        assert kernel.data_channels[-1].log == [OpenFor(78, 5000, 1000, 0), EventDeletion(b"shop")]
        assert kernel.data_channels[-1].closed and kernel.spaces.refreshes
        daemon.errors[EventDeletion] = errno.EBUSY
        fails(errno.EBUSY, lambda: other.delete(fh, b"shop"))


class TestWriting:
    def test_a_record_is_of_the_thread_that_writes(self, kernel: Kernel, daemon: Daemon) -> None:
        program = Program(kernel)
        fh = program.open()
        assert program.write(fh, record(0)) == 8
        program.pid = 4711
        assert program.write(fh, record(0, b"")) == 4
        assert daemon.of(Write) == [Write(record(0), 77), Write(record(0, b""), 4711)]

    def test_a_daemon_that_does_not_answer(
        self, kernel: Kernel, daemon: Daemon, program: Program, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One write finds out; others, of whatever file, do not wait for the same."""
        first, second = program.open(), program.open()
        daemon.silent.add(Write)
        unique = kernel.send(Opcode.WRITE, 2, write_in(first, record(0)))
        [channel] = [one for one in kernel.data_channels if one.asked]
        [asked] = channel.asked.values()
        assert asked.answer_s == WRITE_S
        channel.answer(error=errno.ETIMEDOUT)
        kernel.silent.add(channel)  # type: ignore[arg-type]
        assert kernel.replies.pop(unique) == (errno.EBADF, b"")
        assert "does not answer" in caplog.text
        for fh in (first, second):
            fails(errno.EBADF, functools.partial(program.write, fh, record(0)))
        daemon.silent.clear()
        kernel.silent.clear()
        assert program.write(second, record(0)) == 8

    def test_the_daemon_of_another_user(self, daemon: Daemon, program: Program) -> None:
        daemon.errors[OpenFor] = errno.EPERM
        fh = program.open()
        program.write(fh, record(0))
        assert daemon.of(Write) == [Write(record(0))]

    def test_too_long_for_any_consumer(self, daemon: Daemon, program: Program) -> None:
        fh = program.open()
        program.register(fh, b"shop u32 count")
        longest = record(0, bytes(MAX_RECORD - 4))
        assert program.write(fh, longest) == MAX_RECORD
        assert len(daemon.of(Write)) == 1
        assert program.write(fh, longest + b"x") == MAX_RECORD + 1
        for index, number in ((1, errno.ENOENT), (-1, errno.EINVAL)):
            fails(number, functools.partial(program.write, fh, record(index, bytes(70_000))))
        assert len(daemon.of(Write)) == 1

    def test_a_call_in_pieces(
        self, daemon: Daemon, program: Program, caplog: pytest.LogCaptureFixture
    ) -> None:
        fh = program.open()
        with caplog.at_level(logging.WARNING):
            assert program.write(fh, record(0), offset=1024) == 8
        assert "256 pages" in caplog.text and not daemon.of(Write)
        assert program.write(fh, record(0), offset=1024, flags=os.O_APPEND) == 8
        assert len(daemon.of(Write)) == 1


class TestRestart:
    """`--wait`: the next daemon has given no index yet."""

    @pytest.fixture
    def kernel(self, daemon: Daemon) -> Kernel:
        kernel = Kernel(daemon)
        kernel.connections.reconnects = True
        return kernel

    def go(self, kernel: Kernel) -> None:
        for channel in kernel.data_channels:
            channel.end()
        kernel.data.daemon_went()

    def come(self, kernel: Kernel, daemon: Daemon) -> None:
        kernel.data_channels.clear()
        daemon.indexes.clear()
        daemon.log.clear()
        kernel.data.daemon_came()

    def test_an_event_that_is_another_by_now(self, kernel: Kernel, daemon: Daemon, program: Program) -> None:
        """Its index is EBADF, its bit the program's; the others keep theirs."""
        daemon.enabled = True
        fh = program.open()
        for bit, name in enumerate((b"one", b"two", b"three")):
            program.register(fh, name, bit)
        self.go(kernel)
        answers = daemon.__call__

        def without_two(params: Params) -> Any:
            if isinstance(params, EventRegistration) and params.name_args == b"two":
                raise OSError(errno.EADDRINUSE, "another event")
            return answers(params)

        kernel.answers = without_two
        self.come(kernel, daemon)
        assert program.space.word(WORD) == 5
        fails(errno.EBADF, lambda: program.write(fh, record(1)))
        assert program.write(fh, record(2)) == 8
        assert daemon.of(Write) == [Write(record(1), 77)], "its index now"
        fails(errno.ENOENT, lambda: program.unregister(fh, 1))
        assert program.register(fh, b"four", 9) == 3
        assert program.register(fh, b"three", 10) == 2
        assert program.write(fh, record(3)) == 8 and daemon.of(Write)[-1] == Write(record(2), 77)
        program.write(fh, record(8))
        program.write(fh, b"x")
        assert daemon.of(Write)[-2:] == [Write(record(8), 77), Write(b"x", 77)], "wrong as before"

    def test_a_registration_meanwhile_waits(self, kernel: Kernel, daemon: Daemon, program: Program) -> None:
        fh = program.open()
        self.go(kernel)
        program.fill(b"shop", 0, WORD, 0)
        unique = kernel.send(Opcode.IOCTL, 2, ioctl_in(fh, REG, STRUCT), pid=PID)
        kernel.pass_time(0.5)
        assert unique not in kernel.replies
        self.come(kernel, daemon)
        kernel.pass_time(0.5)
        assert kernel.replies.pop(unique)[0] == 0
        self.go(kernel)
        kernel.send(Opcode.OPEN, kernel.lookup(b"user_events_data"), abi.OPEN_IN.pack(2, 0), pid=PID)
        kernel.pass_time(5)
        assert kernel.replies.popitem()[1][0] == errno.ENOTCONN

    @pytest.mark.parametrize("is_of_the_file", [True, False])
    def test_a_daemon_that_ends_during_a_request(
        self, kernel: Kernel, daemon: Daemon, program: Program, is_of_the_file: bool
    ) -> None:
        fh = program.open()
        if not is_of_the_file:
            program.register(fh, b"other", 1)
        daemon.silent.add(EventRegistration if is_of_the_file else NotifyEnablers)
        if not is_of_the_file:
            daemon.silent.add(EventRegistration)
        program.fill(b"shop", 0, WORD, 0)
        unique = kernel.send(Opcode.IOCTL, 2, ioctl_in(fh, REG, STRUCT), pid=PID)
        assert unique not in kernel.replies
        self.go(kernel)
        daemon.silent.clear()
        kernel.pass_time(0.1)
        self.come(kernel, daemon)
        kernel.pass_time(0.5)
        assert kernel.replies.pop(unique)[0] == 0

    def test_the_opener_has_ended(self, kernel: Kernel, daemon: Daemon, program: Program) -> None:
        """The first who uses it is its owner then."""
        fh = program.open()
        other = Program(kernel, 78, 1000)
        other.register(fh, b"shop")
        self.go(kernel)
        answers = daemon.__call__

        def without_77(params: Params) -> Any:
            if isinstance(params, OpenFor) and params.pid == 77:
                raise OSError(errno.ESRCH, "no such process")
            return answers(params)

        kernel.answers = without_77
        self.come(kernel, daemon)
        fails(errno.EBADF, lambda: other.write(fh, record(0)))
        assert other.write(fh, record(0)) == 8

    def test_without_another_daemon(self, kernel: Kernel, daemon: Daemon, program: Program) -> None:
        kernel.connections.reconnects = False
        fh = program.open()
        self.go(kernel)
        kernel.connections.is_away = False
        fails(errno.EBADF, lambda: program.write(fh, record(0)))
        fails(errno.ENOTCONN, lambda: program.register(fh, b"shop"))
        assert not program.space.enablers
