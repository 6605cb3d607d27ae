# cython: boundscheck=False, wraparound=False
"""A copy of a histogram's entries, sorted for display.

A full table has 131,072 entries. They are copied and sorted at once, in C; they become Python objects a few
at a time, as the file is read.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from utracefs_protocol.events._line cimport load_signed, load_unsigned
from utracefsd.consumers.ftrace.hist._hist cimport HistTable, ht_key, ht_words

cdef extern from *:
    """
    #include <stdlib.h>
    static int entries_compare(const void *a, const void *b, void *by);
    static void entries_sort(void *items, size_t n, size_t size, void *by)
    {
        qsort_r(items, n, size, entries_compare, by);
    }
    """
    void entries_sort(void *items, size_t n, size_t size, void *by) noexcept

cdef enum:
    MAX_SORT_KEYS = 2

cdef struct Item:
    uint64_t first          # the first sort key as a number with the same order; 0: it is a string
    uint32_t index

cdef struct SortBy:
    uint32_t at             # offset in the entry
    uint32_t size           # 1 to 8 bytes; of a string all its bytes
    bint is_string
    bint signed
    bint descending

cdef struct Sorting:
    const unsigned char *memory
    size_t entry_bytes
    int count
    SortBy by[MAX_SORT_KEYS]


cdef class Entries:
    """The present entries of `table`. hits, drops: As of the table."""

    cdef unsigned char *memory      # words and key of each
    cdef Item *items                # in the sorted order
    cdef uint64_t count
    cdef readonly uint64_t hits
    cdef readonly uint64_t drops
    cdef size_t entry_bytes
    cdef uint32_t nr_words
    cdef uint32_t key_size

    def __cinit__(self, HistTable table not None):
        cdef uint64_t n
        self.nr_words = table.c.header.nr_words
        self.key_size = table.c.header.key_size
        self.entry_bytes = table.c.element_bytes
        self.count = table.c.header.entries
        self.hits = table.c.header.hits
        self.drops = table.c.header.drops
        self.memory = <unsigned char *>PyMem_Malloc((self.count + 1) * self.entry_bytes)
        self.items = <Item *>PyMem_Malloc((self.count + 1) * sizeof(Item))
        if self.memory == NULL or self.items == NULL:
            raise MemoryError("no memory for a copy of a histogram")
        if self.count:
            memcpy(self.memory, ht_words(&table.c, 1), self.count * self.entry_bytes)
        for n in range(self.count):
            self.items[n].index = <uint32_t>n

    def __dealloc__(self):
        PyMem_Free(self.memory)
        PyMem_Free(self.items)

    def __len__(self):
        return self.count

    def stats(self) -> list[tuple[int, int]]:
        """(the maximum, the sum modulo 2^64) of each word; empty without entries."""
        cdef uint64_t most, total, n
        cdef uint32_t word
        cdef const uint64_t *words
        found = []
        for word in range(self.nr_words if self.count else 0):
            most = total = 0
            for n in range(self.count):
                words = <const uint64_t *>(self.memory + n * self.entry_bytes)
                most = max(most, words[word])
                total += words[word]
            found.append((most, total))
        return found

    def sort(self, by: Iterable[tuple[bool, bool, int, int, bool, bool]]) -> None:
        """Sort by one or two keys (is a string, in the key or else in the words, offset there, bytes, signed,
        descending), the first one decides; equal entries keep the order of the table. ValueError: bytes
        outside an entry."""
        cdef Sorting sorting
        cdef SortBy *one
        cdef uint64_t n
        cdef uint32_t whole
        sorting.memory = self.memory
        sorting.entry_bytes = self.entry_bytes
        sorting.count = 0
        for is_string, in_key, offset, size, signed, descending in by:
            if sorting.count == MAX_SORT_KEYS:
                raise ValueError(f"more than {MAX_SORT_KEYS} sort keys")
            whole = self.key_size if in_key else self.nr_words * 8
            if offset + size > whole or not size or not (is_string or size <= 8):
                raise ValueError(f"no sort key of {size} bytes at {offset}")
            one = &sorting.by[sorting.count]
            one.at = offset + (self.nr_words * 8 if in_key else 0)
            one.size = size
            one.is_string, one.signed, one.descending = is_string, signed, descending
            sorting.count += 1
        if not sorting.count:
            return
        for n in range(self.count):
            one = &sorting.by[0]
            self.items[n].index = <uint32_t>n
            self.items[n].first = 0 if one.is_string else number_of(self.memory + n * self.entry_bytes, one)
        entries_sort(self.items, self.count, sizeof(Item), &sorting)

    def piece(self, Py_ssize_t start=0, stop: int | None = None) -> list[tuple[bytes, tuple[int, ...]]]:
        """(key, words) of the entries from `start` to before `stop`, in their order."""
        cdef Py_ssize_t i, end = self.count if stop is None else min(stop, <Py_ssize_t>self.count)
        cdef uint32_t word
        cdef const unsigned char *entry
        if start < 0:
            raise ValueError(f"no entry {start}")
        found = []
        for i in range(start, end):
            entry = self.memory + self.items[i].index * self.entry_bytes
            key = (<const char *>entry + self.nr_words * 8)[: self.key_size]
            found.append((key, tuple([(<const uint64_t *>entry)[word] for word in range(self.nr_words)])))
        return found


cdef inline uint64_t number_of(const unsigned char *entry, const SortBy *by) noexcept nogil:
    """A number whose unsigned order is the order of the entries."""
    cdef uint64_t value
    if by.signed:
        value = <uint64_t>load_signed(entry + by.at, by.size) ^ (<uint64_t>1 << 63)
    else:
        value = load_unsigned(entry + by.at, by.size)
    return ~value if by.descending else value


cdef int entries_compare "entries_compare" (const void *a, const void *b, void *how) noexcept nogil:
    cdef const Item *left = <const Item *>a
    cdef const Item *right = <const Item *>b
    cdef const Sorting *sorting = <const Sorting *>how
    cdef const SortBy *by
    cdef const unsigned char *p
    cdef const unsigned char *q
    cdef uint64_t x, y
    cdef int i, order
    if left.first != right.first:
        return -1 if left.first < right.first else 1
    p = sorting.memory + left.index * sorting.entry_bytes
    q = sorting.memory + right.index * sorting.entry_bytes
    for i in range(sorting.count):
        by = &sorting.by[i]
        if by.is_string:
            # Behind its end a string has zeros (HistTable).
            order = memcmp(p + by.at, q + by.at, by.size)
            if order:
                return -order if by.descending else order
        elif i:
            x = number_of(p, by)
            y = number_of(q, by)
            if x != y:
                return -1 if x < y else 1
    return -1 if left.index < right.index else 1
