"""One data connection: messages over several packets, their descriptors, and what its end releases."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.daemon.connections.program import (
    Client,
    enabler,
    listen,
    make_memory,
    record,
    word,
)
from utracefs_protocol.connection import (
    Request,
    encode_request,
)
from utracefsd.connections.data_connection import (
    HALF_MESSAGE_NS,
    MAX_KEPT_DESCRIPTORS,
    MAX_WAITING_DESCRIPTORS,
)
from utracefsd.events.event_table import EventTable

pytestmark = pytest.mark.usefixtures("no_descriptor_is_leaked")


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
    """Descriptors of the second packet belong to a message that begins in it, not to the one that ends in
    it."""
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


def test_too_many_descriptors(client: Client, memory: int) -> None:
    client.send(client.request("DIAG_IOCQLOCOFFSET"), *[memory] * (MAX_WAITING_DESCRIPTORS + 1))
    assert client.dead() == "EPROTO"


@pytest.mark.parametrize("packets", [1, MAX_KEPT_DESCRIPTORS + 1])
def test_an_incomplete_message_keeps_as_many_as_a_request_needs(
    client: Client, memory: int, packets: int
) -> None:
    data = client.request("DIAG_IOCQLOCOFFSET")
    for n in range(packets):
        client.send(data[n : n + 1], *[memory] * ((MAX_KEPT_DESCRIPTORS + 1) // packets))
    assert client.dead() == "EPROTO"
    assert client.connection.nr_descriptors == 0


def test_half_a_message_with_descriptors_has_its_time(client: Client, memory: int) -> None:
    begun = client.request("DIAG_IOCSREG", {"name_args": "t", **enabler()})
    client.send(begun[:3], memory)
    assert client.connection.nr_descriptors == 1
    assert client.connection.next_timer_ns() == HALF_MESSAGE_NS
    client.now_ns = HALF_MESSAGE_NS - 1
    client.send(begun[3:5])
    assert client.take(client.connection.speak(client.now_ns)) == []
    (response,) = client.send(begun[5:])
    assert response.error is None
    assert client.connection.next_timer_ns() is None
    client.send(begun[:3], memory)
    client.now_ns += HALF_MESSAGE_NS
    client.take(client.connection.speak(client.now_ns))
    assert client.dead() == "ETIMEDOUT"
    assert client.connection.next_timer_ns() is None
    assert client.connection.nr_descriptors == 0


def test_half_a_message_without_descriptors_may_take_as_long_as_it_likes(client: Client) -> None:
    client.send(client.request("DIAG_IOCQLOCOFFSET")[:3])
    assert client.connection.next_timer_ns() is None


def test_sixteen_descriptors_are_not_too_many(client: Client, memory: int) -> None:
    client.reg("t", *[memory] * MAX_WAITING_DESCRIPTORS, **enabler(fd=MAX_WAITING_DESCRIPTORS - 1))


# The end


# Any input

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


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    table.reap()
    assert [event for event in table.events() if not event.persistent or event.references] == []
    assert len(table.enablers) == 0


def test_what_was_not_sent_is_closed(client: Client) -> None:
    """It is closed between two of its messages."""
    answers = client.connection.receive(client.request("mmap_status") * 2, [], 0)
    assert next(answers) is None
    [fd] = next(answers)[1]  # type: ignore[index]
    client.fds.append(fd)
    assert next(answers) is None
    client.connection._request(Request(1, "mmap_status", []), 0)
    client.connection.close(0)
    assert list(answers) == []
