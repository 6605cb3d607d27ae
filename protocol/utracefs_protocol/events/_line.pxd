"""A text buffer that the printers of records append to. `full` is set when it overflows."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, strlen

cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char code, int precision, int flags, int *type) except NULL
    int Py_DTSF_ADD_DOT_0
    void PyMem_Free(void *memory)

cdef extern from * nogil:
    """
    static const char HEX_DIGITS[] = "0123456789abcdef";
    static const char TWO_DIGITS[] =
        "00010203040506070809101112131415161718192021222324"
        "25262728293031323334353637383940414243444546474849"
        "50515253545556575859606162636465666768697071727374"
        "75767778798081828384858687888990919293949596979899";
    """
    const char *HEX_DIGITS
    const char *TWO_DIGITS

cdef struct Line:
    char *start
    char *p
    char *end
    bint full

cdef inline void put(Line *line, const void *text, size_t size) noexcept nogil:
    if size > <size_t>(line.end - line.p):
        line.full = True
        return
    memcpy(line.p, text, size)
    line.p += size


cdef inline void put_char(Line *line, char c) noexcept nogil:
    if line.p == line.end:
        line.full = True
        return
    line.p[0] = c
    line.p += 1


cdef inline void put_decimal(Line *line, uint64_t value, int width, char fill) noexcept nogil:
    """Right-aligned to width (at most 20)."""
    cdef char text[24]
    cdef char *p = text + 24
    cdef unsigned int pair
    while value >= 100:
        pair = <unsigned int>(value % 100) * 2
        value //= 100
        p -= 2
        p[0] = TWO_DIGITS[pair]
        p[1] = TWO_DIGITS[pair + 1]
    if value >= 10:
        pair = <unsigned int>value * 2
        p -= 2
        p[0] = TWO_DIGITS[pair]
        p[1] = TWO_DIGITS[pair + 1]
    else:
        p -= 1
        p[0] = <char>(c'0' + value)
    while text + 24 - p < width:
        p -= 1
        p[0] = fill
    put(line, p, text + 24 - p)


cdef inline void put_signed(Line *line, int64_t value) noexcept nogil:
    if value < 0:
        put_char(line, c'-')
        put_decimal(line, -<uint64_t>value, 0, c' ')
    else:
        put_decimal(line, <uint64_t>value, 0, c' ')


cdef inline void put_hex(Line *line, uint64_t value, int width) noexcept nogil:
    """Lower case, filled with zeros to width (at most 16)."""
    cdef char text[16]
    cdef char *p = text + 16
    while True:
        p -= 1
        p[0] = HEX_DIGITS[value & 15]
        value >>= 4
        if value == 0:
            break
    while text + 16 - p < width:
        p -= 1
        p[0] = c'0'
    put(line, p, text + 16 - p)


cdef inline int put_float(Line *line, double value) except -1:
    """As repr() of a Python float: 1.5, -0.0, 1e+16, inf, nan."""
    cdef char *text = PyOS_double_to_string(value, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    put(line, text, strlen(text))
    PyMem_Free(text)
    return 0


cdef inline void put_string(Line *line, const uint8_t *text, size_t size) noexcept nogil:
    """Up to the first NUL, at most size bytes."""
    cdef const void *nul
    if size == 0:
        return
    nul = memchr(text, 0, size)
    put(line, text, <const uint8_t *>nul - text if nul != NULL else size)


cdef inline void put_hex_bytes(
    Line *line, const uint8_t *data, size_t size, char before, bint first
) noexcept nogil:
    """Two digits a byte with `before` in front of each; in front of the first only if `first`."""
    cdef size_t i
    if 3 * size > <size_t>(line.end - line.p) + (0 if first else 1):
        line.full = True
        return
    for i in range(size):
        if first or i:
            line.p[0] = before
            line.p += 1
        line.p[0] = HEX_DIGITS[data[i] >> 4]
        line.p[1] = HEX_DIGITS[data[i] & 15]
        line.p += 2


cdef inline void put_hex_pairs(Line *line, const uint8_t *data, size_t size) noexcept nogil:
    """Two digits a byte, nothing between them."""
    cdef size_t i
    if 2 * size > <size_t>(line.end - line.p):
        line.full = True
        return
    for i in range(size):
        line.p[0] = HEX_DIGITS[data[i] >> 4]
        line.p[1] = HEX_DIGITS[data[i] & 15]
        line.p += 2


cdef inline bint printable(uint8_t c) noexcept nogil:
    """isprint() of the kernel, for Latin-1 (lib/ctype.c)."""
    return 0x20 <= c <= 0x7E or c >= 0xA0


cdef inline double load_float(const uint8_t *p, size_t size) noexcept nogil:
    """size: 4 or 8."""
    cdef float single
    cdef double value
    if size == 4:
        memcpy(&single, p, 4)
        return single
    memcpy(&value, p, 8)
    return value


cdef inline uint32_t load32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef inline uint64_t load64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return value


cdef inline uint64_t load_unsigned(const uint8_t *p, size_t size) noexcept nogil:
    """An integer of NUMBER_SIZES; of another size at most 8 bytes of it."""
    cdef uint64_t value = 0
    cdef uint16_t half
    # Constant sizes, the most frequent first: a load each instead of a call.
    if size == 4:
        return load32(p)
    if size == 8:
        return load64(p)
    if size == 1:
        return p[0]
    if size == 2:
        memcpy(&half, p, 2)
        return half
    memcpy(&value, p, size if size < 8 else 8)
    return value


cdef inline int64_t load_signed(const uint8_t *p, size_t size) noexcept nogil:
    cdef int unused = 64 - 8 * <int>size if 0 < size < 8 else 0
    return <int64_t>(load_unsigned(p, size) << unused) >> unused
