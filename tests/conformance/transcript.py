"""Reads two transcripts of one script, the kernel's and the daemon's, and finds differences.

tests/integration/abi/test_abi_conformance.py plays the scripts.

A transcript is a list of operations (`> line`, the script), each with its output lines. The kernel's files
also have the quiet operations, which players do not echo (`> q write ...`), and name lines that occur many
times: `@NAME TEXT` is the lines from `@define NAME` to `@end`, with TEXT for `$text` and its length with a
newline for `$size`. Both are normalised first: values that may differ (ids, pids, command names unknown to
the kernel, time stamps, cpu numbers, sums of bytes that depend on those, the order of user_events_status)
are replaced or sorted; the rest must be equal, line by line.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

RECORDED = Path(__file__).parent / "6.12.117"
SCRIPTS = sorted(path.stem for path in RECORDED.glob("*.txt"))


@attrs.frozen
class Operation:
    number: int
    """Position in the script, from 0; quiet writes belong to the operation before them."""
    line: str
    """The script line, without `> `."""
    answers: tuple[str, ...]
    """Normalised output lines."""


@attrs.frozen
class Difference:
    number: int
    line: str
    kernel: tuple[str, ...]
    ours: tuple[str, ...]

    def __str__(self) -> str:
        rows = [f"#{self.number} > {self.line}"]
        for i in range(max(len(self.kernel), len(self.ours))):
            a = self.kernel[i] if i < len(self.kernel) else "(nothing)"
            b = self.ours[i] if i < len(self.ours) else "(nothing)"
            if a != b:
                rows += [f"   kernel {a[:200]}", f"   ours   {b[:200]}"]
        return "\n".join(rows[:16])


def first_id(text: str) -> int:
    found = re.findall(r"(?:^\| ID: |Unknown type |type: )(\d+)", text, re.MULTILINE)
    found += re.findall(r"^> cat \S*/id\n\| (\d+)$", text, re.MULTILINE)
    return min((int(n) for n in found), default=0)


TRACE_LINE = re.compile(
    r"^\| ( *)(.{1,16})-(\d+) +(\(.{7}\) )?\[\d{3}\]( [.a-zA-Z0-9]{5})? +(\d+(?:\.\d{6})?): (.*)$"
)
LATENCY_LINE = re.compile(r"^\| +(.{1,8})-(\d+) +\d+([.a-zA-Z0-9]{5}) +-?\d+(us.)?: (.*)$")


def normalise(line: str, base_id: int) -> str:
    line = re.sub(r"^= eof \d+ bytes", "= eof", line)
    line = re.sub(r"after \d+ bytes$", "after", line)
    line = re.sub(r"#P:\d+", "#P:N", line)
    line = re.sub(r"(CPU#)\d+( \| \(M:)\w+", r"\g<1>C\g<2>MODEL", line)
    line = re.sub(r"latency trace v1.1.5 on .*$", "latency trace v1.1.5 on RELEASE", line)
    line = re.sub(r"^(\| (?:oldest event|now) ts: ).*", r"\1T", line)
    line = re.sub(r"^\| \[ *\d+\.\d{6}\] (.*: error: )", r"| [T] \1", line)  # error_log
    line = re.sub(
        r"((?<![A-Za-z_])(?:ID: |Unknown type |type: ))(\d+)", lambda m: f"{m[1]}{int(m[2]) - base_id}", line
    )
    # The kernel prints an array length that it never filled in (`a[]`); the daemon prints it.
    line = re.sub(r"^(\| \tfield:(?:(?!__data_loc).)*)\[\d*\];", r"\1[];", line)
    if match := TRACE_LINE.match(line):
        tgid = "(TGID) " if match[4] else ""
        return f"| COMM-PID {tgid}[CPU]{match[5] or ''} T: {match[7]}"
    if match := LATENCY_LINE.match(line):
        return f"| COMM-PID CPU{match[3]} T: {match[5]}"
    line = re.sub(r"^\| \d+ \d+ \d+ (type: )", r"| PID CPU T \1", line)  # option raw
    return re.sub(r"^\| [0-9a-f]{8} [0-9a-f]{8} [0-9a-f]{16} (type: )", r"| PID CPU T \1", line)  # option hex


def operations(text: str) -> Iterator[Operation]:
    base = first_id(text)
    line, number = "", -1
    answers: list[str] = []
    for row in [*text.split("\n"), "> "]:
        if row.startswith("> q "):
            continue
        if row.startswith("> "):
            if number >= 0:
                yield Operation(number, line, finish(line, answers, base))
            line, answers, number = row[2:], [], number + 1
        elif row and not row.startswith("#"):
            answers.append(row)


def finish(line: str, answers: list[str], base: int) -> tuple[str, ...]:
    if re.fullmatch(r"cat \S*/id", line):
        return tuple(
            re.sub(r"^\| (\d+)$", lambda m: f"| ID {int(m[1]) - base}", normalise(a, base)) for a in answers
        )
    rows = [normalise(a, base) for a in answers]
    if line == "cat user_events_status":
        names = [
            r for r in rows if r.startswith("| ") and r != "| " and not re.match(r"\| (Active|Busy):", r)
        ]
        rows = sorted(names) + [r for r in rows if r not in names]
    if re.fullmatch(r"cat \S*/hist", line):
        rows = without_order(rows)
    if "trace_options bin" in line or any("\\x00type: " in r for r in rows):
        # binary context: pids and clock values, which may even hold a newline
        rows = [m for r in rows for m in re.findall(r"type: -?\d+", r)]
    return tuple(rows)


def without_order(rows: list[str]) -> list[str]:
    """Entries of a histogram with equal hits: the kernel has them in the order of a hash."""
    found: list[str] = []
    hits = re.compile(r"^\| \{.*\} hitcount: +(\d+)")
    for _, entries in itertools.groupby(rows, hits.findall):
        found += sorted(
            re.sub(r"common_(timestamp|pid|type): .*\}", r"common_\1: N }", row) for row in entries
        )
    return found


def compare(kernel: str, ours: str) -> list[Difference]:
    found = []
    theirs, mine = list(operations(kernel)), list(operations(ours))
    for i, a in enumerate(theirs):
        b = mine[i] if i < len(mine) else Operation(i, a.line, ("= the player stopped before",))
        if b.line != a.line:
            found.append(Difference(i, a.line, (a.line,), (b.line,)))
            break
        if a.answers != b.answers:
            found.append(Difference(i, a.line, a.answers, b.answers))
    return found


def recorded(script: str) -> str:
    """The kernel's transcript of `script`."""
    text = (RECORDED / f"{script}.txt").read_text(encoding="utf-8", errors="surrogateescape")
    for name, block in re.findall(r"^@define (\w+)\n(.*?)^@end\n", text, re.MULTILINE | re.DOTALL):
        text = text.replace(f"@define {name}\n{block}@end\n", "")
        text = re.sub(rf"^@{name}(?: (.*))?\n", functools.partial(_filled, block), text, flags=re.MULTILINE)
    return text


