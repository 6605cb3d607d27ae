"""CTF 1.8 (Common Trace Format), which babeltrace2 and Trace Compass open: a directory.

    metadata         text that describes the rest (TSDL)
    channel0_N       the records of cpu N: packets, one behind the other

    packet    magic, uuid, stream id, cpu │ times, sizes in bits, number, discarded, cpu │ records
    record    u32 event, u64 time │ i32 pid, i32 tid, 16 bytes comm │ fields

All is little-endian and without padding between the parts.

| field | CTF |
|---|---|
| integer | integer of its size |
| char[N] | text of N bytes |
| unsigned char[N], struct | N bytes |
| dynamic text | string, up to its first NUL |
| other dynamic data | u16 number of bytes `__NAME_length`, and the bytes |

Names get an underscore in front, which readers take away again: some are words of TSDL. Lost records are
counted in `events_discarded` of the packet of the record behind them, at least one where they were not
counted; a record that is shorter than its event says counts there, too. Times of a cpu that go back and times
from 2^63 on, which readers refuse, stay at the latest.
"""

import os
import re
import struct
import uuid
from typing import Final

import attrs

from utracefs.export.common import Exported, Progress, clean, watched
from utracefs.recording import Record, Recording
from utracefs_protocol.declaration import Field, FieldKind
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["write_ctf"]

_HEAD: Final = struct.Struct("<I16sIIQQQQQQI")
"""magic, uuid, stream id, cpu; first and last time, content and packet bits, number, discarded, cpu."""
_RECORD: Final = struct.Struct("<IQii16s")
"""event, time, pid, tid, comm."""
_MAGIC: Final = 0xC1FC1FC1
_LATEST: Final = (1 << 63) - 2
_PACKET_BYTES: Final = 64 << 10
"""Of records, until a packet is written."""

_METADATA: Final = """\
/* CTF 1.8 */
typealias integer {{ size = 8; align = 8; signed = false; byte_order = le; }} := u8;
typealias integer {{ size = 16; align = 8; signed = false; byte_order = le; }} := u16;
typealias integer {{ size = 32; align = 8; signed = false; byte_order = le; }} := u32;
typealias integer {{ size = 64; align = 8; signed = false; byte_order = le; }} := u64;
typealias integer {{ size = 8; align = 8; signed = true; byte_order = le; }} := s8;
typealias integer {{ size = 16; align = 8; signed = true; byte_order = le; }} := s16;
typealias integer {{ size = 32; align = 8; signed = true; byte_order = le; }} := s32;
typealias integer {{ size = 64; align = 8; signed = true; byte_order = le; }} := s64;
typealias integer {{ size = 8; align = 8; signed = false; byte_order = le; encoding = UTF8; }} := text;
typealias integer {{ size = 8; align = 8; signed = false; byte_order = le; base = 16; }} := byte;
trace {{
	major = 1;
	minor = 8;
	uuid = "{uuid}";
	byte_order = le;
	packet.header := struct {{ u32 magic; byte uuid[16]; u32 stream_id; u32 stream_instance_id; }};
}};
env {{
	domain = "utracefs";
	tracer_name = "utracefs";
	clock = "{clock}";
}};
clock {{
	name = monotonic;
	description = "{clock}";
	freq = 1000000000;
	offset_s = 0;
	offset = 0;
	absolute = FALSE;
}};
typealias integer {{
	size = 64; align = 8; signed = false; byte_order = le; map = clock.monotonic.value;
}} := time_t;
stream {{
	id = 0;
	packet.context := struct {{
		time_t timestamp_begin; time_t timestamp_end; u64 content_size; u64 packet_size; u64 packet_seq_num;
		u64 events_discarded; u32 cpu_id;
	}};
	event.header := struct {{ u32 id; time_t timestamp; }};
	event.context := struct {{ s32 _vpid; s32 _vtid; text _procname[16]; }};
}};
"""


def write_ctf(
    recording: Recording, directory: str | os.PathLike[str], *, progress: Progress | None = None
) -> Exported:
    """Write all records into a new directory.

    OSError: it exists (FileExistsError), or cannot be written. TraceError at what is broken, after all before
    it is written and the directory is complete.
    """
    os.mkdir(directory)
    trace = _Trace(os.fspath(directory), recording)
    reading = recording.reading()
    try:
        for record in watched(reading, progress):
            trace.add(record)
    finally:
        trace.close()
    return Exported.of(reading)


