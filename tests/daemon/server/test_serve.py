"""The daemon behind real sockets: the way of a record, waiting reads, hostile clients, begin and end."""

import array
import contextlib
import errno
import itertools
import logging
import mmap
import operator
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from tests.daemon.intake.producing import NEED_WAKEUP
from tests.daemon.intake.producing import Producer as RingProducer
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.connection import encode_request
from utracefs_protocol.errors import TraceError
from utracefsd.server import runtime
from utracefsd.server.serve import Server, Serving, serve


class Client:
    """One connection to either socket."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock = sock
        self.msgid = itertools.count(1)
        self.unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
        self.fds: list[int] = []
        self.notifications: list[Any] = []
        self.responses: dict[int, Any] = {}
        self.at_end = False

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.sock.send(view) :]

    async def message(self) -> Any:
        """The next message; None at the end."""
        while True:
            for message in self.unpacker:
                return message
            data, ancillary, _, _ = await self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(64))
            for _level, _kind, payload in ancillary:
                self.fds += array.array("i", payload)
            if not data:
                self.at_end = True
                return None
            self.unpacker.feed(data)

    def send_now(self, data: bytes) -> None:
        """No other task runs meanwhile."""
        with socket.socket(fileno=os.dup(self.sock.fileno())) as sock:
            sock.sendall(data)

    async def response(self, msgid: int) -> Any:
        while msgid not in self.responses:
            message = await self.message()
            assert message is not None, "the daemon hung up"
            if message[0] == 2:
                self.notifications.append(message[1:])
            else:
                self.responses[message[1]] = message[2:]
        error, result = self.responses.pop(msgid)
        if error is not None:
            raise TraceError(*error)
        return result

    async def request(self, method: str, *params: Any) -> int:
        msgid = next(self.msgid)
        await self.send(encode_request(msgid, method, list(params)))
        return msgid

    async def call(self, method: str, *params: Any) -> Any:
        return await self.response(await self.request(method, *params))

    async def fails(self, method: str, *params: Any) -> int:
        with pytest.raises(TraceError) as caught:
            await self.call(method, *params)
        return caught.value.errno

    async def last_words(self) -> tuple[int, str]:
        """The daemon's last messages."""
        method, [number, text] = (await self.message())[1:]
        assert method == "error"
        assert await self.message() is None
        return number, text

    def close(self) -> None:
        self.sock.close()


class Running:
    """A daemon in a task, and clients of it."""

    def __init__(self, serving: Serving, cancel_scope: trio.CancelScope) -> None:
        self.serving = serving
        self.cancel_scope = cancel_scope
        self.clients: list[Client] = []

    async def connect(self, path: Path) -> Client:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await sock.connect(os.fspath(path))
        self.clients.append(Client(sock))
        return self.clients[-1]

    async def data(self) -> Client:
        return await self.connect(self.serving.runtime.data_socket)

    async def tree(self) -> Client:
        return await self.connect(self.serving.runtime.tracefs_socket)

    async def producer(self, name: str = "hello") -> Client:
        """A data connection with the event `name u32 n` at write_index 0, enabled."""
        client = await self.data()
        await client.call("DIAG_IOCSREG", {"name_args": f"{name} u32 n"})
        tree = await self.tree()
        await tree.call("write_file", f"events/user_events/{name}/enable", b"1", True)
        return client


def record(n: int, write_index: int = 0) -> bytes:
    return msgpack.packb(write_index.to_bytes(4, "little") + n.to_bytes(4, "little"))


def numbers(text: bytes, name: str = "hello") -> list[int]:
    """The n of every record of the event in a trace."""
    mark = f" {name}: n=0x".encode()
    return [int(line.split(b"(")[1].rstrip(b")")) for line in text.splitlines() if mark in line]


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    with trio.fail_after(timeout_s):
        while not await condition():
            await trio.sleep(0.005)


@contextlib.asynccontextmanager
async def daemon_at(directory: Path, *, over: bool = True) -> AsyncIterator[Running]:
    """Cancelled at the end, for good if `over`."""
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[Running]) -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    serving = await inner.start(serve, directory)
                    task_status.started(Running(serving, scope))

        running: Running = await nursery.start(run)
        try:
            with trio.fail_after(60):
                yield running
        finally:
            for client in running.clients:
                client.close()
                for fd in client.fds:
                    os.close(fd)
            running.serving.daemon.remove_state = over
            running.cancel_scope.cancel()


@pytest.fixture
async def daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Running]:
    """A daemon whose log must stay silent: client mistakes are not logged, and there are no bugs."""
    with caplog.at_level(logging.WARNING):
        async with daemon_at(tmp_path / "d") as running:
            yield running
    assert not caplog.records, caplog.text


