# cython: boundscheck=False, wraparound=False
"""Records as columns: buffers in the layout of Apache Arrow, which libraries of data frames use without
conversion.

    Records ─▶ ColumnBatches ─▶ Batch: some records of one event ─▶ Column: values, offsets, validity

Records are collected by event until there are enough of one for a batch. Their total size is bounded, so
memory does not grow with the recording.

Layout: https://arrow.apache.org/docs/format/Columnar.html. Values are little-endian, without padding;
`offsets` are int32, one more than rows; in `validity` bit n & 7 of byte n >> 3 says that row n has a value.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from utracefs.recordings._records cimport *
from utracefs_protocol.events._fields cimport FIXED, Place, elements_text, find_bytes
from utracefs_protocol.events._line cimport load_signed, load_unsigned
from utracefs_protocol.memory cimport resized

from utracefs_protocol.events.declaration import NUMBER_SIZES
from utracefs_protocol.text import clean

cdef enum:
    ROWS = 65536                # of a batch
    BATCH_BYTES = 16 << 20      # of texts in a batch; offsets have 31 bits
    PENDING_BYTES = 64 << 20    # collected for all events
    FIRST_ROWS = 64
    COMM = 4
    COMMONS = 7

COMMON_COLUMNS = ("time_ns", "cpu", "pid", "tid", "comm", "instance", "lost")  #: tuple[str, ...]
"""The columns of each table in front of its fields."""

PLACE_COLUMNS = ("host", "file")  #: tuple[str, ...]
"""The next ones, in tables of several recordings."""

cdef class _Buffer:
    """Bytes that can be read as a buffer."""

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data if self.size else <uint8_t *>b"", self.size, True, flags)

    cdef int room(self, Py_ssize_t more) except -1:
        """Make room for `more` bytes behind `size`."""
        cdef Py_ssize_t capacity
        if self.size + more <= self.capacity:
            return 0
        capacity = max(2 * self.capacity, self.size + more)
        self.data = <uint8_t *>resized(self.data, capacity)
        self.capacity = capacity
        return 0


cdef class Values:
    """Collects the values of one field: the base of all columns."""

    cdef Py_ssize_t put(self, const uint8_t *data, size_t length) except -1:
        """Append the value of these bytes of a record; returns the bytes of text that it takes."""
        raise NotImplementedError


cdef Py_ssize_t put_fields(EventDecoder event, const Raw *raw, list columns, Py_ssize_t first) except -1:
    """Append the fields of a record that fits its event to `columns`, from number `first` on; returns the sum
    of `put`."""
    cdef const uint8_t *data = NULL
    cdef size_t length = 0
    cdef Py_ssize_t i, kept = 0
    for i in range(event.count):
        find_bytes(&event.getters[i].place, raw.entry, raw.size, &data, &length)
        kept += (<Values>columns[first + i]).put(data, length)
    return kept


cdef class Column(Values):
    """One column of a batch.

    name: the field's, or one of COMMON_COLUMNS. type: Arrow's name of it: `int8` to `uint64`, `float32`,
    `float64`, `bool_` (a byte each, unlike Arrow's), `string` (UTF-8, U+FFFD for each byte that is not; JSON
    of arrays), `binary`.
    nulls: number of rows without a value.
    """

    @property
    def values(self) -> memoryview:
        return memoryview(self._values)

    @property
    def offsets(self) -> memoryview | None:
        """Offsets of strings and binaries in `values`; None for numbers."""
        return None if self._offsets is None else memoryview(self._offsets)

    @property
    def dictionary(self) -> list[str] | None:
        """The texts, if `values` are indexes into this list; None: `values` are the values themselves."""
        return None if self._codes is None else list(self._codes)

    @property
    def validity(self) -> memoryview | None:
        """Validity bits of rows; None: all have a value."""
        return None if self._validity is None else memoryview(self._validity)

    cdef int room(self, Py_ssize_t rows, Py_ssize_t more) except -1:
        """Make room for `more` rows; for texts without their bytes."""
        if self._width:
            self._values.room(more * self._width)
            return 0
        self._offsets.room((more + (rows == 0)) * 4)
        if rows == 0 and self._offsets.size == 0:
            memset(self._offsets.data, 0, 4)
            self._offsets.size = 4
        return 0

    cdef inline void put_number(self, uint64_t value) noexcept:
        cdef uint8_t *to = self._values.data + self._values.size
        if self._width == 8:
            memcpy(to, &value, 8)
        elif self._width == 4:
            memcpy(to, &value, 4)
        else:
            memcpy(to, &value, self._width)
        self._values.size += self._width

    cdef Py_ssize_t put(self, const uint8_t *data, size_t length) except -1:
        """There is `room` for it."""
        cdef bytes text
        if self._width:
            if self._kind == BOOL_VALUE:
                self.put_number(data[0] != 0)
            elif self._kind == UNSIGNED_VALUE or self._kind == FLOAT_VALUE:
                self.put_number(load_unsigned(data, length))
            else:
                self.put_number(<uint64_t>load_signed(data, length))
            return 0
        if self._kind == TEXT_VALUE:
            length = text_length(data, length)
        if self._kind == ARRAY_VALUE:
            text = elements_text(self._elements, data, length)
            self.put_object(text)
            return PyBytes_GET_SIZE(text)
        if self._as_bytes:
            self.put_bytes(data, length)
        else:
            self.put_text(data, length)
        return length

    cdef Py_ssize_t put_all(self, const Place *place, const Raw *raws, Py_ssize_t count) except -1:
        """Append the values at this place of records, which all have it; returns the sum of `put`."""
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef Py_ssize_t i, kept = 0
        cdef uint8_t *to = self._values.data + self._values.size
        if place.where != FIXED or place.size != <size_t>self._width or self._kind == BOOL_VALUE:
            for i in range(count):
                find_bytes(place, raws[i].entry, raws[i].size, &data, &length)
                kept += self.put(data, length)
            return kept
        if self._width == 8:
            for i in range(count):
                memcpy(to + 8 * i, raws[i].entry + place.offset, 8)
        elif self._width == 4:
            for i in range(count):
                memcpy(to + 4 * i, raws[i].entry + place.offset, 4)
        else:
            for i in range(count):
                memcpy(to + self._width * i, raws[i].entry + place.offset, self._width)
        self._values.size += count * self._width
        return 0

    cdef int put_members(self, const void *first, Py_ssize_t count) except -1:
        """Append one member of an array of Raws, as numbers; there is `room` for them."""
        cdef Py_ssize_t i
        cdef uint8_t *to = self._values.data + self._values.size
        cdef const uint8_t *data = <const uint8_t *>first
        if self._width == 8:
            for i in range(count):
                memcpy(to + 8 * i, data + sizeof(Raw) * i, 8)
        else:
            for i in range(count):
                memcpy(to + 4 * i, data + sizeof(Raw) * i, 4)
        self._values.size += count * self._width
        return 0

    cdef int put_repeated(self, bytes text, Py_ssize_t count) except -1:
        """Append the same text `count` times; there is `room` for that."""
        cdef Py_ssize_t i, size = PyBytes_GET_SIZE(text), done = size, all = size * count
        cdef int32_t *ends
        cdef int32_t *codes
        cdef int32_t code
        cdef uint8_t *to
        if self._codes is not None:
            code = self._codes.setdefault(text.decode(), len(self._codes))
            codes = <int32_t *>(self._values.data + self._values.size)
            for i in range(count):
                codes[i] = code
            self._values.size += 4 * count
            return 0
        ends = <int32_t *>(self._offsets.data + self._offsets.size)
        if size:
            self._values.room(all)
            to = self._values.data + self._values.size
            memcpy(to, PyBytes_AS_STRING(text), size)
            while done < all:
                memcpy(to + done, to, min(done, all - done))
                done += min(done, all - done)
        for i in range(count):
            ends[i] = <int32_t>(self._values.size + size * (i + 1))
        self._values.size += all
        self._offsets.size += 4 * count
        return 0

    cdef inline int put_bytes(self, const uint8_t *data, Py_ssize_t size) except -1:
        cdef int32_t end
        if size:
            self._values.room(size)
            memcpy(self._values.data + self._values.size, data, size)
            self._values.size += size
        end = <int32_t>self._values.size
        memcpy(self._offsets.data + self._offsets.size, &end, 4)
        self._offsets.size += 4
        return 0

    cdef int put_text(self, const uint8_t *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t i
        cdef uint8_t all = 0
        for i in range(size):
            all |= data[i]
        if all < 0x80:
            return self.put_bytes(data, size)
        return self.put_object((<const char *>data)[:size].decode("utf-8", "replace").encode())

    cdef inline int put_object(self, bytes data) except -1:
        return self.put_bytes(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int put_null(self, Py_ssize_t rows) except -1:
        """In row number `rows`."""
        if self._validity is None:
            self._validity = _Buffer.__new__(_Buffer)
        self.cover(rows + 1)
        self._validity.data[rows >> 3] &= ~(1 << (rows & 7))
        self.nulls += 1
        if self._width:
            self.put_number(0)
            return 0
        return self.put_bytes(b"", 0)

    cdef int cover(self, Py_ssize_t rows) except -1:
        """Make bits for that many rows, set for new ones."""
        cdef Py_ssize_t more
        if self._validity is not None:
            more = ((rows + 7) >> 3) - self._validity.size
            if more > 0:
                self._validity.room(more)
                memset(self._validity.data + self._validity.size, 0xFF, more)
                self._validity.size += more
        return 0


cdef class Batch:
    """Some records of one event, in the order of time.

    event: their event; a new batch has none. rows: their number. columns: COMMON_COLUMNS, with_place
    PLACE_COLUMNS, then the event's fields in their order, from number `commons` on. Absent are `time_ns` of
    2^63 or more, unknown `lost`, and all fields of a record that is shorter than its event's fields.
    """

    def __init__(
        self, EventDecoder event not None, bint text_as_bytes=False, bint with_place=False, bint coded=False
    ):
        cdef Py_ssize_t i
        self.event = event
        self.columns = [
            new_column("time_ns", "int64", 8, UNSIGNED_VALUE),
            new_column("cpu", "int32", 4, UNSIGNED_VALUE),
            new_column("pid", "int32", 4, UNSIGNED_VALUE),
            new_column("tid", "int32", 4, UNSIGNED_VALUE),
            new_column("comm", "string", 0, TEXT_VALUE),
            new_column("instance", "string", 0, TEXT_VALUE),
            new_column("lost", "int64", 8, UNSIGNED_VALUE),
        ]
        if coded:
            self.columns[COMM] = new_column("comm", "int32", 4, UNSIGNED_VALUE)
            (<Column>self.columns[COMM])._codes = {}
        if with_place:
            self.columns += [new_column(name, "string", 0, TEXT_VALUE) for name in PLACE_COLUMNS]
        self.commons = len(self.columns)
        for i in range(event.count):
            self.columns.append(field_column(event.names[i], &event.getters[i], text_as_bytes))
        self.grow(FIRST_ROWS)

    cdef int put_common(self, const Raw *raws, Py_ssize_t count, Records records, NameCache names) except -1:
        """The columns before the fields of new rows; the caller puts the others, and counts the rows."""
        cdef list columns = self.columns
        cdef Py_ssize_t i, begin = 0, end
        cdef bint is_late = False, is_unknown = False
        cdef bytes text
        cdef str name
        if self.rows + count > self._capacity:
            self.grow(self.rows + count)
        cdef Column time_ns = columns[0], cpu = columns[1], pid = columns[2], tid = columns[3]
        cdef Column comm = columns[COMM], instance = columns[5], lost = columns[6]
        for i in range(count):
            is_late |= raws[i].time_ns >> 63
            is_unknown |= raws[i].lost < 0
        if not is_late:
            time_ns.put_members(&raws.time_ns, count)
        else:
            for i in range(count):
                if raws[i].time_ns >> 63:
                    time_ns.put_null(self.rows + i)
                else:
                    time_ns.put_number(raws[i].time_ns)
        cpu.put_members(&raws.cpu, count)
        pid.put_members(&raws.pid, count)
        tid.put_members(&raws.tid, count)
        while begin < count:
            end = begin + 1
            while end < count and raws[end].tid == raws[begin].tid and raws[end].buffer == raws[begin].buffer:
                end += 1
            text = names.of(records.comm(raws[begin].tid))
            comm.put_repeated(text, end - begin)
            self.text_bytes += PyBytes_GET_SIZE(text) * (end - begin)
            name = records.instance(raws[begin].buffer)
            instance.put_repeated(names.of(name) if name else b"", end - begin)
            begin = end
        if not is_unknown:
            lost.put_members(&raws.lost, count)
        else:
            for i in range(count):
                if raws[i].lost < 0:
                    lost.put_null(self.rows + i)
                else:
                    lost.put_number(raws[i].lost)
        if self.commons > COMMONS:
            for i in range(count):
                host, file = records.place(&raws[i])
                (<Column>columns[7]).put_object(names.of(host))
                (<Column>columns[8]).put_object(names.of(file))
                self.text_bytes += len(host) + len(file)
        return 0

    cdef int grow(self, Py_ssize_t rows) except -1:
        """Make room for at least that many rows."""
        cdef Column column
        self._capacity = max(4 * self._capacity, rows)
        for column in self.columns:
            column.room(self.rows, self._capacity - self.rows)
        return 0

    cdef int finish(self) except -1:
        cdef Column column
        for column in self.columns:
            column.cover(self.rows)
        return 0

    cdef bint is_full(self) noexcept:
        return self.rows > ROWS - RUN or self.text_bytes > BATCH_BYTES

    cdef Py_ssize_t size_bytes(self) noexcept:
        return self.rows * 8 * len(self.columns) + self.text_bytes


cdef Column new_column(str name, str type, Py_ssize_t width, ValueKind kind):
    cdef Column column = Column.__new__(Column)
    column.name = name
    column.type = type
    column._width = width
    column._kind = kind
    column._as_bytes = type == "binary"
    column._values = _Buffer.__new__(_Buffer)
    if not width:
        column._offsets = _Buffer.__new__(_Buffer)
    return column


cdef Column field_column(str name, const Getter *getter, bint text_as_bytes):
    cdef Py_ssize_t width
    cdef Column column
    if getter.kind == ARRAY_VALUE:
        column = new_column(name, "binary" if text_as_bytes else "string", 0, ARRAY_VALUE)
        column._elements = getter.elements
        return column
    if getter.kind == TEXT_VALUE:
        return new_column(name, "binary" if text_as_bytes else "string", 0, TEXT_VALUE)
    if getter.kind == BYTES_VALUE:
        return new_column(name, "binary", 0, BYTES_VALUE)
    if getter.kind == BOOL_VALUE:
        return new_column(name, "bool_", 1, BOOL_VALUE)
    if getter.kind == FLOAT_VALUE:
        return new_column(name, f"float{8 * getter.place.size}", getter.place.size, FLOAT_VALUE)
    width = getter.place.size if getter.place.size in NUMBER_SIZES else 8
    sign = "u" if getter.kind == UNSIGNED_VALUE else ""
    return new_column(name, f"{sign}int{8 * width}", width, getter.kind)


cpdef bytes clean_bytes(str text):
    """UTF-8, with U+FFFD for bytes that are not."""
    return clean(text).encode()


cdef class ColumnBatches:
    """Iterates over `records` as Batches; each has 65,536 records of one event at most.

    text_as_bytes: texts are `binary`, unchanged, up to their first NUL. coded: `comm` has a dictionary.

    ValueError at invalid data, after all records before it.
    """

    def __init__(self, Records records not None, bint text_as_bytes=False, bint coded=False):
        self._records = records
        self._coded = coded
        self._text_as_bytes = text_as_bytes
        self._pending = {}
        self._names = NameCache(clean_bytes)

    def __iter__(self):
        return self

    def __next__(self) -> Batch:
        cdef EventDecoder event, table
        cdef EventDecoder before = None
        cdef Batch batch = None
        cdef Py_ssize_t size
        try:
            while self._error is None and (event := self._next_run()) is not None:
                table = event if self._table is None else self._table
                if table is not before:
                    before = table
                    batch = self._pending.get(table)
                    if batch is None:
                        batch = self._pending[table] = self._begin(table)
                        self._bytes += batch.size_bytes()
                size = batch.size_bytes()
                batch.put_common(self._run, self._count, self._records, self._names)
                self._put(batch, event, self._run, self._count)
                batch.rows += self._count
                self._bytes += batch.size_bytes() - size
                if batch.is_full():
                    return self._take(batch)
                if self._bytes > PENDING_BYTES:
                    return self._take(self._largest())
        except ValueError as error:
            self._error = error
        for batch in self._pending.values():
            return self._take(batch)
        if self._error is not None:
            raise self._error
        raise StopIteration

    cdef Batch _begin(self, EventDecoder event):
        return Batch(event, self._text_as_bytes, self._records.is_merged, self._coded)

    cdef EventDecoder _next_run(self):
        """Read `_run`, records of one event; its decoder, None at the end."""
        cdef EventDecoder event = self._event, next
        if event is None:
            event = self._records.next(&self._run[0])
        else:
            self._run[0] = self._ahead
        self._event = None
        self._count = event is not None
        if event is None or not self._records.is_steady():
            return event
        try:
            while self._count < RUN:
                next = self._records.next(&self._run[self._count])
                if next is not event:
                    self._event, self._ahead = next, self._run[self._count]
                    break
                self._count += 1
        except ValueError as error:
            self._error = error
        return event

    cdef int _put(self, Batch batch, EventDecoder event, const Raw *raws, Py_ssize_t count) except -1:
        """Fill the further columns of a table, in rows that have COMMON_COLUMNS."""
        cdef list columns = batch.columns
        cdef Py_ssize_t i, row = 0, fit = 0
        while row < count:
            while row + fit < count and event.fits(&raws[row + fit]):
                fit += 1
            if fit:
                for i in range(event.count):
                    batch.text_bytes += (<Column>columns[batch.commons + i]).put_all(
                        &event.getters[i].place, &raws[row], fit
                    )
                row, fit = row + fit, 0
            else:
                for i in range(batch.commons, len(columns)):
                    (<Column>columns[i]).put_null(batch.rows + row)
                row += 1
        return 0

    cdef Batch _largest(self):
        cdef Batch batch
        cdef Batch largest = None
        for batch in self._pending.values():
            if largest is None or batch.size_bytes() > largest.size_bytes():
                largest = batch
        return largest

    cdef Batch _take(self, Batch batch):
        del self._pending[batch.event]
        self._bytes -= batch.size_bytes()
        batch.finish()
        return batch