class _Trace:
    """The directory while it is written."""

    def __init__(self, directory: str, recording: Recording) -> None:
        self._directory = directory
        self._uuid = uuid.uuid4()
        self._clock = re.sub(r"[^A-Za-z0-9_]", "_", recording.clock)
        self._fields = {(system, text_of(event.name)): event.fields for system, event in recording.formats}
        self._events: dict[tuple[str, str], _Event] = {}
        self._streams: dict[int, _Stream] = {}

    def add(self, record: Record) -> None:
        key = (record.system, record.name)
        event = self._events.get(key)
        if event is None:
            event = _Event(len(self._events), *key, self._fields.get(key, ()))
            self._events[key] = event
        stream = self._streams.get(record.cpu)
        if stream is None:
            path = os.path.join(self._directory, f"channel0_{record.cpu}")
            stream = self._streams[record.cpu] = _Stream(path, self._uuid.bytes, record.cpu)
        if record.lost:
            stream.discarded += max(record.lost, 1)
        stream.add(record, event)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        text = _METADATA.format(uuid=self._uuid, clock=self._clock)
        text += "".join(event.metadata() for event in self._events.values())
        with open(os.path.join(self._directory, "metadata"), "w", encoding="utf-8") as file:
            file.write(text)


class _Stream:
    """The file of one cpu. Several thousand may be open: it is opened for each packet."""

    def __init__(self, path: str, trace: bytes, cpu: int) -> None:
        self._path = path
        self._trace = trace
        self._cpu = cpu
        self._body = bytearray()
        self._first = self._last = 0
        self._packets = 0
        self.discarded = 0

    def add(self, record: Record, event: "_Event") -> None:
        body = event.body(record.fields)
        if body is None:
            self.discarded += 1
            return
        time = max(min(record.time_ns, _LATEST), self._last)
        if not self._body:
            self._first = time
        self._last = time
        comm = bytes_of(record.comm)[:15]
        self._body += _RECORD.pack(event.number, time, record.pid, record.tid, comm) + body
        if len(self._body) >= _PACKET_BYTES:
            self._write()

    def close(self) -> None:
        if self._body or not self._packets:
            self._write()

    def _write(self) -> None:
        bits = 8 * (_HEAD.size + len(self._body))
        head = _HEAD.pack(
            _MAGIC,
            self._trace,
            0,
            self._cpu,
            self._first,
            self._last,
            bits,
            bits,
            self._packets,
            self.discarded,
            self._cpu,
        )
        with open(self._path, "ab") as file:
            file.write(head + self._body)
        self._packets += 1
        self._body.clear()


@attrs.define
class _Event:
    """How one event is written. Of fields with one name the last counts, as in Record.fields."""

    number: int
    system: str
    name: str
    fields: tuple[Field, ...]
    _by_name: dict[str, Field] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._by_name = {text_of(field.name): field for field in self.fields}

    def body(self, values: dict[str, int | str | bytes]) -> bytes | None:
        """None for a record that is not what the event says."""
        if len(values) != len(self._by_name):
            return None
        parts = []
        for field, value in zip(self._by_name.values(), values.values(), strict=True):
            if isinstance(value, int):
                parts.append(value.to_bytes(field.size, "little", signed=value < 0))
                continue
            data = bytes_of(value) if isinstance(value, str) else value
            if _is_fixed(field):
                parts.append(data.ljust(field.size, b"\0"))
            elif isinstance(value, str):
                parts.append(data + b"\0")
            else:
                parts.append(len(data).to_bytes(2, "little") + data)
        return b"".join(parts)

    def metadata(self) -> str:
        taken: set[str] = set()
        lines = []
        for name, field in self._by_name.items():
            word = re.sub(r"[^A-Za-z0-9_]", "_", name)
            while word in taken or f"_{word}_length" in taken:
                word += "_"
            taken |= {word, f"_{word}_length"}
            lines.append(f"\t\t{_declared(field, word)}\n")
        name = re.sub(r'([\\"])', r"\\\1", clean(f"{self.system}:{self.name}"))
        return (
            f'event {{\n\tname = "{name}";\n\tid = {self.number};\n\tstream_id = 0;\n'
            f"\tfields := struct {{\n{''.join(lines)}\t}};\n}};\n"
        )


def _is_fixed(field: Field) -> bool:
    return not field.is_loc and field.size > 0


def _is_text(field: Field) -> bool:
    if field.is_loc:
        return field.is_string
    return field.kind is FieldKind.CHAR_ARRAY and not field.type.startswith(b"unsigned")


def _declared(field: Field, word: str) -> str:
    if field.kind is FieldKind.INTEGER:
        return f"{'s' if field.signed else 'u'}{8 * field.size} _{word};"
    if _is_fixed(field):
        return f"{'text' if _is_text(field) else 'byte'} _{word}[{field.size}];"
    if _is_text(field):
        return f"string {{ encoding = UTF8; }} _{word};"
    return f"u16 __{word}_length; byte _{word}[__{word}_length];"
