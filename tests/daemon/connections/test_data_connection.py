"""One data connection: each method with its errors, records, descriptors, limits, and what its end lets go
of."""

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from utracefs_protocol.connection import (
    Connection,
    Notification,
    Response,
    encode_notification,
    encode_record,
    encode_request,
    encode_response,
)
from utracefs_protocol.errors import TraceError
from utracefsd.connections.data_connection import (
    MAX_DESCRIPTORS,
    WRITE_ERROR_INTERVAL_NS,
    DataConnection,
    Outgoing,
)
from utracefsd.consumers.plugins._batch import BatchProbe
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource

SECOND_NS = 1_000_000_000
PAGE = mmap.PAGESIZE
ROOT = Peer(100, 0, 0, privileged=True)
PLAIN = Peer(200, 1000, 1000, privileged=False)


class Client:
    """A program: speaks to a DataConnection, reads what it says."""

    def __init__(self, table: EventTable, peer: Peer = ROOT, **options: Any) -> None:
        self.connection = DataConnection(table, peer, **options)
        self.now_ns = 0
        self.fds: list[int] = []
        self.notifications: list[Notification] = []
        self._reader = Connection(max_object=None)
        self._msgid = 0

    def send(self, data: bytes, *fds: int) -> list[Response]:
        """Bytes, and descriptors as the kernel would hand them over: duplicates."""
        return self.take(self.connection.receive(data, [os.dup(fd) for fd in fds], self.now_ns))

    def take(self, outgoing: Outgoing) -> list[Response]:
        responses = []
        for data, fds in outgoing:
            self.fds += fds
            for message in self._reader.receive(data):
                if isinstance(message, Response):
                    responses.append(message)
                else:
                    assert isinstance(message, Notification)
                    self.notifications.append(message)
        return responses

    def request(self, method: str, *params: Any) -> bytes:
        self._msgid += 1
        return encode_request(self._msgid, method, list(params))

    def call(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> Any:
        """The result; TraceError for an error."""
        (response,) = self.send(self.request(method, *params), *fds)
        assert response.msgid == self._msgid
        if response.error is not None:
            raise TraceError(*response.error)
        return response.result

    def reg(self, name_args: str | bytes, *fds: int, **members: Any) -> dict[str, int]:
        result: dict[str, int] = self.call("DIAG_IOCSREG", {"name_args": name_args, **members}, fds=fds)
        return result

    def fails(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> str:
        """The errno's name of a call that must fail; the connection must go on."""
        with pytest.raises(TraceError) as caught:
            self.call(method, *params, fds=fds)
        assert caught.value.text
        assert not self.connection.closing
        return errno.errorcode[caught.value.errno]

    def reg_fails(self, reg: Any, *fds: int) -> str:
        return self.fails("DIAG_IOCSREG", reg, fds=fds)

    def dead(self) -> str:
        """The errno's name of the error that ended the connection."""
        assert self.connection.closing
        last = self.notifications[-1]
        assert last.method == "error"
        assert last.params[1]
        return errno.errorcode[last.params[0]]


@pytest.fixture(autouse=True)
def no_descriptor_is_leaked() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def table() -> Iterator[EventTable]:
    status = StatusFile()
    table = EventTable(status)
    yield table
    table.enablers.close()
    status.close()


@pytest.fixture
def client(table: EventTable) -> Iterator[Client]:
    client = Client(table)
    yield client
    client.connection.close(client.now_ns)
    for fd in client.fds:
        os.close(fd)


@pytest.fixture
def memory() -> Iterator[int]:
    fd = make_memory()
    yield fd
    os.close(fd)


def make_memory() -> int:
    fd = os.memfd_create("words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def word(fd: int, offset: int = 0) -> int:
    return int.from_bytes(os.pread(fd, 4, offset), "little")


def listen(table: EventTable, name: bytes) -> list[bytes]:
    """Attach to the event; the payloads it gets, after `flush`."""
    payloads: list[bytes] = []
    event = table.get(b"user_events", name)
    assert event is not None
    probe = BatchProbe("test", lambda batch: payloads.extend(record[4] for record in batch))
    table.attach(event, probe)
    return payloads


def flush(table: EventTable) -> None:
    for event in table.events():
        for probe in event.tracepoint.probes:
            assert isinstance(probe, BatchProbe)
            probe.flush()


def record(write_index: int, payload: bytes = b"") -> bytes:
    return encode_record(struct.pack("<i", write_index) + payload)


# DIAG_IOCSREG


def test_register(client: Client, table: EventTable) -> None:
    assert client.reg("test u32 a") == {"status_index": 1, "write_index": 0, "id": 20}
    assert client.reg(b"other") == {"status_index": 2, "write_index": 1, "id": 21}
    assert client.reg("test u32 a;") == {"status_index": 1, "write_index": 0, "id": 20}
    assert table.get(b"user_events", b"test").references == 1  # type: ignore[union-attr]
    assert [event.name for event in client.connection.events] == [b"test", b"other"]


def test_each_connection_has_indexes_of_its_own(table: EventTable) -> None:
    a, b = Client(table), Client(table)
    assert [a.reg(name)["write_index"] for name in ("x", "y", "z")] == [0, 1, 2]
    assert [b.reg(name)["write_index"] for name in ("z", "y")] == [0, 1]
    a.connection.close(0)
    b.connection.close(0)


def test_names_are_bytes(client: Client, table: EventTable) -> None:
    client.reg(b"caf\xe9")
    client.reg("caf\udce9")  # how a client in Python might send the same
    client.reg("café")
    assert [event.name for event in table.events()] == [b"caf\xe9", "café".encode()]


@pytest.mark.parametrize(
    "params",
    [
        [],
        [None],
        ["test"],
        [[]],
        [{}],
        [{"name_args": None}],
        [{"name_args": 5}],
        [{"name_args": "t"}, {}],
        [{"name_args": "t", "flags": "1"}],
        [{"name_args": "t", "flags": True}],
        [{"name_args": "t", "flags": -1}],
        [{"name_args": "t", "size": "28"}],
        [{"name_args": "t", "enable_addr": 8}],  # an enabler without memory
        [{"name_args": "t", "enable_fd": 0, "enable_size": 4}],  # no descriptor came
        [{"name_args": "t", "enable_fd": -1, "enable_size": 4}],
    ],
)
def test_params_of_the_wrong_shape(client: Client, table: EventTable, params: list[Any]) -> None:
    assert client.fails("DIAG_IOCSREG", *params) == "EINVAL"
    assert len(table) == 0
    client.reg("still_there")


def test_the_size_of_the_struct(client: Client) -> None:
    assert client.reg_fails({"name_args": "t", "size": 4097}) == "E2BIG"
    assert client.reg_fails({"name_args": "t", "size": 27}) == "EINVAL"
    assert client.reg_fails({"name_args": "t", "size": 0}) == "EINVAL"
    assert client.reg_fails({"name_args": "t", "size": 40, "newer": 1}) == "E2BIG"
    assert client.reg_fails({"name_args": "t", "newer": b"x"}) == "E2BIG"
    client.reg("t", size=28)
    client.reg("t", size=4096, newer=0, newest=None)


def test_unknown_flags_of_a_registration(client: Client, table: EventTable) -> None:
    assert client.reg_fails({"name_args": "t", "flags": 4}) == "EINVAL"
    client.reg("t", flags=3)
    assert table.events()[0].tracepoint_name == b"t.0"
    assert table.events()[0].persistent


@pytest.mark.parametrize(
    ("size", "addr", "bit", "number"),
    [
        (0, 0, 0, "EINVAL"),
        (2, 0, 0, "EINVAL"),
        (16, 0, 0, "EINVAL"),
        (4, 2, 0, "EINVAL"),
        (8, 4, 0, "EINVAL"),
        (4, 0, 32, "EINVAL"),
        (8, 0, 64, "EINVAL"),
        (4, -4, 0, "EINVAL"),
        (4, 0, -1, "EINVAL"),
        (4, PAGE, 0, "EFAULT"),
        (8, (1 << 64) - 8, 0, "EFAULT"),
    ],
)
def test_where_the_bit_is(
    client: Client, table: EventTable, memory: int, size: int, addr: int, bit: int, number: str
) -> None:
    reg = {
        "name_args": "bad:name",
        "enable_fd": 0,
        "enable_size": size,
        "enable_addr": addr,
        "enable_bit": bit,
    }
    assert client.reg_fails(reg, memory) == number
    assert len(table) == 0


def enabler(addr: int = 0, bit: int = 0, fd: int = 0) -> dict[str, int]:
    return {"enable_fd": fd, "enable_addr": addr, "enable_bit": bit, "enable_size": 4}


def test_the_bit_is_taken_before_the_string_is_looked_at(client: Client, memory: int) -> None:
    client.reg("t", memory, **enabler())
    assert client.reg_fails({"name_args": "bad:name", **enabler()}, memory) == "EADDRINUSE"
    assert client.reg_fails({"name_args": "n" * 600, **enabler()}, memory) == "EADDRINUSE"
    assert client.reg("t", memory, **enabler(bit=1))["write_index"] == 0


def test_the_string(table: EventTable, memory: int) -> None:
    plain = Client(table, PLAIN)
    assert plain.reg_fails({"name_args": "n" * 512}) == "EINVAL"
    assert plain.reg_fails({"name_args": "t:flag", "flags": 1}) == "EINVAL"
    assert plain.reg_fails({"name_args": "t", "flags": 1}) == "EPERM"
    plain.reg("t u32 a")
    assert plain.reg_fails({"name_args": "t bad"}) == "EADDRINUSE"
    assert plain.reg_fails({"name_args": "u bad"}) == "EINVAL"
    table.user_events_max = 1
    assert plain.reg_fails({"name_args": "u u32 a"}) == "EMFILE"
    # nothing of the failed ones stays
    assert [event.name for event in plain.connection.events] == [b"t"]
    assert plain.reg_fails({"name_args": "u", **enabler()}, memory) == "EMFILE"
    assert len(table.enablers) == 0
    plain.connection.close(0)


def test_events_of_a_user_are_counted(table: EventTable) -> None:
    table.shares.most[Resource.EVENTS] = 2
    plain, root = Client(table, PLAIN), Client(table)
    plain.reg("a")
    plain.reg("b")
    assert plain.reg_fails({"name_args": "c"}) == "EMFILE"
    root.reg("c")
    assert plain.reg("c")["write_index"] == 2
    plain.connection.close(0)
    root.connection.close(0)


def test_a_word_that_cannot_be_written(client: Client, table: EventTable, memory: int) -> None:
    readonly = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    assert client.reg_fails({"name_args": "t", **enabler()}, readonly) == "ENOMEM"
    os.close(readonly)
    (event,) = table.events()
    assert event.references == 1, "the file keeps the event, as in the kernel"
    assert client.reg("other")["write_index"] == 1
    assert client.reg("t")["write_index"] == 0


def test_the_bit_is_written_before_the_reply(client: Client, table: EventTable, memory: int) -> None:
    client.reg("t", memory, **enabler(bit=3))
    assert word(memory) == 0
    listen(table, b"t")
    assert word(memory) == 8
    client.reg("t", memory, **enabler(addr=4, bit=31))
    assert word(memory, 4) == 1 << 31


# DIAG_IOCSDEL, DIAG_IOCSUNREG, DIAG_IOCQLOCOFFSET, mmap_status


def test_delete(client: Client, table: EventTable) -> None:
    client.reg("kept", flags=1)
    assert client.fails("DIAG_IOCSDEL", "kept") == "EBUSY"
    client.connection.close(0)
    again = Client(table)
    plain = Client(table, PLAIN)
    assert plain.fails("DIAG_IOCSDEL", "kept") == "EPERM"
    assert again.call("DIAG_IOCSDEL", b"kept") is None
    assert again.fails("DIAG_IOCSDEL", "kept") == "ENOENT"
    assert again.fails("DIAG_IOCSDEL", "n" * 512) == "EINVAL"
    for params in ([], [5], [None], ["a", "b"]):
        assert again.fails("DIAG_IOCSDEL", *params) == "EINVAL"
    again.connection.close(0)
    plain.connection.close(0)


def test_delete_first_takes_in_what_others_sent(table: EventTable) -> None:
    """Also what came on this connection meanwhile, which waits until the delete is answered."""
    a = Client(table)
    a.reg("kept", flags=1)

    def take_in_all() -> None:
        a.connection.close(0)
        assert b.send(b.request("DIAG_IOCQLOCOFFSET")) == []

    b = Client(table, take_in_all=take_in_all)
    responses = b.send(b.request("DIAG_IOCSDEL", "kept"))
    assert [(response.error, response.result) for response in responses] == [(None, None), (None, 8)]
    b.connection.close(0)


def test_unregister(client: Client, table: EventTable, memory: int) -> None:
    client.reg("t", memory, **enabler(bit=1))
    (event,) = table.events()
    listen(table, b"t")
    assert (event.references, word(memory)) == (3, 2)
    unreg = {"disable_fd": 0, "disable_addr": 0, "disable_bit": 1}
    assert client.call("DIAG_IOCSUNREG", unreg, fds=(memory,)) is None
    assert (event.references, word(memory)) == (2, 0)
    assert client.fails("DIAG_IOCSUNREG", unreg, fds=(memory,)) == "ENOENT"
    assert client.call("write", struct.pack("<i", 0)) == 4, "the write index stays valid"


@pytest.mark.parametrize(
    ("unreg", "number"),
    [
        ({"size": 4097}, "E2BIG"),
        ({"size": 15}, "EINVAL"),
        ({"__reserved": 1}, "EINVAL"),
        ({"__reserved2": 1}, "EINVAL"),
        ({"newer": 1}, "E2BIG"),
        ({}, "ENOENT"),
        ({"disable_fd": None}, "EINVAL"),
        ({"disable_fd": 1}, "EINVAL"),
        ({"disable_fd": "0"}, "EINVAL"),
        ({"disable_addr": -1}, "EINVAL"),
        ({"disable_bit": 300}, "EINVAL"),
    ],
)
def test_unregistering_what_is_not_there_or_not_understood(
    client: Client, memory: int, unreg: dict[str, Any], number: str
) -> None:
    whole = {"disable_fd": 0, "disable_addr": 0, "disable_bit": 0, **unreg}
    assert client.fails("DIAG_IOCSUNREG", whole, fds=(memory,)) == number


def test_another_bit(client: Client, memory: int) -> None:
    client.reg("t", memory, **enabler(bit=1))
    unreg = {"disable_fd": 0, "disable_addr": 0, "disable_bit": 2}
    assert client.fails("DIAG_IOCSUNREG", unreg, fds=(memory,)) == "ENOENT"
    assert client.fails("DIAG_IOCSUNREG", {**unreg, "disable_addr": 4}, fds=(memory,)) == "ENOENT"


def test_any_connection_unregisters_with_any_descriptor(table: EventTable, memory: int) -> None:
    a, b = Client(table), Client(table, PLAIN)
    a.reg("t", memory, **enabler())
    readonly = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    assert (
        b.call("DIAG_IOCSUNREG", {"disable_fd": 0, "disable_addr": 0, "disable_bit": 0}, fds=(readonly,))
        is None
    )
    os.close(readonly)
    a.connection.close(0)
    b.connection.close(0)


def test_query_loc_offset(client: Client) -> None:
    assert client.call("DIAG_IOCQLOCOFFSET") == 8
    assert client.fails("DIAG_IOCQLOCOFFSET", 1) == "EINVAL"


def test_mmap_status(client: Client, table: EventTable) -> None:
    assert client.call("mmap_status") == {"size": PAGE}
    (fd,) = client.fds
    page = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
    index = client.reg("t")["status_index"]
    assert page[index] == 0
    listen(table, b"t")
    assert page[index] == 0x80
    page.close()
    assert client.fails("mmap_status", {}) == "EINVAL"


# Records


def test_acknowledged_writes(client: Client, table: EventTable) -> None:
    client.reg("t u32 a; u32 b")
    client.reg("s u32 a; __rel_loc char[] s")
    good = struct.pack("<iII", 0, 1, 2)
    assert client.fails("write", good) == "EBADF"  # W6
    assert client.fails("write", good[:8]) == "EINVAL"  # W5, before W6
    payloads = listen(table, b"t")
    listen(table, b"s")
    assert client.call("write", good) == 12
    assert client.call("write", good + b"more") == 16
    assert client.call("write", good + bytes(60000)) == 60012  # W10
    for data in (b"", b"\0", b"\0\0\0"):
        assert client.fails("write", data) == "EFAULT"  # W2
    assert client.fails("write", struct.pack("<i", -1) + bytes(8)) == "EINVAL"  # W3
    assert client.fails("write", struct.pack("<i", 2) + bytes(8)) == "ENOENT"  # W4
    assert client.fails("write", struct.pack("<i", 2147483647)) == "ENOENT"
    assert client.fails("write", struct.pack("<iIHH", 1, 1, 0, 5) + b"hello") == "EFAULT"  # W9
    assert client.fails("write", struct.pack("<iIHH", 1, 1, 0, 7) + b"hello\0") == "EFAULT"  # W8
    for params in ([], ["text"], [5], [None], [b"", b""]):
        assert client.fails("write", *params) == "EINVAL"
    flush(table)
    assert payloads[:2] == [good[4:], good[4:] + b"more"]
    assert client.notifications == []


def test_w4_nothing_registered_on_this_connection(table: EventTable) -> None:
    a, b = Client(table), Client(table)
    a.reg("t")
    assert b.fails("write", struct.pack("<i", 0)) == "ENOENT"
    a.connection.close(0)
    b.connection.close(0)


def test_bare_records_and_sync(client: Client, table: EventTable) -> None:
    """A record may use the index of a registration in the same packet."""
    client.reg("t u32 a")
    payloads = listen(table, b"t")
    packet = client.request("DIAG_IOCSREG", {"name_args": "later"})
    packet += record(0, b"1111") + record(0, b"2222") + client.request("sync") + record(0, b"3333")
    register, sync = client.send(packet)
    assert (register.error, sync.error, sync.result) == (None, None, None)
    flush(table)
    assert payloads == [b"1111", b"2222", b"3333"]
    assert client.fails("sync", 1) == "EINVAL"


def test_sync_flushes_what_waits_in_batches(table: EventTable) -> None:
    flushed: list[None] = []
    client = Client(table, flush=lambda: flushed.append(None))
    client.send(record(0))
    assert flushed == []
    client.call("sync")
    assert len(flushed) == 1
    client.connection.close(0)


def test_refused_records_are_counted_and_told_once_a_second(client: Client, table: EventTable) -> None:
    client.reg("t u32 a")
    connection = client.connection
    assert connection.next_timer_ns() is None
    assert client.send(record(0, b"1111") * 3 + record(5) + record(0, b"1")) == []
    told = [(n.method, n.params) for n in client.notifications]
    assert told == [("write_error", [errno.EBADF, 0, 3])], "the most frequent reason, at once"
    assert connection.next_timer_ns() == WRITE_ERROR_INTERVAL_NS

    client.now_ns = WRITE_ERROR_INTERVAL_NS - 1
    client.send(record(5))
    client.take(connection.speak(client.now_ns))
    assert len(client.notifications) == 1

    client.now_ns = WRITE_ERROR_INTERVAL_NS
    client.take(connection.speak(client.now_ns))
    assert client.notifications[-1].params == [errno.ENOENT, 5, 2]
    assert connection.next_timer_ns() == 2 * WRITE_ERROR_INTERVAL_NS
    client.now_ns = 5 * SECOND_NS
    client.send(record(0, b"12"))
    assert client.notifications[-1].params == [errno.EINVAL, 0, 2]
    assert connection.next_timer_ns() is None
    assert client.take(connection.speak(client.now_ns)) == []
    assert len(client.notifications) == 3


def test_invented_indexes_do_not_fill_memory(client: Client) -> None:
    client.reg("t u32 a")
    for start in range(0, 4000, 100):
        client.send(record(0, b"1111") + b"".join(record(index) for index in range(start + 1, start + 101)))
    total = sum(n.params[2] for n in client.notifications)
    for second in range(1, 200):
        client.take(client.connection.speak(second * SECOND_NS))
    assert client.connection.next_timer_ns() is None
    assert len(client.notifications) < 150
    assert sum(n.params[2] for n in client.notifications) == 4040
    assert total < 4040


# Unknown and broken things


def test_unknown_methods(client: Client) -> None:
    for method in ("", "nonsense", "diag_iocsreg", "read_file", "__init__", "close", "x" * 1000):
        assert client.fails(method, 1) == "ENOSYS"
    client.reg("t")


@pytest.mark.parametrize("method", ["mmap_ring", "adopt_ring"])
def test_no_data_ring_where_none_is_offered(client: Client, method: str) -> None:
    assert client.fails(method, {"size": 65536}) == "ENOSYS"
    assert client.fails(method, {}, fds=(0, 0)) == "ENOSYS"


def test_notifications_mean_nothing(client: Client, table: EventTable) -> None:
    assert client.send(encode_notification("DIAG_IOCSREG", [{"name_args": "t"}])) == []
    assert len(table) == 0
    client.reg("t")


@pytest.mark.parametrize(
    ("junk", "number"),
    [
        (b"\xc1", "EPROTO"),
        (b"\x05", "EPROTO"),
        (b"GET / HTTP/1.1\r\n", "EPROTO"),
        (msgpack.packb([0, 1, 2, 3]), "EPROTO"),
        (msgpack.packb([7, 1, "a", []]), "EPROTO"),
        (encode_response(1, None), "EPROTO"),
        (b"\x91" * 20, "EPROTO"),
        (b"\xc6\xff\xff\xff\xff", "EMSGSIZE"),
        (b"\xc5\xff\xff", "EMSGSIZE"),
        (b"\xdd\xff\xff\xff\xff", "EMSGSIZE"),
    ],
)
def test_broken_framing_ends_the_connection_and_keeps_what_was_before(
    client: Client, table: EventTable, memory: int, junk: bytes, number: str
) -> None:
    client.reg("t u32 a")
    payloads = listen(table, b"t")
    client.send(record(0, b"good") + junk + record(0, b"late"), memory)
    assert client.dead() == number
    flush(table)
    assert payloads == [b"good"]
    assert client.send(record(0, b"late"), memory) == []
    flush(table)
    assert payloads == [b"good"]


def test_an_object_of_64_kib_passes(client: Client, table: EventTable) -> None:
    client.reg("t u32 a")
    payloads = listen(table, b"t")
    client.send(record(0, bytes(65536 - 3 - 4)))
    flush(table)
    assert len(payloads) == 1
    assert client.notifications == []


# Descriptors


def test_byte_by_byte(client: Client, table: EventTable, memory: int) -> None:
    """The descriptor comes beside the first byte; the rest of the request follows alone."""
    data = client.request("DIAG_IOCSREG", {"name_args": "t", **enabler(bit=4)})
    assert client.send(data[:1], memory) == []
    for byte in data[1:-1]:
        assert client.send(bytes([byte])) == []
    (response,) = client.send(data[-1:])
    assert response.error is None
    listen(table, b"t")
    assert word(memory) == 16


def test_descriptors_are_closed_after_their_packet(client: Client, memory: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    client.send(client.request("DIAG_IOCQLOCOFFSET"), memory, memory)
    assert len(os.listdir("/proc/self/fd")) == before
    assert client.reg_fails({"name_args": "t", **enabler()}) == "EINVAL"
    client.send(b"", memory)
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_descriptor_for_many_requests_of_a_packet(client: Client, table: EventTable, memory: int) -> None:
    packet = b"".join(
        client.request("DIAG_IOCSREG", {"name_args": f"t{bit}", **enabler(bit=bit)}) for bit in range(8)
    )
    assert [response.error for response in client.send(packet, memory)] == [None] * 8
    assert len(table.enablers) == 8


def test_the_index_counts_the_descriptors_of_the_request(
    client: Client, table: EventTable, memory: int
) -> None:
    second = make_memory()
    client.reg("t", memory, second, **enabler(fd=1))
    listen(table, b"t")
    assert (word(memory), word(second)) == (0, 1)
    assert client.reg_fails({"name_args": "t", **enabler(fd=2)}, memory, second) == "EINVAL"
    os.close(second)


@pytest.mark.parametrize("first", ["request", "record"])
@pytest.mark.parametrize("cut", [1, 5, -1])
def test_a_packet_may_end_one_message_and_begin_another(
    client: Client, table: EventTable, memory: int, first: str, cut: int
) -> None:
    """What came with the second packet belongs to what begins in it, not to the message that ends in it."""
    second = make_memory()
    client.reg("r u32 a")
    if first == "request":
        begun = client.request("DIAG_IOCSREG", {"name_args": "t", **enabler(bit=0)})
        client.send(begun[:cut], memory)
    else:
        begun = record(0, b"1111")
        client.send(begun[:cut])
    begins = client.request("DIAG_IOCSREG", {"name_args": "t", **enabler(bit=1)})
    responses = client.send(begun[cut:] + begins, second)
    assert [response.error for response in responses] == [None] * (2 if first == "request" else 1)
    listen(table, b"t")
    assert word(second) == 2
    assert word(memory) == (1 if first == "request" else 0)
    os.close(second)


def test_descriptors_wait_for_the_end_of_a_message_in_three_packets(client: Client, memory: int) -> None:
    data = client.request("DIAG_IOCSREG", {"name_args": "t", **enabler()})
    client.send(data[:3], memory)
    client.send(data[3:6], memory)
    (response,) = client.send(data[6:])
    assert response.error is None


@pytest.mark.parametrize("split", [False, True])
def test_too_many_descriptors(client: Client, memory: int, split: bool) -> None:
    if split:
        data = client.request("DIAG_IOCQLOCOFFSET")
        for byte in data[: MAX_DESCRIPTORS + 1]:
            client.send(bytes([byte]), memory)
        client.send(data[-1:], *[memory] * MAX_DESCRIPTORS)
    else:
        client.send(client.request("DIAG_IOCQLOCOFFSET"), *[memory] * (MAX_DESCRIPTORS + 1))
    assert client.dead() == "EPROTO"


def test_sixteen_descriptors_are_not_too_many(client: Client, memory: int) -> None:
    client.reg("t", *[memory] * MAX_DESCRIPTORS, **enabler(fd=MAX_DESCRIPTORS - 1))


# The end


def test_the_end_drops_all_references(table: EventTable, memory: int) -> None:
    a = Client(table)
    for bit in range(3):
        a.reg("t u32 a", memory, **enabler(bit=bit))
    a.reg("u")
    listen(table, b"u")
    events = table.events()
    assert [event.references for event in events] == [4, 2]
    a.connection.close(7)
    a.connection.close(7)
    assert [event.references for event in events] == [0, 1]
    assert table.next_reap_ns() == 7 + table.reap_delay_ns
    assert a.send(a.request("DIAG_IOCQLOCOFFSET"), memory) == []


def test_enablers_outlive_one_of_two_connections_of_a_process(table: EventTable, memory: int) -> None:
    """A process that closes one of two files keeps its enablers (scripts/05_reregister.txt of
    tests/conformance)."""
    a, b = Client(table), Client(table)
    b.reg("t", memory, **enabler())
    b.connection.close(0)
    (event,) = table.events()
    assert event.references == 1
    table.reap(SECOND_NS)
    assert a.reg("t")["write_index"] == 0
    listen(table, b"t")
    assert word(memory) == 1
    a.connection.close(0)
    assert event.references == 1, "the listener's"
    assert word(memory) == 0


def test_half_a_message_and_the_end(table: EventTable, memory: int) -> None:
    a = Client(table)
    a.send(a.request("DIAG_IOCSREG", {"name_args": "t", **enabler()})[:9], memory)
    a.connection.close(0)
    assert len(table) == 0


def test_what_was_not_sent_is_closed(table: EventTable) -> None:
    """mmap_status answered while the connection is being pumped from within another operation."""
    client = Client(table)
    inner: list[Outgoing] = []

    def close_within() -> None:
        inner.append(client.connection.receive(client.request("mmap_status"), [], 0))
        client.connection.close(0)

    client.connection._take_in_all = close_within
    client.send(client.request("mmap_status") + client.request("DIAG_IOCSDEL", "nobody"))
    assert inner == [[]]
    for fd in client.fds:
        os.close(fd)


# Anything at all

MEMBERS = ["name_args", "flags", "size", "enable_fd", "enable_addr", "enable_bit", "enable_size"]
MEMBERS += ["disable_fd", "disable_addr", "disable_bit"]
MESSAGE = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda method, params: encode_request(1, method, params),
        st.sampled_from(
            ["DIAG_IOCSREG", "DIAG_IOCSUNREG", "DIAG_IOCSDEL", "write", "sync", "mmap_status", "x"]
        ),
        st.lists(
            st.one_of(
                st.none(),
                st.binary(max_size=8),
                st.text(st.characters(codec="utf-8"), max_size=8),
                st.dictionaries(
                    st.sampled_from(MEMBERS),
                    st.one_of(
                        st.integers(-1, 9), st.integers(-(2**63), 2**64 - 1), st.sampled_from(["t", "t u8 a"])
                    ),
                ),
            ),
            max_size=2,
        ),
    ),
    st.builds(lambda index, payload: record(index, payload), st.integers(-2, 3), st.binary(max_size=8)),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(MESSAGE, max_size=6), cuts=st.lists(st.integers(1, 30), max_size=10))
def test_nothing_that_arrives_raises_or_leaks(
    table: EventTable, messages: list[bytes], cuts: list[int]
) -> None:
    client = Client(table)
    stream = b"".join(messages)
    memory = make_memory()
    for cut in [*cuts, len(stream)]:
        client.send(stream[:cut], memory)
        stream = stream[cut:]
    client.connection.close(0)
    for fd in [memory, *client.fds]:
        os.close(fd)
    table.reap(SECOND_NS)
    assert [event for event in table.events() if not event.persistent or event.references] == []
    assert len(table.enablers) == 0
