"""What the tests of trace.dat and of reports share: events to write files from, the real reader."""

import shutil
import struct
import subprocess
from typing import Any

import pytest

from utracefs_protocol.declaration import Declaration, parse
from utracefs_protocol.event_format import format_text
from utracefs_protocol.layout import Layout
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


needs_trace_cmd = pytest.mark.skipif(
    shutil.which("trace-cmd") is None, reason="the Debian package trace-cmd is the judge"
)


def trace_cmd(*words: str) -> str:
    """stdout of the real reader; its stderr must be empty."""
    done = subprocess.run(["trace-cmd", *words], capture_output=True, timeout=60, check=True)
    assert done.stderr == b"", done.stderr
    return text_of(done.stdout)
