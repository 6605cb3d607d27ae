"""Reading records of EventHeader beside records of a plain event with equal fields, in turns."""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import utracefs
from bench import report
from bench.measure import Row, in_turns, ratio_row
from utracefs.export import write_json_lines
from utracefs.recordings.recording import Recording
from utracefs.recordings.report import report_text

PLAIN = (
    b"request u16 status; u32 usec; __rel_loc char[] path; u8 level; u64 keyword",
    (200, 1834, "/api/v1/orders/17", 4, 1),
)
FIELDS = b"u8 eventheader_flags; u8 version; u16 id; u16 tag; u8 opcode; u8 level; unsigned char[%d] behind"
METADATA = b"request\0status\0\3usec\0\4path\0\x0a"
AT_MOST = 3
REPEATS = 5


def _make(path: Path) -> None:
    """The records of PLAIN as those of EventHeader. `behind` is cut from the format: the kernel does not know
    it."""
    status, usec, text, level, _ = PLAIN[1]
    values = struct.pack("<HIH", status, usec, len(str(text))) + str(text).encode()
    behind = struct.pack("<HH", len(METADATA), 1) + METADATA + values
    report.make(path, b"shop_L4K1 " + FIELDS % len(behind), (7, 0, 0, 0, 0, level, behind))
    with open(path, "r+b") as file:
        head = file.read(1 << 16)
        line = head.index(b"\tfield:unsigned char behind")
        end = head.index(b"\n", line)
        file.seek(line)
        file.write(b" " * (end - line))


def _records(recording: Recording) -> None:
    for _ in recording:
        pass


def _columns(recording: Recording) -> None:
    for _ in recording.batches():
        pass


def _json(recording: Recording) -> None:
    with open("/dev/null", "wb") as out:
        write_json_lines(recording, out)


def _report(recording: Recording) -> None:
    for _ in report_text(recording):
        pass


READERS: dict[str, Callable[[Recording], None]] = {
    "as Record objects": _records,
    "as columns": _columns,
    "as JSON lines": _json,
    "as a report": _report,
}


def _ns(path: Path, read: Callable[[Recording], None]) -> float:
    """Nanoseconds for each record."""
    with utracefs.open(path) as recording:
        begin = time.perf_counter()
        read(recording)
        return (time.perf_counter() - begin) / report.RECORDS * 1e9


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder:
        paths = {name: Path(folder, name) for name in ("plain", "EventHeader")}
        report.make(paths["plain"], *PLAIN)
        _make(paths["EventHeader"])
        for name, read in READERS.items():
            best = in_turns({kind: partial(_ns, path, read) for kind, path in paths.items()}, REPEATS)
            yield ratio_row(
                f"a record of EventHeader {name}", best["EventHeader"], best["plain"], "plain", AT_MOST
            )
