"""A slow model of the text renderer, and the events and entries that its tests give to both.

The model renders one entry from the kernel's rules alone and shares nothing with the compiled renderer.
"""

import struct
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from utracefs_protocol.events.declaration import Field, FieldKind, parse
from utracefsd.consumers.ftrace.text._text import LINE_LIMIT, TextRenderer

Events = Mapping[int, tuple[bytes, Sequence[Field]]]

COMMS = {46: b"golden", 54: b"python3", 7: b"sixteen-bytes-ab"}
TGIDS = {46: 40, 54: None, 7: 0}


def text_options(
    *, context_info: bool = True, irq_info: bool = True, annotate: bool = True, **others: bool
) -> frozenset[str]:
    """Names of the options that are on; the defaults are those of a new instance."""
    on = {"context_info": context_info, "irq_info": irq_info, "annotate": annotate, **others}
    return frozenset({"trace_printk"} | {name.replace("_", "-") for name, is_on in on.items() if is_on})


def entry(event_id: int, payload: bytes, pid: int = 46, flags: int = 0, preempt_count: int = 0) -> bytes:
    return struct.pack("<HBBi", event_id, flags, preempt_count, pid) + payload


def renderer(
    events: Events, options: frozenset[str] | None = None, *, clock_is_ns: bool = False
) -> TextRenderer:
    return TextRenderer(
        events,
        lambda pid: COMMS.get(pid, b"<...>"),
        TGIDS.get,
        text_options() if options is None else options,
        clock_is_ns,
    )


def one_event(declaration: bytes, event_id: int = 1041) -> Events:
    parsed = parse(declaration)
    return {event_id: (parsed.name, parsed.fields)}


BARE = text_options(context_info=False)


# ---- the model


def model_value(field: Field, data: bytes) -> bytes:
    raw = data[field.offset : field.offset + field.size]
    if len(raw) < field.size:
        return b"<OVERFLOW>"
    if field.type.startswith((b"__data_loc ", b"__rel_loc ")):
        word = int.from_bytes(raw, "little")
        start, length = word % 65536, word // 65536
        if field.type.startswith(b"__rel_loc "):
            start += field.offset + field.size
        if start + length > len(data):
            return b"<OVERFLOW>"
        dynamic = data[start : start + length]
        return dynamic.split(b"\0")[0] if b"char" in field.type else dynamic.hex(",").encode()
    if b"[" in field.type:
        return raw.split(b"\0")[0]
    number = int.from_bytes(raw, "little")
    if field.size == 1:
        shown = b"'%b'" % raw if 32 <= number <= 126 or number >= 160 else b""
        return shown + b"(%d)" % number
    if field.size == 2:
        return b"0x%x (%d)" % (number, number)
    if field.size in (4, 8):
        return b"0x%x (%d)" % (number, int.from_bytes(raw, "little", signed=True))
    return b"<INVALID-SIZE>"


