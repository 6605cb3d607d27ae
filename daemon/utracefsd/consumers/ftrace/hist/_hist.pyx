# cython: boundscheck=False, wraparound=False, cdivision=True
"""A histogram on the record path: computes keys and values, and adds them up in a table.

No Python runs per record. Payloads are hostile: every field's offset and every location word is checked
against the record's size before it is read; a missing field counts as 0, or as an empty string.
"""

import contextlib
import os
import secrets

from libc.stdint cimport int64_t, uint16_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from utracefs_protocol.events._line cimport load_signed, load_unsigned
from utracefs_protocol.memory cimport zeroed
from utracefs_protocol.pages.record cimport COMM_SIZE, common_word, set_record
from utracefsd.consumers.ftrace.buffer.buffer_store import NO_ROOM
from utracefsd.events._tracepoint cimport defer
from utracefsd.daemon_log import daemon_log
from utracefsd.machine import disk
#: from utracefsd.consumers.ftrace.hist.program import Program, Step

cdef extern from "<sys/mman.h>" nogil:
    void *mmap_memory "mmap"(void *, size_t, int, int, int, long)
    int munmap(void *, size_t)
    enum:
        PROT_READ
        PROT_WRITE
        MAP_SHARED
        MAP_PRIVATE
        MAP_ANONYMOUS
    void *MAP_FAILED

cdef extern from * nogil:
    int leading_zeros "__builtin_clzll"(unsigned long long)

cdef enum:
    STRING_BYTES = 256

cdef enum:
    # Dropped records between two attempts to get memory for a table.
    TRY_AGAIN = 1000
    # Size of the stack. Three operators need four numbers.
    MAX_STACK = 8
    DIV_SHIFT = 20


def warn_of_memory(folder: object, error: OSError) -> None:
    """A table is in memory of this process, because there is no space for its file."""
    daemon_log("hist-in-memory", folder=folder, reason=error.strerror)


