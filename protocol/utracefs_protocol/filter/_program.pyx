# cython: boundscheck=False, wraparound=False
"""A compiled filter: one step per predicate, with the next step for each result.

    u == 1 && !(s < 0 || c ~ "a*")          if false    if true
        0   u == 1                          REJECT      1
        1   s < 0                           2           REJECT
        2   c ~ "a*"                        ACCEPT      REJECT

Like the program of kernel/trace/trace_events_filter.c (filter_match_preds()), it only goes forward.
Predicates are those of the kernel, oddities included: filter_pred_*() and regex_match_*() there, glob_match()
of lib/glob.c. One difference: the kernel compares the bits of floats. A field that is not within the record,
which may come from anywhere, makes its predicate false.

The oddities:

- `==` of a text that fills its field up to the last byte compares only that many bytes of the pattern;
- a suffix (`~ "*c"`) is compared with the end of the field but its last byte, not with the end of the text.
  So it matches texts in a char array, and names of tasks, only if they are one byte shorter than the field;
- `~ "*c*"` searches the whole field, also behind the end of the text.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from utracefs_protocol.events._fields cimport FLOAT_VALUE, SIGNED_VALUE, UNSIGNED_VALUE, Place, set_place
from utracefs_protocol.events._line cimport load_float, load_signed, load_unsigned
from utracefs_protocol.pages.record cimport COMM_SIZE, COMMON_SIZE, Record, common_word, set_record
#: from utracefs_protocol.filter.parse import Predicate

cdef extern from * nogil:
    """
    #define _GNU_SOURCE 1
    #include <string.h>
    """
    size_t strnlen(const char *text, size_t most)
    void *memmem(const void *where, size_t where_size, const void *what, size_t what_size)

cdef enum:
    # Beyond all steps.
    REJECT = 0x7ffffffe
    ACCEPT = 0x7fffffff


cdef inline bint compare(const Step *step, uint64_t value) noexcept nogil:
    cdef uint32_t cpu
    if step.how == IN_CPUS:
        cpu = <uint32_t>value
        return cpu < step.length and step.data[cpu >> 3] >> (cpu & 7) & 1
    value ^= step.flip
    if step.how == EQUAL:
        return value == step.value
    elif step.how == UNEQUAL:
        return value != step.value
    elif step.how == LESS:
        return value < step.value
    elif step.how == LESS_OR_EQUAL:
        return value <= step.value
    elif step.how == GREATER:
        return value > step.value
    elif step.how == GREATER_OR_EQUAL:
        return value >= step.value
    return (value & step.value) != 0


cdef inline bint compare_floats(const Step *step, double value) noexcept nogil:
    """As C does: NaN is unequal to all, -0.0 equal to 0.0."""
    cdef double other
    memcpy(&other, &step.value, 8)
    if step.how == EQUAL:
        return value == other
    elif step.how == UNEQUAL:
        return value != other
    elif step.how == LESS:
        return value < other
    elif step.how == LESS_OR_EQUAL:
        return value <= other
    elif step.how == GREATER:
        return value > other
    return value >= other


cdef bint class_holds(
    const uint8_t *pattern, uint32_t size, uint32_t *at, uint8_t c, bint *is_class
) noexcept nogil:
    """Whether `c` is in `[a-f]`, or not in `[!a-f]`, with `*at` behind the bracket and then behind the class.
    Without an end it is not a class. A leading `]` is one of the characters."""
    cdef uint32_t i = at[0]
    cdef bint inverted = i < size and pattern[i] == c'!', found = False, first = True
    cdef uint8_t low, high
    is_class[0] = False
    i += inverted
    while True:
        if i >= size:
            return False
        low = high = pattern[i]
        i += 1
        if low == c']' and not first:
            break
        first = False
        if i < size and pattern[i] == c'-' and not (i + 1 < size and pattern[i + 1] == c']'):
            if i + 1 >= size:
                return False
            high = pattern[i + 1]
            i += 2
        if low <= c <= high:
            found = True
    is_class[0] = True
    at[0] = i
    return found != inverted


cdef bint glob(const uint8_t *pattern, uint32_t size, const uint8_t *text, size_t length) noexcept nogil:
    """Whether the whole text matches the pattern. Only the last `*` is retried, so the work is at most the
    product of both lengths."""
    cdef uint32_t p = 0, star = 0, behind
    cdef size_t t = 0, star_text = 0
    cdef bint has_star = False, fits, is_class
    while t < length or p < size:
        fits = False
        if p < size and pattern[p] == c'*':
            p += 1
            if p == size:
                return True
            has_star = True
            star = p
            star_text = t
            continue
        if t < length and p < size:
            behind = p + 1
            if pattern[p] == c'?':
                fits = True
            elif pattern[p] == c'[':
                fits = class_holds(pattern, size, &behind, text[t], &is_class)
                if not is_class:
                    behind = p + 1
                    fits = text[t] == c'['
            elif pattern[p] == c'\\' and p + 1 < size:
                behind = p + 2
                fits = text[t] == pattern[p + 1]
            elif pattern[p] == c'\\':
                fits = False    # a backslash at the end stands for the end
            else:
                fits = text[t] == pattern[p]
            if fits:
                p = behind
                t += 1
                continue
        elif t == length and p + 1 == size and pattern[p] == c'\\':
            return True
        if not has_star or t >= length:
            return False
        star_text += 1
        t = star_text
        p = star
    return True


cdef class Names:
    """Names of the writing threads; implemented by the callers of filters."""

    cdef const char *name_of(self, const Record *r) noexcept:
        return b"<...>\0\0\0\0\0\0\0\0\0\0\0"


@cython.final
cdef class Filter:
    """A parsed filter. `parse.parse_filter` makes them.

    text: The source.
    names: Resolves the name of the thread that wrote a record; None: COMM is not available.
    """

    def __cinit__(self, *args, **kwargs):
        self._steps = NULL

    def __init__(self, bytes text not None, steps: Sequence[tuple[Predicate, int, int]], Names names=None):
        """steps: (predicate, next if false, next if true); next is the index of a later step, len(steps) for
        REJECT or len(steps) + 1 for ACCEPT."""
        cdef uint32_t i, outcome
        steps = tuple(steps)
        self.text = text
        self.names = None
        self._kept = []
        self._steps = <Step *>calloc(len(steps), sizeof(Step))
        if self._steps == NULL:
            raise MemoryError()
        self._count = <uint32_t>len(steps)
        for i in range(self._count):
            predicate, *following = steps[i]
            self.set_step(&self._steps[i], predicate)
            if self._steps[i].subject == COMM:
                self.names = names
            for outcome in range(2):
                behind = following[outcome]
                self._steps[i].next[outcome] = (
                    behind if behind < self._count else REJECT if behind == self._count else ACCEPT
                )

    cdef int set_step(self, Step *step, predicate) except -1:
        cdef Place place
        cdef double number
        field = predicate.field
        step.subject = predicate.subject
        step.how = predicate.how
        step.negated = predicate.negated
        if field is not None:
            # (Of the slot of 8 bytes that a synthetic event has for a location word it takes the first half.)
            set_place(&place, field)
            step.offset = place.offset
            step.size = field.size if step.subject in (COMMON, NUMBER) else place.size
            if step.subject != COMMON:
                if place.offset < COMMON_SIZE:
                    step.subject = NOTHING
                step.offset -= COMMON_SIZE
        value = predicate.value
        is_text = step.subject in (ARRAY, DATA_LOC, REL_LOC, COMM)
        if step.subject != NOTHING and is_text != (step.how >= FULL):
            raise ValueError(f"{predicate}: texts and numbers are compared in ways of their own")
        if is_text:
            self._kept.append(value)
            step.data = <const uint8_t *>PyBytes_AS_STRING(value)
            step.length = <uint32_t>PyBytes_GET_SIZE(value)
        elif step.how == IN_CPUS:
            bits = value.to_bytes(value.bit_length() // 8 + 1, "little")
            self._kept.append(bits)
            step.data = <const uint8_t *>PyBytes_AS_STRING(bits)
            step.length = <uint32_t>(PyBytes_GET_SIZE(bits) * 8)
            step.kind = UNSIGNED_VALUE
            if field is None:
                step.size = 4
        elif field is not None and field.is_float:
            number = value
            step.kind = FLOAT_VALUE
            if field.size == 4:
                number = <float>number   # `== 0.1` is true for the float that is nearest to it
            memcpy(&step.value, &number, 8)
        elif step.subject != NOTHING:
            signed, size = (True, 4) if field is None else (field.signed, field.size)
            step.size, step.kind = size, SIGNED_VALUE if signed else UNSIGNED_VALUE
            value &= (1 << 8 * size) - 1
            if signed and value >> (8 * size - 1):
                value -= 1 << 8 * size
            step.flip = 1 << 63 if signed and step.how != COMMON_BITS else 0
            step.value = (value & 0xffff_ffff_ffff_ffff) ^ step.flip
        return 0

    def __dealloc__(self):
        free(self._steps)

    def __len__(self):
        return self._count

    cdef bint matches(self, const Record *r) noexcept:
        cdef uint32_t at = 0
        cdef const Step *step
        while at < self._count:
            step = &self._steps[at]
            at = step.next[self.holds(step, r)]
        return at == ACCEPT

    cdef inline bint holds(self, const Step *step, const Record *r) noexcept:
        cdef uint64_t common
        if step.subject == NUMBER:
            if step.offset + step.size > r.size:
                return False
            if step.kind == UNSIGNED_VALUE:     # first: most fields are
                return compare(step, load_unsigned(r.payload + step.offset, step.size))
            if step.kind == FLOAT_VALUE:
                return compare_floats(step, load_float(r.payload + step.offset, step.size))
            return compare(step, <uint64_t>load_signed(r.payload + step.offset, step.size))
        elif step.subject == COMMON:
            common = common_word(r.id, r.pid) | <uint64_t>self.flags << 16
            if step.kind == UNSIGNED_VALUE:
                return compare(step, load_unsigned(<const uint8_t *>&common + step.offset, step.size))
            return compare(step, <uint64_t>load_signed(<const uint8_t *>&common + step.offset, step.size))
        elif step.subject == CPU:
            return compare(step, <uint64_t><int64_t>r.cpu)
        elif step.subject == NOTHING:
            return False
        return self.text_holds(step, r) != step.negated

    cdef bint text_holds(self, const Step *step, const Record *r) noexcept:
        """Without `negated`; a field that is not within the record counts as the empty text."""
        cdef uint64_t common
        cdef const uint8_t *text = b""
        cdef size_t length = 0, n
        cdef uint64_t start
        cdef uint32_t word
        if step.subject == COMM:
            text = <const uint8_t *>self.names.name_of(r)
            length = COMM_SIZE
        elif step.offset + step.size > r.size:
            pass
        elif step.subject == ARRAY:
            text = r.payload + step.offset
            length = step.size
        else:
            memcpy(&word, r.payload + step.offset, 4)
            start = word & 0xffff       # in the entry
            if step.subject == REL_LOC:
                start += COMMON_SIZE + step.offset + 4
            if start + (word >> 16) <= COMMON_SIZE + <uint64_t>r.size:
                length = word >> 16
                if start >= COMMON_SIZE:
                    text = r.payload + (start - COMMON_SIZE)
                else:
                    # Over the common fields. One of those bytes is always NUL, so the text ends there.
                    common = common_word(r.id, r.pid) | <uint64_t>self.flags << 16
                    text = <const uint8_t *>&common + start
                    length = min(length, COMMON_SIZE - start)
        if step.how == MIDDLE:
            return step.length == 0 or memmem(text, length, step.data, step.length) != NULL
        elif step.how == END:
            return length > step.length and (
                memcmp(text + length - 1 - step.length, step.data, step.length) == 0
            )
        n = strnlen(<const char *>text, length)
        if step.how == FULL:
            if n == length and length:
                return step.length >= n and memcmp(text, step.data, n) == 0
            return step.length == n and memcmp(text, step.data, n) == 0
        elif step.how == FRONT:
            return n >= step.length and memcmp(text, step.data, step.length) == 0
        return glob(step.data, step.length, text, n)

    def test(
        self, bytes payload not None, *, event_id: int = 1, ts_ns: int = 0, int cpu=0, int pid=0, int tgid=0
    ) -> bool:
        """Whether a record passes."""
        cdef Record r
        set_record(&r, ts_ns, cpu, pid, tgid, event_id, payload)
        return bool(self.matches(&r))

    def __repr__(self):
        return f"<Filter {self.text!r}>"