class TestTheWayOfARecord:
    async def test_the_end_of_a_program_is_seen_before_a_delete(self, daemon: Running) -> None:
        await (await daemon.tree()).call("write_file", "dynamic_events", b"u:kept u32 n\n", False)
        for _ in range(20):
            using, deleting = await daemon.data(), await daemon.data()
            await using.call("DIAG_IOCSREG", {"name_args": "kept u32 n"})
            assert await deleting.fails("DIAG_IOCSDEL", "kept") == errno.EBUSY
            using.close()
            await deleting.call("DIAG_IOCSDEL", "kept")
            await deleting.call("DIAG_IOCSREG", {"name_args": "kept u32 n", "flags": 1})
            deleting.close()

    async def test_the_doorbell_of_a_ring_wakes_it(self, daemon: Running) -> None:
        """And again, when it sleeps; a connection that ends leaves no ring."""
        producer = await daemon.producer()
        fds = MadeRing.make(1 << 16)
        with socket.socket(fileno=os.dup(producer.sock.fileno())) as sock:
            socket.send_fds(sock, [encode_request(0, "adopt_ring", [{}])], fds)
        await producer.response(0)
        for fd in fds:
            os.close(fd)
        inside = daemon.serving.daemon
        (ring,) = inside.rings.intake.rings
        with contextlib.closing(RingProducer(ring)) as memory:
            for n in range(2):
                while not memory.u64(NEED_WAKEUP) & 1:
                    await trio.sleep(0.001)
                memory.emit(0, n.to_bytes(4, "little"), 1)
                memory.memory[NEED_WAKEUP] = 0
                os.eventfd_write(ring.doorbell, 1)
                while inside.instances.top.buffer.entries() == n:
                    await trio.sleep(0.001)
        producer.close()
        while len(inside.rings):
            await trio.sleep(0.001)


class TestReadsThatWait:
    async def test_a_client_that_is_gone_gives_the_pipe_free(self, daemon: Running) -> None:
        tree, other = await daemon.tree(), await daemon.tree()
        handle = await tree.call("open", "trace_pipe", os.O_RDONLY)
        await tree.request("read", handle, 4096)
        assert await other.fails("open", "trace_pipe", os.O_RDONLY) == errno.EBUSY
        tree.close()
        await other.call("open", "trace_pipe", os.O_RDONLY)

    async def test_an_end_counts_as_sent_before_the_next_operation(self, daemon: Running) -> None:
        """Also where that is carried out first; and so are requests before the end."""
        tree, other = await daemon.tree(), await daemon.tree()
        await tree.call("open", "trace_pipe", os.O_RDONLY)
        await other.call("stat", "trace")  # epoll reports it before the other one then
        msgid = next(other.msgid)
        # No task runs between these: the daemon finds the request first.
        other.send_now(encode_request(msgid, "open", ["trace_pipe", os.O_RDONLY]))
        tree.send_now(encode_request(99, "write_file", ["tracing_on", b"0", True]))
        tree.close()
        await other.response(msgid)
        assert await other.call("read_file", "tracing_on") == b"0\n"

    async def test_a_client_that_reads_nothing_and_sends_no_more(self, daemon: Running) -> None:
        """Half closed, with responses that wait to be read: nothing waits for it."""
        producer, lazy, other = await daemon.producer(), await daemon.tree(), await daemon.tree()
        for first in range(0, 30_000, 1000):
            await producer.send(b"".join(record(n) for n in range(first, first + 1000)))
        await producer.call("sync")
        asked = [await lazy.request("read_file", "trace") for _ in range(5)]
        lazy.sock.shutdown(socket.SHUT_WR)
        assert await other.call("read_file", "tracing_on") == b"1\n"
        sizes = {len(await lazy.response(msgid)) for msgid in asked}
        assert min(sizes) > 1 << 20
        with trio.fail_after(60):
            assert await lazy.message() is None


class TestHostileClients:
    """Each is ended or answered; a well-behaved one next to it loses nothing."""

    @pytest.fixture
    async def good(self, daemon: Running) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """A producer and a reader; the returned function sends a record. At the end all of them are there."""
        producer, tree = await daemon.producer("good"), await daemon.tree()
        sent = itertools.count()

        async def emit() -> None:
            await producer.send(record(next(sent)))

        yield emit
        await emit()
        assert numbers(await tree.call("read_file", "trace"), "good") == list(range(next(sent)))
        stats = await tree.call("read_file", "events/user_events/good/stats")
        assert b"lost 0\n" in stats

    Emit = Callable[[], Awaitable[None]]

    @pytest.mark.parametrize("garbage", [b"\xc1", b"GET / HTTP/1.1\r\n\r\n", b"\x93\x01\x02\x03", b"\x00"])
    async def test_garbage(self, daemon: Running, good: Emit, garbage: bytes) -> None:
        for connect in (daemon.data, daemon.tree):
            client = await connect()
            await client.send(garbage + bytes(100_000))
            number, _ = await client.last_words()
            assert number == errno.EPROTO
            await good()


