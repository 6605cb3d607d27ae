# cython: boundscheck=False, wraparound=False
"""Records as packets of CTF, a stream for each cpu; ctf.py has the layout.

A getter determines both the encoding and the declaration of a field, so they always agree. A record is
measured, then written into the packet of its cpu; the packet is yielded when it has PACKET_BYTES.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from utracefs.recordings._records cimport *
from utracefs_protocol.events._fields cimport FIXED, find_bytes

from utracefs_protocol.text import bytes_of

cdef enum:
    PACKET_BYTES = 64 << 10   # of records, until a packet is yielded
    LONGEST = 16 << 20        # many fields may refer to the same 64 KiB
    UUID_SIZE = 16

cdef uint32_t MAGIC = 0xC1FC1FC1

cdef uint64_t LATEST = (<uint64_t>1 << 63) - 2

cdef packed struct PacketHead:
    uint32_t magic
    uint8_t uuid[UUID_SIZE]
    uint32_t stream_id
    uint32_t stream_instance_id
    uint64_t timestamp_begin
    uint64_t timestamp_end
    uint64_t content_size     # in bits, as the next one
    uint64_t packet_size
    uint64_t packet_seq_num
    uint64_t events_discarded
    uint32_t cpu_id

cdef packed struct RecordHead:
    uint32_t id
    uint64_t timestamp
    int32_t pid
    int32_t tid
    char comm[COMM_SIZE]


cpdef bytes comm_bytes(str name):
    """COMM_SIZE bytes."""
    return bytes_of(name)[:COMM_SIZE - 1].ljust(COMM_SIZE, b"\0")


cdef class _Stream:
    """The unfinished packet of one cpu. Its memory grows with its content: a file may have any number of
    cpus."""

    cdef bytearray packet
    cdef size_t used          # of it, with the head
    cdef uint32_t cpu
    cdef uint64_t first
    cdef uint64_t last
    cdef uint64_t packets
    cdef uint64_t records     # in the packet
    cdef uint64_t discarded
    cdef uint64_t reported        # of `discarded`, by the packets until now

    def __cinit__(self):
        self.packet = bytearray()
        self.used = sizeof(PacketHead)


cdef class CtfPackets:
    """Iterates over (cpu, packet) of `records`; concatenate those of a cpu. uuid: 16 bytes.

    events: the decoders of the events found; an index is the event's id. count: records in the last yielded
    packet.

    ValueError at invalid data, after all packets with records before it.
    """

    cdef readonly uint64_t count
    cdef Records _records
    cdef bytes _uuid
    cdef dict _numbers        # EventDecoder to its id
    cdef dict _streams        # cpu to _Stream
    cdef NameCache _comms
    cdef EventDecoder _event  # the one before, and its id
    cdef uint32_t _number
    cdef _Stream _stream

    def __init__(self, Records records not None, bytes uuid not None):
        if PyBytes_GET_SIZE(uuid) != UUID_SIZE:
            raise ValueError(f"uuid of {PyBytes_GET_SIZE(uuid)} bytes")
        self._records = records
        self._uuid = uuid
        self._numbers = {}
        self._streams = {}
        self._comms = NameCache(comm_bytes)

    @property
    def events(self) -> list[EventDecoder]:
        return list(self._numbers)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        cdef _Stream stream
        error = None
        try:
            while (stream := self._fill()) is not None:
                yield stream.cpu, self._take(stream)
        except ValueError as raised:
            error = raised
        for stream in self._streams.values():
            if stream.used > sizeof(PacketHead) or not stream.packets or stream.discarded != stream.reported:
                yield stream.cpu, self._take(stream)
        if error is not None:
            raise error

    cdef _Stream _fill(self):
        """The stream with a full packet; None at the end."""
        cdef Raw raw
        cdef EventDecoder event
        cdef _Stream stream
        while True:
            event = self._records.next(&raw)
            if event is None:
                return None
            stream = self._stream_of(raw.cpu)
            if event is not self._event:
                self._number = self._numbers.setdefault(event, len(self._numbers))
                self._event = event
            if raw.lost:
                stream.discarded += raw.lost if raw.lost > 0 else 1
            self._add(stream, event, &raw)
            if stream.used >= sizeof(PacketHead) + PACKET_BYTES:
                return stream

    cdef _Stream _stream_of(self, uint32_t cpu):
        if self._stream is None or self._stream.cpu != cpu:
            found = self._streams.get(cpu)
            if found is None:
                found = self._streams[cpu] = _Stream.__new__(_Stream)
                (<_Stream>found).cpu = cpu
            self._stream = <_Stream>found
        return self._stream

    cdef int _add(self, _Stream stream, EventDecoder event, const Raw *raw) except -1:
        cdef RecordHead head
        cdef char *to
        cdef int64_t body = body_size(event, raw)
        cdef size_t end
        if body < 0:
            stream.discarded += 1
            return 0
        end = stream.used + sizeof(head) + body
        if end > <size_t>PyByteArray_GET_SIZE(stream.packet):
            PyByteArray_Resize(stream.packet, 2 * end)
        to = PyByteArray_AS_STRING(stream.packet) + stream.used
        # readers refuse times that go back, and times above 2^63
        stream.last = max(stream.last, min(raw.time_ns, LATEST))
        if stream.used == sizeof(PacketHead):
            stream.first = stream.last
        head.id = self._number
        head.timestamp = stream.last
        head.pid = raw.pid
        head.tid = raw.tid
        memcpy(head.comm, PyBytes_AS_STRING(self._comms.of(self._records.comm(raw.tid))), COMM_SIZE)
        memcpy(to, &head, sizeof(head))
        write_body(to + sizeof(head), event, raw)
        stream.used = end
        stream.records += 1
        return 0

    cdef bytes _take(self, _Stream stream):
        """Take the packet; the stream begins another one."""
        cdef PacketHead head
        cdef bytes packet
        self.count = stream.records
        stream.records = 0
        memset(&head, 0, sizeof(head))
        head.magic = MAGIC
        memcpy(head.uuid, PyBytes_AS_STRING(self._uuid), UUID_SIZE)
        head.stream_instance_id = head.cpu_id = stream.cpu
        head.timestamp_begin = stream.first if stream.used > sizeof(head) else stream.last
        head.timestamp_end = stream.last
        head.content_size = head.packet_size = 8 * <uint64_t>stream.used
        head.packet_seq_num = stream.packets
        head.events_discarded = stream.discarded
        if not PyByteArray_GET_SIZE(stream.packet):
            PyByteArray_Resize(stream.packet, sizeof(head))
        memcpy(PyByteArray_AS_STRING(stream.packet), &head, sizeof(head))
        packet = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(stream.packet), stream.used)
        if stream.used > 4 * PACKET_BYTES:
            PyByteArray_Resize(stream.packet, PACKET_BYTES)   # free the memory of a long record
        stream.used = sizeof(head)
        stream.packets += 1
        stream.reported = stream.discarded
        return packet


cdef dict WORDS = {
    SIGNED_VALUE: "s", UNSIGNED_VALUE: "u", BOOL_VALUE: "u", FLOAT_VALUE: "f", TEXT_VALUE: "text",
    BYTES_VALUE: "byte",
}


def declared_fields(EventDecoder event not None) -> list[tuple[str, str, int | None]]:
    """(name, type, size) of each field as written. type: s, u (integers), f (float), text, byte; size in
    bytes, None: variable. Of an array, type is that of its elements, `u32`, and size their number."""
    cdef Getter *getter
    cdef Py_ssize_t i
    found = []
    for i in range(event.count):
        getter = &event.getters[i]
        size = getter.place.size if getter.place.where == FIXED else None
        if getter.kind == ARRAY_VALUE:
            word = f"{WORDS[getter.elements.kind]}{8 * getter.elements.size}"
            found.append((event.names[i], word, size // getter.elements.size))
        else:
            found.append((event.names[i], WORDS[getter.kind], size))
    return found


cdef int64_t body_size(EventDecoder event, const Raw *raw) noexcept:
    """Bytes of the fields; -1 for a record that does not match its event, or that CTF cannot hold."""
    cdef const uint8_t *data = NULL
    cdef size_t length = 0
    cdef int64_t size = 0
    cdef Py_ssize_t i
    cdef Getter *getter
    for i in range(event.count):
        getter = &event.getters[i]
        if not find_bytes(&getter.place, raw.entry, raw.size, &data, &length):
            return -1
        if getter.place.where == FIXED:
            size += length
        elif getter.kind == TEXT_VALUE:
            size += text_length(data, length) + 1
        elif length > 0xFFFF:
            return -1
        else:
            size += 2 + length
        if size > LONGEST:
            return -1
    return size


cdef void write_body(char *to, EventDecoder event, const Raw *raw) noexcept:
    """Write the body of body_size bytes."""
    cdef const uint8_t *data = NULL
    cdef size_t length = 0, text
    cdef uint16_t short_length
    cdef Py_ssize_t i
    cdef Getter *getter
    for i in range(event.count):
        getter = &event.getters[i]
        find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
        if getter.kind == TEXT_VALUE:
            text = text_length(data, length)
            memcpy(to, data, text)
            if getter.place.where == FIXED:
                memset(to + text, 0, length - text)
                to += length
            else:
                to[text] = 0
                to += text + 1
            continue
        if getter.place.where != FIXED:
            short_length = <uint16_t>length
            memcpy(to, &short_length, 2)
            to += 2
        memcpy(to, data, length)
        to += length