cdef class HistTable:
    """The counts of a histogram: see include/hist_table.h.

    path: Its file; None: memory of this process. A file without space for the first record is given up.
    has_memory: All of it is allocated: since the first record that was counted.
    check_room: Called before that; raises TraceError to refuse. A record without memory is dropped.
    """

    @staticmethod
    def bytes_of(uint32_t bits, uint32_t key_size, uint32_t nr_words) -> int:
        """The size of a table in bytes. ValueError: an impossible shape."""
        if not ht_is_possible(bits, key_size, nr_words):
            raise ValueError(f"a table of 2^{bits} keys of {key_size} bytes and {nr_words} words")
        return ht_bytes(bits, key_size, nr_words)

    @staticmethod
    def create(uint32_t bits, uint32_t key_size, uint32_t nr_words, str path=None) -> HistTable:
        """An empty table of 2^bits keys, in a new file or, without path, in memory. ValueError: an impossible
        shape. OSError: no space for the file. MemoryError."""
        cdef HistTable table = HistTable.__new__(HistTable)
        cdef int fd = -1
        table.bytes = HistTable.bytes_of(bits, key_size, nr_words)
        table.path = path
        if path is not None:
            fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if path is not None:
                disk.posix_fallocate(fd, 0, ht_first_bytes(key_size, nr_words))
                disk.ftruncate(fd, table.bytes)
            table.map(fd)
        except BaseException:
            if path is not None:
                disk.unlink(path)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        ht_make(&table.c, table.memory, bits, key_size, nr_words, secrets.randbits(64) | 1)
        return table

    @staticmethod
    def adopt(uint32_t bits, uint32_t key_size, uint32_t nr_words, str path not None) -> HistTable:
        """The previous daemon's table in `path`, consistent whenever that daemon ended. OSError. ValueError:
        not a table of this shape."""
        cdef HistTable table = HistTable.__new__(HistTable)
        cdef int fd = disk.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        table.path = path
        try:
            table.bytes = os.fstat(fd).st_size
            if table.bytes != HistTable.bytes_of(bits, key_size, nr_words):
                raise ValueError(f"{path} has {table.bytes} bytes, which is another table's")
            table.map(fd)
            table.has_memory = ht_is_used(table.memory)
            if not table.has_memory:
                disk.ftruncate(fd, ht_first_bytes(key_size, nr_words))
                disk.ftruncate(fd, table.bytes)
        finally:
            os.close(fd)
        if not ht_adopt(&table.c, table.memory, table.bytes, bits, key_size, nr_words):
            raise ValueError(f"{path} is no table, or is damaged")
        return table

    cdef int map(self, int fd) except -1:
        cdef int flags = MAP_SHARED if fd >= 0 else MAP_PRIVATE | MAP_ANONYMOUS
        cdef void *memory = mmap_memory(NULL, self.bytes, PROT_READ | PROT_WRITE, flags, fd, 0)
        if memory == MAP_FAILED:
            raise MemoryError(f"no memory for a table of {self.bytes} bytes")
        self.memory = memory
        return 0

    cdef bint take_memory(self) noexcept:
        """Allocate all of it, for the first record. False: no memory; tried again only now and then."""
        if self.c.header.drops % TRY_AGAIN:
            return False
        try:
            if self.check_room is not None:
                self.check_room(self)
            if self.path is not None:
                try:
                    fd = disk.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        disk.posix_fallocate(fd, 0, self.bytes)
                    finally:
                        os.close(fd)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    self.leave_file(error)
        except Exception as error:
            daemon_log("hist-without-memory", reason=error)
            return False
        self.has_memory = True
        return True

    cdef int leave_file(self, error) except -1:
        """Continue in memory of this process, before the first record is counted: `error` says why."""
        cdef ht_header *header = self.c.header
        cdef void *file = self.memory
        self.map(-1)
        memcpy(self.memory, file, ht_first_bytes(header.key_size, header.nr_words))
        ht_attach(&self.c, self.memory)
        munmap(file, self.bytes)
        warn_of_memory(os.path.dirname(self.path), error)
        with contextlib.suppress(OSError):
            self.remove()
        return 0

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.bytes)

    @property
    def nr_bytes(self) -> int:
        cdef ht_header *header = self.c.header
        return self.bytes if self.has_memory else ht_first_bytes(header.key_size, header.nr_words)

    @property
    def full_bytes(self) -> int:
        return self.bytes

    @property
    def bits(self) -> int:
        """Logarithm of its number of entries."""
        return self.c.header.bits

    @property
    def hits(self) -> int:
        return self.c.header.hits

    @property
    def drops(self) -> int:
        """Records that found it full, or without memory."""
        return self.c.header.drops

    def __len__(self):
        return self.c.header.entries

    def clear(self) -> None:
        ht_clear(&self.c)

    def has_taken(self, uint64_t who, uint64_t serial) -> bool:
        """Whether the last record that it counted or dropped was this one, by this trigger."""
        return ht_has_taken(&self.c, who, serial)

    @property
    def taken(self) -> tuple[bytes, int] | None:
        """(key, value) of the last snapshot; None: there was none."""
        cdef ht_header *header = self.c.header
        if not header.taken.valid:
            return None
        return (<const char *>header.taken.key)[: header.key_size], header.taken.value

    def remove(self) -> None:
        if self.path is not None:
            path, self.path = self.path, None
            disk.unlink(path)


cdef class Link:
    """A variable of another histogram. once: reading it unsets it."""

    def __init__(self, Hist hist not None, int slot, bint once):
        self.hist = hist
        self.slot = slot
        self.once = once


cdef class Emission:
    """A synthetic event that an action records. size: bytes of its slots.

    params: (is a reference, its number, offset in the payload, bytes, is a string, is dynamic) of each field.
    """

    def __init__(
        self, Tracepoint tracepoint not None, int size,
        params: Iterable[tuple[bool, int, int, int, bool, bool]]
    ):
        self.tracepoint = tracepoint
        self.size = size
        self.params = tuple(params)