class TestBeginningAndEnd:
    async def test_sockets_and_modes(self, tmp_path: Path) -> None:
        async with daemon_at(tmp_path / "d") as daemon:
            place = daemon.serving.runtime
            found = sorted(path.name for path in place.directory.iterdir())
            assert found == ["tracefs", "user_events_data", "utracefsd.lock"]
            assert stat.S_IMODE(place.tracefs_socket.stat().st_mode) == 0o600
            assert stat.S_IMODE(place.data_socket.stat().st_mode) in (0o600, 0o660)
            assert stat.S_IMODE(place.status_file.stat().st_mode) == 0o600
        assert list(place.directory.iterdir()) == []
        assert not place.status_folder.exists()

    async def test_at_the_end_every_status_byte_is_zero(self, tmp_path: Path) -> None:
        async with daemon_at(tmp_path / "d") as daemon:
            producer = await daemon.producer()
            await producer.call("mmap_status")
            with mmap.mmap(producer.fds[0], 4096, mmap.MAP_SHARED, mmap.PROT_READ) as status:
                assert any(status[:])
                daemon.cancel_scope.cancel()
                assert await producer.message() is None
                assert not any(status[:])

    async def test_an_unexpected_error_removes_no_state(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = tmp_path / "d"

        def fail(server: Server) -> None:
            raise RuntimeError("an unexpected error")

        with monkeypatch.context() as patched, pytest.raises(ExceptionGroup) as caught:
            async with daemon_at(directory) as daemon:
                kept = await daemon.data()
                await kept.call("DIAG_IOCSREG", {"name_args": "precious u32 n"})
                patched.setattr(Server, "step_done", fail)
                await kept.send(b"\xc4\0")
                await trio.sleep_forever()
        assert caught.group_contains(RuntimeError, match="an unexpected error")
        async with daemon_at(directory) as daemon:
            assert len(daemon.serving.daemon.table.named(b"precious")) == 1

    @pytest.mark.parametrize("place", ["hand_on", "on_time", "save", "ready", "round"])
    async def test_an_unexpected_error_costs_a_step_and_is_reported(
        self, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        failures = iter(range(3))

        def failing(right: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                if next(failures, None) is not None:
                    raise RuntimeError("an unexpected error")
                return right(*args)

            return call

        with caplog.at_level(logging.ERROR):
            async with daemon_at(tmp_path / "d") as daemon:
                producer, gone, tree = await daemon.producer(), await daemon.data(), await daemon.tree()
                await gone.call("DIAG_IOCSREG", {"name_args": "gone u32 n"})
                inside = daemon.serving.daemon
                owner: Any = {"ready": inside.data, "round": inside.rings}.get(place, inside)
                monkeypatch.setattr(owner, place, failing(getattr(owner, place)))
                if place == "save":
                    monkeypatch.setattr(inside.data, "_before_sending", inside.save)
                gone.close()
                await until(lambda: self.nothing_fails_any_more(failures, daemon))
                await producer.send(record(1))
                again = await daemon.tree() if place == "save" else tree
                assert numbers(await again.call("read_file", "trace")) == [1]
                assert b"faults: 3\n" in await again.call("read_file", "daemon_stats")
        assert sum(record.exc_info is not None for record in caplog.records) == 1, "each place is logged once"

    async def nothing_fails_any_more(self, failures: Iterator[int], daemon: Running) -> bool:
        """Each step may fail; what makes one is a connection that comes and sends."""
        client = await daemon.data()
        with contextlib.suppress(OSError, TraceError, AssertionError):
            await client.call("sync")
        client.close()
        with contextlib.suppress(OSError, TraceError, AssertionError):
            await (await daemon.tree()).call("read_file", "tracing_on")
        return operator.length_hint(failures) == 0

    async def test_a_failed_start_leaves_nothing(self, tmp_path: Path) -> None:
        directory = tmp_path / "d"
        directory.mkdir()
        (directory / "tracefs").write_bytes(b"in the way")
        with pytest.raises(TraceError) as caught:
            await serve(directory)
        assert caught.value.errno == errno.EEXIST
        assert [path.name for path in directory.iterdir()] == ["tracefs"]
        assert not runtime.locate(directory).status_folder.exists()
