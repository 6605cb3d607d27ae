# cython: boundscheck=False, wraparound=False
"""The records of a recording as columns: the common ones, and for each event one per field.

    Columns ─┬─ times, events, tasks, cpus, instances       one value a record
             ├─ lost_at, lost                               one value a place where records were lost
             ├─ event_columns[n].values[m]                  one value a record of the event
             │      Integers, or Texts: numbers into a list of distinct values
             └─ rest                                        Counts of the records beyond the limits

An integer column is packed as differences to the least value, in as few bytes as the largest difference needs
(none if all values are equal): first the low bytes of all values, then the next bytes, which compresses well.
"""

import array

cimport cython
from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t

from utracefs.recordings._columns cimport Values, put_fields
from utracefs.recordings._records cimport *

from utracefs_protocol.events._fields cimport elements_text
from utracefs_protocol.events._line cimport load_signed, load_unsigned
from utracefs_protocol.text import text_of
#: from array import array

cdef uint64_t SIGN = <uint64_t>1 << 63


@cython.final
cdef class Integers(Values):
    """64-bit integers, one after the other."""

    cdef readonly Py_ssize_t count
    cdef array.array _values
    cdef Py_ssize_t _room
    cdef bint _signed

    def __cinit__(self, bint signed=False):
        self._values = array.array("q" if signed else "Q")
        self._signed = signed

    @property
    def values(self) -> array[int]:
        """Until the next one is added."""
        self._room = self.count
        array.resize(self._values, self.count)
        return self._values

    cdef Py_ssize_t put(self, const uint8_t *data, size_t length) except -1:
        self.add(<uint64_t>load_signed(data, length) if self._signed else load_unsigned(data, length))
        return 0

    cdef int add(self, uint64_t value) except -1:
        """A signed value is given as its 64 bits."""
        if self.count == self._room:
            self._room = 2 * self._room + 64
            array.resize(self._values, self._room)
        self._values.data.as_ulonglongs[self.count] = value
        self.count += 1
        return 0

    def packed(self) -> tuple[int, int, bytes]:
        """(least value, bytes per value: 0, 1, 2, 4 or 8, the bytes)."""
        cdef uint64_t flip = SIGN if self._signed else 0      # for the order of signed ones
        cdef uint64_t least = <uint64_t>-1, most = 0, span
        cdef const unsigned long long *values = self._values.data.as_ulonglongs
        cdef size_t i, k, width, count = self.count
        cdef uint8_t *p
        cdef bytes data
        if not count:
            return 0, 0, b""
        for i in range(count):
            least = min(least, values[i] ^ flip)
            most = max(most, values[i] ^ flip)
        span = most - least
        width = 0 if not span else 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4
        if span >> 32:
            width = 8
        least ^= flip
        data = PyBytes_FromStringAndSize(NULL, width * count)
        p = <uint8_t *>PyBytes_AS_STRING(data)
        for k in range(width):
            for i in range(count):
                p[k * count + i] = <uint8_t>((values[i] - least) >> (8 * k))
        return <int64_t>least if self._signed else least, width, data

    def steps(self, uint64_t first) -> Integers:
        """Steps from `first` to the first value and between values, for unsigned non-decreasing ones."""
        cdef Integers found = Integers()
        cdef Py_ssize_t i
        for i in range(self.count):
            found.add(self._values.data.as_ulonglongs[i] - first)
            first = self._values.data.as_ulonglongs[i]
        return found

    def taken(self, order: Iterable[int]) -> Integers:
        """The values at these indexes."""
        cdef Integers found = Integers(self._signed)
        cdef Py_ssize_t i
        for i in order:
            found.add(self._values.data.as_ulonglongs[i])
        return found


@cython.final
cdef class Texts(Values):
    """Distinct texts by number. values: the texts, str with surrogate escapes, or hex, or floats, bools and
    arrays as text."""

    cdef readonly Integers numbers
    cdef readonly list values  #: list[str]
    cdef dict _known
    cdef ValueKind _kind
    cdef Getter _getter

    def __cinit__(self, kind: int = TEXT_VALUE):
        self.numbers = Integers()
        self.values = []
        self._known = {}
        self._kind = self._getter.kind = kind

    cdef Py_ssize_t put(self, const uint8_t *data, size_t length) except -1:
        cdef bytes value
        if self._kind == TEXT_VALUE:
            length = text_length(data, length)
        value = PyBytes_FromStringAndSize(<const char *>data, length)
        number = self._known.get(value)
        if number is not None:
            self.numbers.add(number)
            return 0
        number = self._known[value] = len(self.values)
        self.values.append(self._text_of(value))
        self.numbers.add(number)
        return length + 64

    cdef str _text_of(self, bytes value):
        if self._kind == TEXT_VALUE:
            return text_of(value)
        if self._kind == BYTES_VALUE:
            return value.hex()
        if self._kind == ARRAY_VALUE:
            return elements_text(
                self._getter.elements, <const uint8_t *>PyBytes_AS_STRING(value), len(value)
            ).decode()
        found = value_of(&self._getter, <const uint8_t *>PyBytes_AS_STRING(value), len(value))
        return repr(found) if self._kind == FLOAT_VALUE else "true" if found else "false"

    def taken(self, order: Iterable[int]) -> Texts:
        """The same texts, with the numbers at these indexes."""
        cdef Texts found = Texts(self._kind)
        found._getter = self._getter
        found.values = self.values
        found._known = self._known
        found.numbers = self.numbers.taken(order)
        return found