cdef class Hist:
    """The compiled part of a hist trigger. names: Of the writing threads, for variables with such a name."""

    def __init__(self, program: Program, HistTable table not None, WriterNames names=None):
        cdef int i = 0, n = 0
        cdef Slot *slot
        steps = []
        for key in program.keys:
            steps += key.steps
        for value in program.values:
            steps += value
        for variable in program.variables:
            steps += variable.steps
        self.table = table
        self.names = names
        self.clock_is_ns = True
        self.nr_keys = len(program.keys)
        self.nr_values = len(program.values)
        # Zeroed memory for all of them first: `__dealloc__` frees it, whatever is refused below.
        self.steps = <Step *>zeroed(len(steps), sizeof(Step))
        self.keys = <Key *>zeroed(self.nr_keys, sizeof(Key))
        self.value_ends = <int *>zeroed(self.nr_values, sizeof(int))
        self.slots = <Slot *>zeroed(len(program.variables), sizeof(Slot))
        self.resolved = <Resolved *>zeroed(program.references, sizeof(Resolved))
        for step in steps:
            self.steps[n] = Step(step.op, step.signed, step.size, step.offset, step.value)
            n += 1
        n = 0
        for key in program.keys:
            self.keys[i] = Key(key.kind, key.offset, key.size, key.at, key.length, n, n + len(key.steps))
            n += len(key.steps)
            i += 1
        # Steps of values follow those of keys, and those of variables follow them, in one array.
        i = 0
        for value in program.values:
            n += len(value)
            self.value_ends[i] = n
            i += 1
        self.mask_word = program.mask_word
        self.links = self.actions = ()
        for i, variable in enumerate(program.variables):
            slot = &self.slots[i]  # its number is its bit in the mask word
            slot.when = variable.when
            slot.first = n
            n += len(variable.steps)
            slot.end = n
            slot.word = program.word_of(i)
            slot.string_word = program.string_word_of(i)
            if variable.key is not None:
                key = variable.key
                slot.key = Key(key.kind, 0, key.size, key.at, key.length, 0, 0)
        self.nr_slots = len(program.variables)

    def link(
        self, links: Iterable[Link], actions: Iterable[tuple[int, bool, int, bool, bool, Emission | None]]
    ) -> None:
        """Set its references and actions. links: a Link for each reference of the program.

        actions: (slot to compare with or -1, whether only larger values count, slot of the variable, whether
        it saves, whether it takes a snapshot, Emission or None) of each.
        """
        self.links = tuple(links)
        self.actions = tuple(actions)

    def __dealloc__(self):
        free(self.slots)
        free(self.resolved)
        free(self.steps)
        free(self.keys)
        free(self.value_ends)

    cdef uint64_t evaluate(self, int first, int end, const Record *r, uint64_t ts) noexcept:
        """The result of the steps."""
        cdef uint64_t stack[MAX_STACK]
        cdef uint64_t top = 0
        cdef int depth = 0, i
        cdef Step *step
        for i in range(first, end):
            step = &self.steps[i]
            if step.op < LOG2:
                # The present top is pushed below.
                stack[depth] = top
                depth += 1
                if step.op == FIELD:
                    top = load_field(r, step)
                elif step.op == CONST:
                    top = step.value
                elif step.op == TYPE:
                    top = r.id
                elif step.op == PID:
                    top = <uint64_t><int64_t>r.pid
                elif step.op == CPU:
                    top = <uint64_t>r.cpu
                elif step.op == REF:
                    top = self.resolved[step.value].value
                elif step.op == TIMESTAMP:
                    top = (ts + 500) // 1000 if step.value and self.clock_is_ns else ts
            elif step.op == LOG2:
                top = 64 - leading_zeros(top - 1) if top > 1 else 0
            elif step.op == BUCKET:
                top -= top % step.value
            elif step.op == NEGATE:
                top = -top
            elif step.op == DIV_CONST:
                if top < (1 << DIV_SHIFT):
                    top = (top * ((1 << DIV_SHIFT) // step.value) + ((1 << DIV_SHIFT) - 1)) >> DIV_SHIFT
                else:
                    top //= step.value
            else:
                depth -= 1
                if step.op == ADD:
                    top = stack[depth] + top
                elif step.op == SUB:
                    top = stack[depth] - top
                elif step.op == MULT:
                    top = stack[depth] * top
                else:
                    top = stack[depth] // top if top else <uint64_t>-1
        return top

    cdef void make_key(self, const Record *r, uint64_t ts) noexcept:
        cdef int i
        cdef Key *key
        cdef uint8_t *to
        cdef uint64_t number
        memset(self.key, 0, self.table.c.header.key_size)
        for i in range(self.nr_keys):
            key = &self.keys[i]
            to = <uint8_t *>self.key + key.offset
            if key.kind == NUMBER:
                number = self.evaluate(key.first, key.end, r, ts)
                memcpy(to, &number, 8)
            elif key.kind == FIXED_STRING:
                if key.at + key.length <= r.size:
                    copy_string(r, key.at + 8, key.length, to, key.size)
            elif key.kind != NOTHING:
                copy_dynamic(r, key, to)

    cdef bint add(self, const Record *r, uint64_t ts, uint64_t who, uint64_t serial) noexcept:
        """Count a record. False: it was dropped. ts: Its time in the instance's clock. who, serial: The
        trigger and the number of its record, for the next daemon (`HistTable.has_taken`)."""
        cdef ht *t = &self.table.c
        cdef ht_place place
        cdef uint64_t *old
        cdef int i, first
        cdef uint64_t value
        # Before anything is written: a record is not counted while a variable that it reads is not set.
        self.make_key(r, ts)
        if self.links and not self.resolve():
            return False
        if not self.table.has_memory and not self.table.take_memory():  # which may move the table
            ht_drop(t, who, serial)
            return False
        ht_find(t, self.key, &place)
        if not place.element and ht_is_full(t):
            ht_drop(t, who, serial)
            return False
        # All words go to the image, which a kill leaves whole or unused (hist_table.h).
        ht_begin(t, who, serial)
        first = self.keys[self.nr_keys - 1].end
        if place.element:
            old = ht_words(t, place.element)
            t.image[0] = old[0] + 1
            for i in range(self.nr_values):
                value = self.evaluate(first, self.value_ends[i], r, ts)
                first = self.value_ends[i]
                t.image[1 + i] = old[1 + i] + value
        else:
            t.image[0] = 1
            for i in range(self.nr_values):
                t.image[1 + i] = self.evaluate(first, self.value_ends[i], r, ts)
                first = self.value_ends[i]
        if not self.nr_slots:
            ht_count(t, &place, self.key)
            if self.links:
                self.end_reads(self.key, who, serial)
            return True
        if place.element:
            for i in range(self.mask_word, <int>t.header.nr_words):
                t.image[i] = ht_words(t, place.element)[i]
        else:
            memset(&t.image[self.mask_word], 0, (t.header.nr_words - self.mask_word) * 8)
        self.set_slots(ALWAYS, r, ts)
        try:
            self.act(r, ts)
        except Exception:
            pass    # no memory for a synthetic event: it is not recorded
        ht_count(t, &place, self.key)
        self.end_reads(self.key, who, serial)
        return True

    cdef bint resolve(self) noexcept:
        """Read the variables of other histograms under this record's key, or its beginning if they have fewer
        keys (resolve_var_refs(), tracing_map_lookup()). False: one of them is not set."""
        cdef Link link
        cdef Hist other
        cdef ht *t
        cdef ht_place place
        cdef uint64_t *words
        cdef Slot *slot
        cdef Py_ssize_t i
        for i in range(len(self.links)):
            link = <Link>self.links[i]
            other = link.hist
            t = &other.table.c
            if t.header.key_size > self.table.c.header.key_size:
                return False
            ht_find(t, self.key, &place)
            if not place.element:
                return False
            words = ht_words(t, place.element)
            if not words[other.mask_word] >> link.slot & 1:
                return False
            slot = &other.slots[link.slot]
            self.resolved[i].value = words[slot.word]
            self.resolved[i].string = NULL
            if slot.string_word >= 0:
                self.resolved[i].string = <const uint8_t *>&words[slot.string_word]
        return True

    cdef void end_reads(self, uint64_t *key, uint64_t who, uint64_t serial) noexcept:
        """Unset the variables that were read once. Repeating it changes nothing."""
        cdef Link link
        cdef ht *t
        cdef ht_place place
        cdef uint64_t *words
        cdef uint32_t n
        for link in self.links:
            t = &link.hist.table.c
            if not link.once or t.header.key_size > self.table.c.header.key_size:
                continue
            ht_find(t, key, &place)
            if not place.element:
                continue
            words = ht_words(t, place.element)
            if not words[link.hist.mask_word] >> link.slot & 1:
                continue
            ht_begin(t, who, serial)
            for n in range(t.header.nr_words):
                t.image[n] = words[n]
            t.image[link.hist.mask_word] &= ~(<uint64_t>1 << link.slot)
            ht_change(t, place.element)

    cdef void set_slots(self, int when, const Record *r, uint64_t ts) noexcept:
        """Set the slots of the image's entry that are set at this time."""
        cdef uint64_t *image = self.table.c.image
        cdef Slot *slot
        cdef int i
        for i in range(self.nr_slots):
            slot = &self.slots[i]
            if slot.when != when:
                continue
            if slot.string_word >= 0 and slot.key.kind == COMM:
                # The name for the entry's first record, as in hist_trigger_elt_data_init().
                if not image[slot.string_word]:
                    memcpy(&image[slot.string_word], self.names.name_of(r), COMM_SIZE)
            elif slot.string_word >= 0:
                memset(&image[slot.string_word], 0, STRING_BYTES)
                if slot.key.kind != FIXED_STRING:
                    copy_dynamic(r, &slot.key, <uint8_t *>&image[slot.string_word])
                elif slot.key.at + slot.key.length <= r.size:
                    copy_string(
                        r, slot.key.at + 8, slot.key.length, <uint8_t *>&image[slot.string_word], STRING_BYTES
                    )
            else:
                image[slot.word] = self.evaluate(slot.first, slot.end, r, ts)
            image[self.mask_word] |= <uint64_t>1 << i

    cdef int act(self, const Record *r, uint64_t ts) except -1:
        """Run the actions; records that they cause are emitted after this one."""
        cdef uint64_t *image = self.table.c.image
        cdef uint64_t value, before
        cdef int tracker, subject
        cdef bint larger, saves, takes
        for tracker, larger, subject, saves, takes, emission in self.actions:
            if tracker >= 0:
                value = image[self.slots[subject].word]
                before = image[self.slots[tracker].word]
                if value <= before if larger else value == before:
                    continue
                image[self.slots[tracker].word] = value
                image[self.mask_word] |= <uint64_t>1 << tracker
                if saves:
                    self.set_slots(SAVED, r, ts)
                if takes:
                    # cond_snapshot_update(): also larger than, or different from, the value of the last
                    # snapshot.
                    before = self.table.c.header.taken.value
                    if value > before if larger else value != before:
                        ht_take(&self.table.c, value)
            if emission is not None:
                self.emit(<Emission>emission, r)
        return 0

    cdef int emit(self, Emission emission, const Record *r) except -1:
        cdef uint64_t *image = self.table.c.image
        cdef const uint8_t *string
        cdef uint64_t value
        cdef size_t length
        cdef Slot *slot
        cdef int index, offset, size
        cdef bint is_reference, is_string, is_dynamic
        payload = bytearray(emission.size)
        for is_reference, index, offset, size, is_string, is_dynamic in emission.params:
            string = NULL
            if is_reference:
                value = self.resolved[index].value
                string = self.resolved[index].string
            else:
                slot = &self.slots[index]
                value = image[slot.word]
                if slot.string_word >= 0:
                    string = <const uint8_t *>&image[slot.string_word]
            if is_string:
                if string == NULL:
                    continue
                text = (<const char *>string)[: STRING_BYTES - 1].partition(b"\0")[0]
                length = len(text)
                if is_dynamic:
                    word = (length + 1) << 16 | (8 + len(payload))
                    payload[offset : offset + 4] = word.to_bytes(4, "little")
                    payload += text + b"\0"
                else:
                    payload[offset : offset + length] = text
            else:
                # As in the kernel: a value smaller than its slot leaves the rest unchanged.
                payload[offset : offset + size] = value.to_bytes(8, "little")[:size]
        defer(emission.tracepoint, r, bytes(payload), self.owner, self.pending)
        return 0

    def count(
        self, bytes payload not None, *, uint64_t ts_ns=0, int32_t cpu=0, int32_t pid=0, int id=0,
        uint64_t who=0, uint64_t serial=0, int times=1
    ) -> bool:
        """Count a record without a tracepoint, for tests and measurements. Returns whether it had space."""
        cdef Record r
        cdef bint counted = True
        cdef int i
        set_record(&r, ts_ns, cpu, pid, pid, <uint16_t>id, payload)
        for i in range(times):
            counted = self.add(&r, ts_ns, who, serial)
        return counted


cdef inline uint64_t load_field(const Record *r, const Step *step) noexcept:
    cdef const uint8_t *p
    if step.offset + step.size > r.size:
        return 0
    p = r.payload + step.offset
    return <uint64_t>load_signed(p, step.size) if step.signed else load_unsigned(p, step.size)


cdef void copy_string(const Record *r, uint64_t start, uint64_t length, uint8_t *to, uint32_t size) noexcept:
    """Copy up to the first NUL, and less than `size` bytes, of the entry's bytes at `start`, which exist."""
    cdef uint64_t common = common_word(r.id, r.pid)
    cdef uint64_t i
    cdef uint8_t c
    if length > size - 1:
        length = size - 1
    for i in range(length):
        c = r.payload[start + i - 8] if start + i >= 8 else (<uint8_t *>&common)[start + i]
        if not c:
            break
        to[i] = c


cdef void copy_dynamic(const Record *r, const Key *key, uint8_t *to) noexcept:
    """Copy a dynamic string; nothing if a part of it is outside the entry."""
    cdef uint32_t word
    cdef uint64_t start
    if key.at + 4 > r.size:
        return
    memcpy(&word, r.payload + key.at, 4)
    start = word & 0xFFFF
    if key.kind == REL_LOC:
        start += key.at + 8 + 4
    if start + (word >> 16) <= <uint64_t>r.size + 8:
        copy_string(r, start, word >> 16, to, key.size)


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
    """A copy of the present entries of `table`, sorted for display. hits, drops: as of the table.

    A full table has 131,072 entries. They are copied and sorted at once, in C; they become Python objects a
    few at a time, as the file is read."""

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
        self.memory = <unsigned char *>zeroed(self.count, self.entry_bytes)
        self.items = <Item *>zeroed(self.count, sizeof(Item))
        if self.count:
            memcpy(self.memory, ht_words(&table.c, 1), self.count * self.entry_bytes)
        for n in range(self.count):
            self.items[n].index = <uint32_t>n

    def __dealloc__(self):
        free(self.memory)
        free(self.items)

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
        descending), the first one decides; equal entries keep the order of the table."""
        cdef Sorting sorting
        cdef SortBy *one
        cdef uint64_t n
        sorting.memory = self.memory
        sorting.entry_bytes = self.entry_bytes
        sorting.count = 0
        for is_string, in_key, offset, size, signed, descending in by:
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