def _filled(block: str, use: re.Match[str]) -> str:
    text = use[1] or ""
    return block.replace("$text", text).replace("$size", str(len(text) + 1))


def write_script(script: str, folder: Path) -> Path:
    """`script` as a file for a player."""
    lines = [line[2:] for line in recorded(script).split("\n") if line.startswith("> ")]
    path = folder / f"{script}.txt"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8", errors="surrogateescape")
    return path


def decode(text: str) -> bytes:
    """Escapes of script arguments: \\n \\t \\r \\0 \\\\ \\xHH."""
    out = bytearray()
    raw = text.encode("utf-8", "surrogateescape")
    i = 0
    while i < len(raw):
        if raw[i] != 0x5C:
            out.append(raw[i])
            i += 1
            continue
        i += 1
        escape = raw[i : i + 1]
        if escape in (b"n", b"t", b"r", b"0"):
            out += {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}[escape]
            i += 1
        elif escape == b"x":
            out.append(int(raw[i + 1 : i + 3], 16))
            i += 3
        elif not escape:
            out += b"\\"
        else:
            out += escape
            i += 1
    return bytes(out)


def payload(text: str) -> bytes:
    """Fields of a record: u32:1 s16:-2 x:0102 s:text z:8 r:10:0x61 loc:OFFSET,SIZE."""
    out = bytearray()
    for token in text.split(" "):
        if not token:
            continue
        kind, _, value = token.partition(":")
        if re.fullmatch(r"[us]\d+", kind):
            size = int(kind[1:]) // 8
            out += (int(value, 0) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        elif kind == "x":
            out += bytes.fromhex(value[: len(value) // 2 * 2])
        elif kind == "s":
            out += decode(value)
        elif kind == "z":
            out += bytes(int(value))
        elif kind == "r":
            count, _, byte = value.partition(":")
            out += bytes([int(byte, 0)]) * int(count, 0)
        elif kind == "loc":
            offset, _, size_text = value.partition(",")
            out += ((int(size_text) << 16 | int(offset)) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out)