def model_line(
    events: Events, options: frozenset[str], clock_is_ns: bool, cpu: int, ts: int, data: bytes
) -> bytes:
    event_id, flags, preempt_count, pid = struct.unpack("<HBBi", data[:8].ljust(8, b"\0"))
    context = b""
    if "bin" in options:
        context, body = struct.pack("<iiQ", pid, cpu, ts), b"type: %d\n" % event_id
    elif "hex" in options:
        context, body = b"%08x %08x %016x " % (pid % 2**32, cpu, ts), b"type: %d\n\n" % event_id
    elif "raw" in options:
        context, body = b"%d %d %d " % (pid, cpu, ts), b"type: %d\n" % event_id
    else:
        comm = {0: b"<idle>"}.get(pid, COMMS.get(pid, b"<...>")[:15]) if pid >= 0 else b"<XXX>"
        context = comm.rjust(16) + b"-" + str(pid).encode().ljust(7) + b" "
        if "record-tgid" in options:
            tgid = TGIDS.get(pid) if pid > 0 else None
            context += b"(" + (str(tgid).encode().rjust(7) if tgid else b"-" * 7) + b") "
        context += b"[%03d] " % cpu
        if "irq-info" in options:
            context += model_flags(flags, preempt_count)
        if clock_is_ns:
            context += b" %5d.%06d: " % divmod(ts // 1000, 10**6)
        else:
            context += b" %12d: " % ts
        name, fields = events[event_id]
        if fields:
            body = name + b":" + b"".join(b" " + f.name + b"=" + model_value(f, data) for f in fields) + b"\n"
        else:
            body = name + b":No fields found\n"
    text = (context if "context-info" in options else b"") + body
    return text if len(text) <= LINE_LIMIT else b"[LINE TOO BIG]\n"


def model_flags(flags: int, preempt_count: int) -> bytes:
    irqs = (
        "D"
        if flags & 0x81 == 0x81
        else "d"
        if flags & 1
        else "b"
        if flags & 0x80
        else "X"
        if flags & 2
        else "."
    )
    resched = {0x24: "N", 0x04: "n", 0x20: "p", 0: "."}[flags & 0x24]
    interrupt = {0x48: "Z", 0x58: "Z", 0x40: "z", 0x50: "z", 0x18: "H", 0x08: "h", 0x10: "s", 0: "."}[
        flags & 0x58
    ]
    counts = [f"{n:x}" if n else "." for n in (preempt_count % 16, preempt_count // 16)]
    return (irqs + resched + interrupt + "".join(counts)).encode()


# ---- what hypothesis draws

TYPES = [
    b"u8 x",
    b"s8 x",
    b"char x",
    b"unsigned char x",
    b"u16 x",
    b"short x",
    b"s16 x",
    b"unsigned short x",
    b"u32 x",
    b"int x",
    b"s32 x",
    b"unsigned int x",
    b"u64 x",
    b"s64 x",
    b"char[7] x",
    b"unsigned char[3] x",
    b"struct a x 1",
    b"struct a x 2",
    b"struct a x 4",
    b"struct a x 8",
    b"struct a x 5",
    b"struct a x 4000",
    b"__data_loc char[] x",
    b"__rel_loc char[] x",
    b"__rel_loc unsigned char[] x",
    b"__data_loc u8[] x",
    b"__rel_loc u8[] x",
    b"__rel_loc u32[] x",
    b"__data_loc mychar[] x",
]
DECLARATIONS = st.lists(st.sampled_from(TYPES), max_size=8).map(lambda fields: b"; ".join(fields))


OPTIONS = st.builds(
    text_options,
    raw=st.booleans(),
    hex=st.booleans(),
    bin=st.booleans(),
    fields=st.booleans(),
    verbose=st.booleans(),
    context_info=st.booleans(),
    irq_info=st.booleans(),
    record_tgid=st.booleans(),
)


# Bytes that make loc words point near, and text that is mostly text.
BYTES = st.one_of(st.sampled_from(b"\0\0\0\1\2\3\4\10\14\20abc\n\x9f\xa0\xff"), st.integers(0, 255))


PAYLOADS = st.one_of(st.lists(BYTES, max_size=60).map(bytes), st.binary(min_size=4000, max_size=4080))


@st.composite
def entries_of(draw: st.DrawFn) -> tuple[Events, bytes]:
    """An event and an entry of it, often with loc words that point into the entry."""
    fields = draw(DECLARATIONS)
    event_id = draw(st.integers(20, 65535))
    events = one_event(b"e " + fields if fields else b"e", event_id)
    pid = draw(st.sampled_from([0, -1, -(2**31), 46, 54, 7, 99, 2**31 - 1]))
    data = bytearray(
        entry(event_id, draw(PAYLOADS), pid, draw(st.integers(0, 255)), draw(st.integers(0, 255)))
    )
    for field in events[event_id][1]:
        if (
            field.kind in (FieldKind.DATA_LOC, FieldKind.REL_LOC)
            and field.offset + 4 <= len(data)
            and draw(st.booleans())
        ):
            start = draw(st.integers(0, len(data)))
            length = draw(st.integers(0, len(data) - start + 1))
            struct.pack_into("<HH", data, field.offset, start, length)
    return events, bytes(data)