cdef class Counts:
    """Counts of records by bin of time, event and task. Bins double in width when there are more than
    max_counts counts: enough memory for eight of each event and task, or for max_counts.

    A bin has the times with the same `time >> shift`.
    """

    cdef readonly size_t total
    cdef readonly int shift
    cdef dict _counts         # by (bin, event, task)
    cdef size_t _max_counts

    def __init__(self, int shift, size_t max_counts):
        self.shift = shift
        self._counts = {}
        self._max_counts = max_counts

    cdef int add(self, uint64_t time_ns, event, task) except -1:
        cdef tuple key = (time_ns >> self.shift, event, task)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.total += 1
        if <size_t>len(self._counts) > self._max_counts:
            self._widen()
        return 0

    def _widen(self):
        cdef size_t pairs = len({key[1:] for key in self._counts})
        self._max_counts = max(self._max_counts, 8 * pairs)
        while <size_t>len(self._counts) > self._max_counts // 2:
            self.shift += 1
            wider = {}
            for (bin, event, task), number in self._counts.items():
                key = (bin >> 1, event, task)
                wider[key] = wider.get(key, 0) + number
            self._counts = wider

    def columns(self) -> tuple[Integers, Integers, Integers, Integers]:
        """(bins, events, tasks, counts) in the order of bins, parallel lists."""
        found = Integers(), Integers(), Integers(), Integers()
        for key in sorted(self._counts):
            for column, value in zip(found, (*key, self._counts[key])):
                (<Integers>column).add(value)
        return found


@cython.final
cdef class EventColumns:
    """The records of one event. values: Integers or Texts for each name, Texts of bytes are hex. is_short:
    records shorter than the event's fields; they have no names and values. count: rows; total: records."""

    cdef readonly str system
    cdef readonly str name
    cdef readonly tuple names  #: tuple[str, ...]
    cdef readonly list values  #: list[Integers | Texts]
    cdef readonly bint is_short
    cdef readonly size_t count
    cdef readonly size_t total
    cdef EventDecoder _decoder
    cdef object _number

    def __init__(self, EventDecoder decoder not None, number: int, bint is_short):
        cdef Py_ssize_t i
        cdef Texts texts
        self._decoder = decoder
        self._number = number
        self.system = decoder.system
        self.name = decoder.name
        self.is_short = is_short
        self.names = () if is_short else decoder.names
        self.values = []
        for i in range(len(self.names)):
            kind = decoder.getters[i].kind
            if kind == SIGNED_VALUE or kind == UNSIGNED_VALUE:
                self.values.append(Integers(kind == SIGNED_VALUE))
            else:
                texts = Texts(kind)
                texts._getter = decoder.getters[i]
                self.values.append(texts)

    cdef Py_ssize_t add(self, const Raw *raw) except -1:
        """Bytes of new texts."""
        self.count += 1
        return 0 if self.is_short else put_fields(self._decoder, raw, self.values, 0)

    def taken(self, order: Iterable[int]) -> EventColumns:
        found = EventColumns(self._decoder, self._number, self.is_short)
        (<EventColumns>found).values = [column.taken(order) for column in self.values]
        (<EventColumns>found).count = self.count
        (<EventColumns>found).total = self.total
        return found


