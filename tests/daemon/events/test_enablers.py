"""Enablers: valid memory, writes into it, and the end of an enabler."""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator

import pytest

from tests.daemon.events.helpers import Memory, mappings
from tests.daemon.record_path import Collecting
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages import data as messages
from utracefsd.events import enablers as enablers_module
from utracefsd.events._enable_word import PAGE_SIZE
from utracefsd.events.enablers import EnablerTable
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

ROOT = Peer(100, 0, 0, privileged=True)
PLAIN = Peer(101, 1000, 1000, privileged=False)


@pytest.fixture
def enablers(table: EventTable) -> Iterator[EnablerTable]:
    yield table.enablers
    table.enablers.close()


def add(
    enablers: EnablerTable,
    memory: Memory,
    event: Event,
    offset: int = 0,
    bit: int = 0,
    size: int = 4,
    peer: Peer = ROOT,
) -> None:
    place = enablers.check(memory.fd, messages.Enabler(0, offset, bit, size))
    enablers.add(place, memory.fd, event, peer)


def errno_of(error: pytest.ExceptionInfo[TraceError]) -> str:
    assert error.value.text
    return errno.errorcode[error.value.errno]


def probe() -> Collecting:
    return Collecting("test", lambda batch: None)


def test_all_enablers_of_an_event_follow(enablers: EnablerTable, table: EventTable, event: Event) -> None:
    memories = [Memory(3 * PAGE_SIZE) for _ in range(3)]
    stranger = table.register(CommandString.parse(b"stranger"), privileged=True)
    table.acquire(stranger)
    for memory in memories:
        for offset in (0, 4, PAGE_SIZE - 4, PAGE_SIZE, 3 * PAGE_SIZE - 4):
            add(enablers, memory, event, offset, 1)
        add(enablers, memory, stranger, 0, 2)
    attached = probe()
    table.attach(event, attached)
    for memory in memories:
        assert [memory.word(o) for o in (0, 4, PAGE_SIZE - 4, PAGE_SIZE, 3 * PAGE_SIZE - 4)] == [2] * 5
    table.detach(event, attached)
    for memory in memories:
        assert os.pread(memory.fd, 3 * PAGE_SIZE, 0) == bytes(3 * PAGE_SIZE)
        os.close(memory.fd)


def test_the_word_must_lie_in_the_memory(enablers: EnablerTable, memory: Memory) -> None:
    enablers.check(memory.fd, messages.Enabler(0, PAGE_SIZE - 4, 0, 4))
    for offset, size in ((PAGE_SIZE, 4), (PAGE_SIZE - 4, 8), (1 << 40, 8), ((1 << 64) - 8, 8)):
        with pytest.raises(TraceError) as caught:
            enablers.check(memory.fd, messages.Enabler(0, offset, 0, size))
        assert errno_of(caught) == "EFAULT"
    odd = Memory(size=10)
    enablers.check(odd.fd, messages.Enabler(0, 4, 0, 4))
    with pytest.raises(TraceError) as caught:
        enablers.check(odd.fd, messages.Enabler(0, 8, 0, 4))
    assert errno_of(caught) == "EFAULT"
    os.close(odd.fd)


@pytest.mark.parametrize("kind", ["unsealed", "unsealable", "pipe", "regular", "directory", "grow"])
def test_only_memory_that_cannot_shrink_is_taken(
    enablers: EnablerTable, kind: str, tmp_path: os.PathLike[str]
) -> None:
    with contextlib.ExitStack() as stack:
        if kind in ("unsealed", "grow"):
            fd = Memory(seals=0 if kind == "unsealed" else fcntl.F_SEAL_GROW).fd
        elif kind == "unsealable":
            fd = os.memfd_create("words", os.MFD_CLOEXEC)
            os.ftruncate(fd, PAGE_SIZE)
        elif kind == "pipe":
            fd, writer = os.pipe()
            stack.callback(os.close, writer)
        elif kind == "regular":
            fd = os.open(os.path.join(tmp_path, "file"), os.O_RDWR | os.O_CREAT)
        else:
            fd = os.open(tmp_path, os.O_RDONLY)
        stack.callback(os.close, fd)
        with pytest.raises(TraceError) as caught:
            enablers.check(fd, messages.Enabler(0, 0, 0, 4))
        assert errno_of(caught) == "EINVAL"
        with pytest.raises(TraceError) as caught:
            enablers.remove(fd, 0, 0)
        assert errno_of(caught) == "EINVAL"


def test_huge_pages_are_refused(enablers: EnablerTable) -> None:
    try:
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("no huge pages here")
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(TraceError) as caught:
            enablers.check(fd, messages.Enabler(0, 0, 0, 4))
        assert errno_of(caught) == "EINVAL"
    finally:
        os.close(fd)


