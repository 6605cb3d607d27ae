"""CTF 1.8 (Common Trace Format), for babeltrace2 and Trace Compass: a directory.

    metadata         description of the rest (TSDL)
    channel0_N       the records of cpu N: consecutive packets

    packet    magic, uuid, stream id, cpu │ times, sizes in bits, number, discarded, cpu │ records
    record    u32 event, u64 time │ i32 pid, i32 tid, 16 bytes comm │ fields

All is little-endian and without padding between the parts.

| field | CTF |
|---|---|
| integer | integer of its size |
| float, double | floating point of its size |
| bool | u8, 0 or 1 |
| char[N] | text of N bytes |
| unsigned char[N], other struct | N bytes |
| dynamic text | string, up to its first NUL |
| other dynamic data | u16 number of bytes `__NAME_length`, and the bytes |

Names get a leading underscore, which readers remove: some are words of TSDL. Lost records are counted in
`events_discarded` of the packet with the next record, at least one if their number is unknown; a record that
is shorter than its event's fields, or that CTF cannot hold (more than 64 KiB in one field, 16 MiB in total),
counts there, too. Readers refuse times of a cpu that go back, and times from 2^63 on: such records get the
latest time before.
"""

import os
import re
import uuid
from collections.abc import Iterator
from typing import Final

from utracefs.export._ctf_packets import CtfPackets, declared_fields
from utracefs.export.common import Exported, Progress, write_parts
from utracefs.recordings._records import EventDecoder
from utracefs.recordings.partial_files import NoRoom, WholeFile, append
from utracefs.recordings.recording import Recording
from utracefs_protocol.events.declaration import NUMBER_SIZES
from utracefs_protocol.text import clean

_FAR_NS: Final = 1 << 62
"""146 years."""
_METADATA_BYTES: Final = 1 << 20
"""Space reserved for the descriptions of events."""
_METADATA: Final = """\
/* CTF 1.8 */
{integers}\
typealias integer {{ size = 8; align = 8; signed = false; byte_order = le; encoding = UTF8; }} := text;
typealias integer {{ size = 8; align = 8; signed = false; byte_order = le; base = 16; }} := byte;
typealias floating_point {{ exp_dig = 8; mant_dig = 24; align = 8; byte_order = le; }} := f32;
typealias floating_point {{ exp_dig = 11; mant_dig = 53; align = 8; byte_order = le; }} := f64;
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
	offset_s = {offset_s};
	offset = {offset};
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
_INTEGERS: Final = "".join(
    f"typealias integer {{ size = {8 * size}; align = 8; signed = {signed}; byte_order = le; }}"
    f" := {letter}{8 * size};\n"
    for letter, signed in (("u", "false"), ("s", "true"))
    for size in sorted(NUMBER_SIZES)
)


def write_ctf(
    recording: Recording, directory: str | os.PathLike[str], *, progress: Progress | None = None
) -> Exported:
    """Write all records into a new directory; of several files a trace of each, in directories with the names
    of the hosts, which readers merge.

    OSError: it exists (FileExistsError), or cannot be written. TraceError at invalid data, after all before
    it is written and the directory is complete.
    """
    os.mkdir(directory)
    if recording.is_merged:
        names = iter(_names(recording))

        def write(part: Recording, progress: Progress | None) -> Exported:
            return write_ctf(part, os.path.join(directory, next(names)), progress=progress)

        return write_parts(recording, write, progress)
    reading = recording.reading()
    trace = uuid.uuid4()
    packets = CtfPackets(reading.records, trace.bytes)
    no_room = 0
    full: OSError | None = None
    metadata = WholeFile(os.path.join(directory, "metadata"), reserve=_METADATA_BYTES)
    try:
        for cpu, packet in packets:
            try:
                # Closed again: there may be several thousand.
                append(os.path.join(directory, f"channel0_{cpu}"), packet)
            except NoRoom as error:
                full = full or error
                no_room += packets.count
            if progress is not None:
                progress(reading.done)
    except ValueError as error:
        raise reading.broken(error) from None
    finally:
        clock = re.sub(r"[^A-Za-z0-9_]", "_", recording.clock)
        unix_offset = recording.unix_offset_ns or 0
        if unix_offset < -_FAR_NS or reading.records.last_ns + unix_offset >= 2 * _FAR_NS:
            unix_offset = 0  # refused by readers
        offset_s, offset = divmod(unix_offset, 10**9)
        text = _METADATA.format(integers=_INTEGERS, uuid=trace, clock=clock, offset_s=offset_s, offset=offset)
        text += "".join(_event_metadata(*numbered) for numbered in enumerate(packets.events))
        with metadata:
            metadata.free()
            metadata.write(text.encode())
    return Exported.of(reading).without(no_room, full)


def _names(recording: Recording) -> Iterator[str]:
    """Names of the directories, all different."""
    taken = set()
    for part in recording.parts:
        host = re.sub(r"[^A-Za-z0-9_.-]", "_", part.host).lstrip(".") or "unknown"
        number, name = 1, host
        while name in taken:
            number += 1
            name = f"{host}-{number}"
        taken.add(name)
        yield name


def _event_metadata(number: int, event: EventDecoder) -> str:
    taken: set[str] = set()
    lines = []
    for name, type_, size in declared_fields(event):
        word = re.sub(r"[^A-Za-z0-9_]", "_", name)
        while word in taken or f"_{word}_length" in taken:
            word += "_"
        taken |= {word, f"_{word}_length"}
        lines.append(f"\t\t{_declared(type_, size, word)}\n")
    name = re.sub(r'([\\"])', r"\\\1", clean(f"{event.system}:{event.name}"))
    return (
        f'event {{\n\tname = "{name}";\n\tid = {number};\n\tstream_id = 0;\n'
        f"\tfields := struct {{\n{''.join(lines)}\t}};\n}};\n"
    )


def _declared(type_: str, size: int | None, word: str) -> str:
    if size is None:
        if type_ == "text":
            return f"string {{ encoding = UTF8; }} _{word};"
        return f"u16 __{word}_length; byte _{word}[__{word}_length];"
    if type_ not in ("s", "u", "f"):
        return f"{type_} _{word}[{size}];"
    return f"{type_}{8 * size} _{word};"