cdef class Columns:
    """Takes all records of `records`: the first max_records as rows, fewer if text_bytes exceeds
    max_text_bytes; later ones as counts in `rest`, which is None without any.

    events, tasks: numbers into event_columns and task_list, which has (pid, tid, comm). instances: into
    instance_list. lost_at: the row in front of which `lost` records were lost, -1: not counted. text_bytes:
    what texts take. count: rows. first, last: times of all records.
    """

    cdef Records _records
    cdef readonly Integers times
    cdef readonly Integers events
    cdef readonly Integers tasks
    cdef readonly Integers cpus
    cdef readonly Integers instances
    cdef readonly Integers lost_at
    cdef readonly Integers lost
    cdef readonly list event_columns  #: list[EventColumns]
    cdef readonly list task_list  #: list[tuple[int, int, str]]
    cdef readonly list instance_list  #: list[str]
    cdef readonly size_t text_bytes
    cdef readonly uint64_t first
    cdef readonly uint64_t last
    cdef readonly Counts rest  #: Counts | None
    cdef size_t _max_records
    cdef size_t _max_text_bytes
    cdef size_t _max_counts
    cdef dict _by_decoder
    cdef dict _by_task
    cdef dict _by_buffer
    cdef bint _begun
    cdef bint _unordered

    def __init__(
        self, Records records not None, *, size_t max_records, size_t max_text_bytes, size_t max_counts
    ):
        self._records = records
        self._max_records = max_records
        self._max_text_bytes = max_text_bytes
        self._max_counts = max_counts
        self.times = Integers()
        self.events = Integers()
        self.tasks = Integers()
        self.cpus = Integers()
        self.instances = Integers()
        self.lost_at = Integers()
        self.lost = Integers(True)
        self.event_columns = []
        self.task_list = []
        self.instance_list = []
        self._by_decoder = {}
        self._by_task = {}
        self._by_buffer = {}

    @property
    def count(self) -> int:
        return self.times.count

    def read(self, size_t max_records) -> bool:
        """Take up to so many records. False: the end. ValueError at invalid data, after all before it."""
        cdef Raw raw
        cdef EventDecoder event
        cdef EventColumns columns
        cdef size_t n
        for n in range(max_records):
            event = self._records.next(&raw)
            if event is None:
                return False
            columns = self._columns(event, not event.fits(&raw))
            columns.total += 1
            if self.rest is None and (
                self.text_bytes > self._max_text_bytes
                or <size_t>self.times.count == self._max_records
            ):
                # The rows have 2^16 bins.
                span = self.last - self.first
                self.rest = Counts(max(span.bit_length() - 16, 0), self._max_counts)
            if raw.time_ns < self.last and self.rest is None:
                self._unordered = True
            if raw.time_ns < self.first or not self._begun:
                self.first = raw.time_ns
            self.last = max(self.last, raw.time_ns)
            self._begun = True
            if self.rest is not None:
                self.rest.add(raw.time_ns, columns._number, self._task(&raw))
                continue
            if raw.lost:
                self.lost_at.add(self.times.count)
                self.lost.add(<uint64_t>raw.lost)
            self.times.add(raw.time_ns)
            self.events.add(columns._number)
            self.cpus.add(raw.cpu)
            self.tasks.add(self._task(&raw))
            self._add_instance(raw.buffer)
            self.text_bytes += columns.add(&raw)
        return True

    def sort(self) -> None:
        """Sort the rows by time, stable. Losses move with the rows that they precede."""
        cdef list order, ranks, orders, in_event
        if not self._unordered:
            return
        order = sorted(range(self.count), key=self.times.values.__getitem__)
        in_event = [0] * len(self.event_columns)
        ranks = []
        for event in self.events.values:
            ranks.append(in_event[event])
            in_event[event] += 1
        orders = [[] for _ in self.event_columns]
        for before in order:
            orders[self.events.values[before]].append(ranks[before])
        self._sort_lost(order)
        self.times = self.times.taken(order)
        self.events = self.events.taken(order)
        self.tasks = self.tasks.taken(order)
        self.cpus = self.cpus.taken(order)
        self.instances = self.instances.taken(order)
        self.event_columns = [c.taken(o) for c, o in zip(self.event_columns, orders)]
        self._unordered = False

    def _sort_lost(self, list order):
        cdef dict places = dict.fromkeys(self.lost_at.values)
        for after, before in enumerate(order):
            if before in places:
                places[before] = after
        pairs = sorted((places[at], lost) for at, lost in zip(self.lost_at.values, self.lost.values))
        self.lost_at, self.lost = Integers(), Integers(True)
        for at, lost in pairs:
            self.lost_at.add(<uint64_t>at)
            self.lost.add(<uint64_t><int64_t>lost)

    cdef EventColumns _columns(self, EventDecoder event, bint is_short):
        key = (event, True) if is_short else event
        found = self._by_decoder.get(key)
        if found is None:
            found = self._by_decoder[key] = EventColumns(event, len(self.event_columns), is_short)
            self.event_columns.append(found)
        return <EventColumns>found

    cdef _task(self, const Raw *raw):
        cdef tuple key = (raw.pid, raw.tid, self._records.comm(raw.tid))  # not of C types: Cython hangs
        number = self._by_task.get(key)
        if number is None:
            number = self._by_task[key] = len(self.task_list)
            self.task_list.append(key)
        return number

    cdef int _add_instance(self, buffer) except -1:
        number = self._by_buffer.get(buffer)
        if number is None:
            number = self._by_buffer[buffer] = len(self.instance_list)
            self.instance_list.append(self._records.instance(buffer))
        return self.instances.add(number)
