"""One page of a program's memory: valid words, and bits that a change must not touch."""

import errno
import fcntl
import os
import threading

import pytest

from tests.daemon.events.helpers import Memory, mappings
from utracefsd.events._enable_word import PAGE_SIZE, WordPage


@pytest.mark.parametrize("size", [4, 8])
def test_a_bit_is_set_and_cleared_and_its_neighbours_stay(memory: Memory, size: int) -> None:
    page = WordPage(memory.fd, 0)
    for offset in (0, 64, PAGE_SIZE - size):
        for bit in (0, 1, 31, size * 8 - 1):
            for others in (0, (1 << size * 8) - 1 - (1 << bit)):
                os.pwrite(memory.fd, others.to_bytes(size, "little"), offset)
                for value, word in ((True, others | 1 << bit), (True, others | 1 << bit), (False, others)):
                    page.change_bit(offset, bit, value)
                    assert memory.word(offset, size) == word
        os.pwrite(memory.fd, bytes(size), offset)
    assert os.pread(memory.fd, PAGE_SIZE, 0) == bytes(PAGE_SIZE)


def test_a_later_page_is_counted_in_pages() -> None:
    memory = Memory(3 * PAGE_SIZE)
    WordPage(memory.fd, 2).change_bit(8, 0, True)
    assert os.pread(memory.fd, 3 * PAGE_SIZE, 0).index(1) == 2 * PAGE_SIZE + 8
    os.close(memory.fd)


def test_a_page_that_cannot_be_mapped(memory: Memory) -> None:
    with pytest.raises(OSError) as caught:
        WordPage(-1, 0)
    assert caught.value.errno == errno.EBADF
    reading = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        WordPage(reading, 0)
    assert caught.value.errno == errno.EACCES
    os.close(reading)
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(OSError) as caught:
        WordPage(memory.fd, 0)
    assert caught.value.errno == errno.EPERM


def test_the_mapping_outlives_the_descriptor_and_ends_with_the_page() -> None:
    memory = Memory()
    page, other = WordPage(memory.fd, 0), WordPage(memory.fd, 0)
    os.close(memory.fd)
    page.change_bit(0, 0, True)
    assert mappings() == 2
    page.close()
    assert mappings() == 1
    del other
    assert mappings() == 0


def test_the_change_is_atomic(memory: Memory) -> None:
    """Two writers on one word. (With Python's lock this proves little; it shows that the two mappings are one
    memory.)"""
    pages = [WordPage(memory.fd, 0) for _ in range(2)]

    def toggle(page: WordPage, bit: int) -> None:
        for _ in range(5000):
            page.change_bit(0, bit, True)
            page.change_bit(0, bit, False)
        page.change_bit(0, bit, True)

    threads = [threading.Thread(target=toggle, args=(page, 60 + n)) for n, page in enumerate(pages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.word(0, 8) == 0b11 << 60
    for page in pages:
        page.close()
