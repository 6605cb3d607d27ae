"""The texts that describe a recording: formats of events, names of threads and symbols. They are in
trace.dat, and in perf.data's TRACING_DATA.
"""

import contextlib
import mmap
import re
import struct

import utracefs.recordings.trace_dat.format as layout
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import FieldKind
from utracefs_protocol.events.event_format import EventFormat, format_text, parse_format
from utracefs_protocol.text import text_of


class Cursor:
    """Reads consecutive parts of a file; struct.error where it ends too early."""

    def __init__(self, data: bytes | mmap.mmap, at: int = 0) -> None:
        self._data = data
        self.at = at

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise struct.error("ends too early")
        data = self._data[self.at : self.at + size]
        self.at += size
        return data

    def string(self) -> bytes:
        """Read up to a NUL, which is skipped."""
        end = self._data.find(b"\0", self.at)
        if end < 0:
            raise struct.error("no NUL")
        data = self._data[self.at : end]
        self.at = end + 1
        return data

    def u32(self) -> int:
        value: int = layout.U32.unpack(self.take(layout.U32.size))[0]
        return value

    def u64(self) -> int:
        value: int = layout.U64.unpack(self.take(layout.U64.size))[0]
        return value

    def lstr(self) -> bytes:
        return self.take(self.u64())


class TraceTexts:
    """The parsed texts. struct.error and ValueError: they are truncated or invalid."""

    def __init__(self) -> None:
        self.header_page = b""
        self.formats: dict[int, EventFormat] = {}
        """Event id to format, including ftrace's own."""
        self.systems: dict[int, str] = {}
        """Event id to system."""
        self.cmdlines: dict[int, str] = {}
        """Thread id to comm."""
        self.kallsyms: dict[int, str] = {}
        """Address to name."""

    def read_headers(self, file: Cursor) -> None:
        if file.string() != b"header_page":
            raise ValueError("header_page")
        self.header_page = file.lstr()
        if file.string() != b"header_event":
            raise ValueError("header_event")
        file.lstr()

    def read_ftrace_formats(self, file: Cursor) -> None:
        for _ in range(file.u32()):
            self._add_format("ftrace", file.lstr())

    def read_event_formats(self, file: Cursor) -> None:
        for _ in range(file.u32()):
            system = text_of(file.string())
            for _ in range(file.u32()):
                self._add_format(system, file.lstr())

    def _add_format(self, system: str, text: bytes) -> None:
        # An unreadable format makes its own records unreadable, not the file.
        with contextlib.suppress(TraceError):
            event = parse_format(text).for_readers()
            self.formats[event.id] = event
            self.systems[event.id] = system

    def read_kallsyms(self, file: Cursor) -> None:
        for line in file.take(file.u32()).splitlines():
            words = line.split(None, 2)
            if len(words) == 3:
                with contextlib.suppress(ValueError):
                    self.kallsyms[int(words[0], 16)] = text_of(words[2].split(b"\t")[0])

    def read_cmdlines(self, file: Cursor) -> None:
        for line in file.lstr().split(b"\n"):
            tid, _, comm = line.partition(b" ")
            if tid.lstrip(b"-").isdigit():
                self.cmdlines[int(tid)] = text_of(comm)


def with_small_signs(text: bytes) -> bytes:
    """A format for other tools: each field has a name of its own (`distinct_fields`), and the print fmt
    prints negative numbers of 8 and 16 bits correctly.

    libtraceevent reads every number as unsigned and passes 32 bits to printf: trace-cmd and KernelShark print
    -8 in 8 bits as 248. Its casts do not help (eval_type() masks again), nor do all of its operators; this is
    correct whether or not a field is sign-extended.
    """
    try:
        declared = parse_format(text)
    except TraceError:
        return text
    format_ = declared.for_readers()
    if format_ is not declared:
        text = format_text(format_.name, format_.id, format_.fields, format_.print_fmt)
    small = {
        field.name: 1 << 8 * field.size - 1
        for field in format_.fields
        if field.kind is FieldKind.INTEGER and field.signed and field.size <= 2
    }

    def signed(found: re.Match[bytes]) -> bytes:
        value, sign = found[0], small.get(found[1])
        if sign is None:
            return value
        return b"((%s & %d) - ((%s & %d) * 2))" % (value, 2 * sign - 1, value, sign)

    head, mark, print_fmt = text.partition(b"\nprint fmt:")
    if b") - ((REC->" in print_fmt:
        return text  # already correct
    return head + mark + re.sub(rb"REC->([^\s,()]+)(?=,|\s|\Z)", signed, print_fmt)
