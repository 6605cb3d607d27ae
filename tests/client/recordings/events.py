"""Shared parts of the tests of trace.dat and of reports: events to write files from, the real reader."""

import struct
from typing import Any

from tests.judges import run_judge
from tests.protocol.events.plain_layout import Layout
from utracefs_protocol.events.declaration import Declaration, parse
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.text import text_of


class Events:
    """Declarations by event id, and entries of them."""

    def __init__(self, first_id: int, *declarations: bytes) -> None:
        self.declared: dict[int, Declaration] = {
            first_id + n: parse(text) for n, text in enumerate(declarations)
        }

    def formats(self) -> list[bytes]:
        return [format_text(d.name, number, d.fields) for number, d in self.declared.items()]

    def entry(self, number: int, pid: int, *values: Any) -> bytes:
        payload = Layout(self.declared[number].fields).pack(*values)
        return struct.pack("<HBBi", number, 0, 0, pid) + payload


def trace_cmd(*words: str) -> str:
    """stdout of the real reader; its stderr must be empty."""
    return text_of(run_judge("trace-cmd", *words))