def test_a_bit_can_be_registered_once(enablers: EnablerTable, memory: Memory, event: Event) -> None:
    add(enablers, memory, event, 8, 3, size=4)
    duplicate = os.dup(memory.fd)
    again = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDWR)
    for fd in (memory.fd, duplicate, again):
        for size in (4, 8):  # the size is not compared
            with pytest.raises(TraceError) as caught:
                enablers.check(fd, messages.Enabler(0, 8, 3, size))
            assert errno_of(caught) == "EADDRINUSE"
    os.close(duplicate)
    os.close(again)
    add(enablers, memory, event, 8, 4)
    add(enablers, memory, event, 12, 3)
    stranger = Memory()
    add(enablers, stranger, event, 8, 3)
    os.close(stranger.fd)
    assert len(enablers) == 4


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY])
def test_reading_a_page_that_is_mapped_is_not_enough_to_have_it_written(
    enablers: EnablerTable, memory: Memory, event: Event, flags: int
) -> None:
    """The page may belong to another process, which registered a word in it."""
    add(enablers, memory, event, 8, 3, size=4)
    fd = os.open(f"/proc/self/fd/{memory.fd}", flags)
    place = enablers.check(fd, messages.Enabler(0, 64, 0, 4))
    with pytest.raises(TraceError) as caught:
        enablers.add(place, fd, event, ROOT)
    assert errno_of(caught) == "ENOMEM"
    assert memory.word(64, 4) == 0
    os.close(fd)


@pytest.mark.parametrize("how", ["read-only", "sealed against writing"])
def test_memory_that_cannot_be_written(
    enablers: EnablerTable, memory: Memory, event: Event, how: str
) -> None:
    fd = memory.fd
    if how == "read-only":
        fd = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY)
    else:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    place = enablers.check(fd, messages.Enabler(0, 0, 0, 4))
    with pytest.raises(TraceError) as caught:
        enablers.add(place, fd, event, ROOT)
    assert errno_of(caught) == "ENOMEM"
    assert len(enablers) == 0
    enablers.check(fd, messages.Enabler(0, 0, 0, 4))
    if fd != memory.fd:
        os.close(fd)


def test_a_hole_does_no_harm(enablers: EnablerTable, table: EventTable, memory: Memory, event: Event) -> None:
    """A client may punch a hole into its memory; the seal does not forbid that."""
    add(enablers, memory, event, 0, 0)
    punch_hole_keep_size = 0x02 | 0x01  # linux/falloc.h
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    assert call(memory.fd, punch_hole_keep_size, 0, PAGE_SIZE) == 0
    table.attach(event, probe())
    assert memory.word(0) == 1


def test_a_process_with_thousands_goes_in_pieces(
    enablers: EnablerTable, table: EventTable, memory: Memory, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end must not delay the daemon; meanwhile a word may be unregistered, and the number be used
    again."""
    monkeypatch.setattr(enablers_module, "PIECE", 4)
    one = Peer(1, 0, 0, privileged=True)
    enablers.hold(one)
    for bit in range(10):
        add(enablers, memory, event, 0, bit, peer=one)
    enablers.drop(one)
    assert (len(enablers), enablers.leaving, table.next_reap_ns()) == (6, True, 0)
    enablers.hold(one)
    add(enablers, memory, event, 8, 0, peer=one)
    enablers.remove(memory.fd, 0, 0)
    table.reap()
    assert (len(enablers), enablers.leaving) == (2, True)
    table.reap()
    assert (len(enablers), enablers.leaving, event.references) == (1, False, 2)
    enablers.drop(one)
    assert (len(enablers), event.references) == (0, 1)


def test_pages_are_mapped_once_and_unmapped_at_the_end(enablers: EnablerTable, event: Event) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    memory = Memory(1 << 40)  # costs nothing: two pages of it are used
    for bit in range(4):
        add(enablers, memory, event, 0, bit)
        add(enablers, memory, event, (1 << 40) - 8, bit, size=8)
    assert mappings() == 2
    for bit in range(4):
        enablers.remove(memory.fd, 0, bit)
    assert mappings() == 1
    os.close(memory.fd)
    assert len(os.listdir("/proc/self/fd")) == descriptors, "mappings hold no descriptor"
    enablers.close()
    assert mappings() == 0


def test_a_user_has_so_many_enablers_and_pages(table: EventTable, event: Event) -> None:
    shares = Shares({Resource.ENABLERS: 3, Resource.ENABLER_PAGES: 2})
    enablers = EnablerTable(shares, table.acquire, table.release)
    memory = Memory(4 * PAGE_SIZE)
    add(enablers, memory, event, 0, 0, peer=PLAIN)
    add(enablers, memory, event, PAGE_SIZE, 0, peer=PLAIN)
    with pytest.raises(TraceError) as caught:
        add(enablers, memory, event, 2 * PAGE_SIZE, 0, peer=PLAIN)
    assert errno_of(caught) == "ENOMEM"
    add(enablers, memory, event, 0, 1, peer=PLAIN)
    with pytest.raises(TraceError) as caught:
        add(enablers, memory, event, 0, 2, peer=PLAIN)
    assert errno_of(caught) == "ENOMEM"
    add(enablers, memory, event, 2 * PAGE_SIZE, 0, peer=ROOT)
    enablers.remove(memory.fd, PAGE_SIZE, 0)
    add(enablers, memory, event, 3 * PAGE_SIZE, 0, peer=PLAIN)
    enablers.close()
    os.close(memory.fd)
