"""Counting: against a plain Counter, with hostile payloads, and with a kill between any two instructions.

The last one runs in a child, one machine instruction at a time (ptrace). After each, its file has the
contents that a SIGKILL would leave; each different state is adopted and compared with the expected counts.
"""

from __future__ import annotations

import errno
import mmap
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.histograms import defined, hist_of
from tests.daemon.stepping import stepping
from tests.protocol.events.plain_layout import Layout
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.hist._hist import Entries, Hist, HistTable
from utracefsd.consumers.ftrace.hist.program import compile_definition

EVENT = parse(b"h u32 id; s16 sv; char[8] name; __rel_loc char[] msg; __data_loc char[] dl; u64 big")
PACK = Layout(EVENT.fields).pack
MASK = (1 << 64) - 1


def make(text: bytes) -> Hist:
    return hist_of(defined(text, EVENT))


def contents(table: HistTable) -> dict[bytes, tuple[int, ...]]:
    return dict(Entries(table).piece())


def number(value: int) -> bytes:
    return struct.pack("<Q", value & MASK)


def text(value: bytes, size: int) -> bytes:
    return value.partition(b"\0")[0][: size - 1].ljust(size, b"\0")


# The model: the value of each key and value, in Python.

RECORDS = st.tuples(
    st.integers(0, (1 << 32) - 1),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.binary(max_size=8),
    st.one_of(st.binary(max_size=20), st.just(b"x" * 300)),
    st.sampled_from([b"", b"abc", b"a\0b"]),
    st.one_of(st.integers(0, 40), st.integers(0, MASK)),
)
KEYS: dict[bytes, Callable[[Any], bytes]] = {
    b"id": lambda r: number(r[0]),
    b"sv": lambda r: number(r[1]),
    b"name": lambda r: text(r[2], 8),
    b"msg": lambda r: text(r[3], 256),
    b"big.log2": lambda r: number(0 if r[5] < 2 else (r[5] - 1).bit_length()),
    b"big.buckets=7": lambda r: number(r[5] - r[5] % 7),
    b"sv+big": lambda r: number(r[1] + r[5]),
    b"common_pid": lambda r: number(-9),
    b"common_cpu": lambda r: number(3),
    b"common_type": lambda r: number(77),
    b"common_timestamp.usecs": lambda r: number(2),
}
VALUES: dict[bytes, Callable[[Any], int]] = {
    b"sv": lambda r: r[1],
    b"big": lambda r: r[5],
    b"big-sv*id": lambda r: r[5] - r[1] * r[0],
    b"big/sv": lambda r: MASK if not r[1] else r[5] // (r[1] & MASK),
    b"-(sv)": lambda r: -r[1],
    b"hitcount.percent": lambda r: 1,
    b"5": lambda r: 5,
}


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(sorted(VALUES)), max_size=2),
    st.lists(RECORDS, max_size=30),
)
def test_like_a_counter(
    keys: list[bytes], values: list[bytes], records: list[tuple[int, int, bytes, bytes, bytes, int]]
) -> None:
    definition = b"keys=" + b",".join(keys) + (b":vals=" + b",".join(values) if values else b"")
    hist = make(definition)
    hits: Counter[bytes] = Counter()
    sums: Counter[tuple[bytes, int]] = Counter()
    for record in records:
        assert hist.count(PACK(*record), pid=-9, cpu=3, id=77, ts_ns=1600)
        key = b"".join(KEYS[name](record) for name in keys)
        hits[key] += 1
        for n, value in enumerate(values):
            sums[key, n] += VALUES[value](record)
    assert contents(hist.table) == {
        key: (count, *(sums[key, n] & MASK for n in range(len(values)))) for key, count in hits.items()
    }
    assert (hist.table.hits, hist.table.drops, len(hist.table)) == (len(records), 0, len(hits))


def test_dynamic_strings_over_the_common_fields() -> None:
    """__data_loc counts from the beginning of the entry: its first 8 bytes are not in the payload."""
    hist = hist_of(defined(b"keys=d", parse(b"k __data_loc char[] d")))
    hist.count(struct.pack("<HH", 4, 8) + b"yz\0", pid=0x44434241)
    assert list(contents(hist.table)) == [b"ABCD\x04".ljust(256, b"\0")]
    hist.count(struct.pack("<HH", 12, 3) + b"yz\0")
    assert text(b"yz", 256) in contents(hist.table)


@pytest.mark.parametrize("event", [b"k __data_loc char[] d", b"k __rel_loc char[] d"])
@pytest.mark.parametrize("word", [(0xFFFF, 0), (0, 0xFFFF), (0xFFFF, 0xFFFF), (13, 1), (12, 2)])
def test_strings_outside_the_record_are_empty(event: bytes, word: tuple[int, int]) -> None:
    hist = hist_of(defined(b"keys=d", parse(event)))
    hist.count(struct.pack("<HH", *word)[:4])
    assert list(contents(hist.table)) == [bytes(256)]


@pytest.mark.parametrize("size", range(0, 40, 3))
def test_short_payloads(size: int) -> None:
    """The tracepoint refuses them; still nothing behind their end is read."""
    hist = make(b"keys=name,msg:vals=big,sv")
    hist.count(PACK(1, 2, b"name", b"msg", b"dl", 3)[:size])
    assert hist.table.hits == 1


def test_nanoseconds_only_where_the_clock_has_them() -> None:
    hist = make(b"keys=common_timestamp.usecs")
    hist.clock_is_ns = False
    hist.count(PACK(1, 2, b"", b"", b"", 3), ts_ns=1600)
    assert list(contents(hist.table)) == [number(1600)]


def test_full() -> None:
    hist = make(b"keys=id:size=128")
    records = [PACK(n, 0, b"", b"", b"", 0) for n in range(200)]
    assert [hist.count(record) for record in records] == [True] * 128 + [False] * 72
    assert [hist.count(record) for record in records] == [True] * 128 + [False] * 72
    table = hist.table
    assert (table.hits, table.drops, len(table)) == (256, 144, 128)
    assert set(Entries(table).piece()) == {(number(n), (2,)) for n in range(128)}


def test_clear() -> None:
    hist = make(b"keys=id:vals=big:size=128")
    for n in range(200):
        hist.count(PACK(n, 0, b"", b"", b"", 1))
    hist.table.clear()
    assert (hist.table.hits, hist.table.drops, Entries(hist.table).piece()) == (0, 0, [])
    hist.count(PACK(5, 0, b"", b"", b"", 7))
    assert Entries(hist.table).piece() == [(number(5), (1, 7))]


def test_tables_of_no_possible_shape() -> None:
    for bits, key_size, words in [
        (6, 8, 1),
        (18, 8, 1),
        (7, 0, 1),
        (7, 12, 1),
        (7, 512, 1),
        (7, 8, 0),
        (7, 8, 2049),
    ]:
        with pytest.raises(ValueError):
            HistTable.create(bits, key_size, words)


# A successor


def shape_of(hist: Hist) -> tuple[int, int, int]:
    definition = struct.unpack_from("<II", Path(str(hist.table.path)).read_bytes(), 16)
    (bits,) = struct.unpack_from("<I", Path(str(hist.table.path)).read_bytes(), 12)
    return bits, *definition


def test_adopted(folder: Path) -> None:
    path = str(folder / "hist")
    hist = hist_of(defined(b"keys=id,name:vals=big", EVENT), path)
    for n in range(50):
        hist.count(PACK(n % 7, 0, b"n%d" % (n % 3), b"", b"", n), who=4, serial=n)
    before = contents(hist.table)
    shape = shape_of(hist)
    del hist
    table = HistTable.adopt(*shape, path)
    assert contents(table) == before
    assert (table.hits, table.drops, len(table)) == (50, 0, 21)
    assert table.has_taken(4, 49)
    assert not table.has_taken(4, 48)
    assert not table.has_taken(5, 49)
    hist = Hist(compile_definition(defined(b"keys=id,name:vals=big", EVENT)), table)
    hist.count(PACK(0, 0, b"n0", b"", b"", 1))
    assert table.hits == 51
    assert len(table) == 21


def test_not_adopted(folder: Path) -> None:
    path = folder / "hist"
    hist = hist_of(defined(b"keys=id", EVENT), str(path))
    hist.count(PACK(0, 0, b"", b"", b"", 1))
    shape = shape_of(hist)
    good = path.read_bytes()
    for other in [(shape[0] + 1, *shape[1:]), (shape[0], 16, shape[2]), (*shape[:2], 2)]:
        with pytest.raises(ValueError):
            HistTable.adopt(*other, str(path))
    for at, value in [(0, 1), (8, 9), (12, 9), (104, 5), (104, 1 << 20), (112, 1 << 30), (120, 1 << 30)]:
        path.write_bytes(good[:at] + struct.pack("<Q", value) + good[at + 8 :])
        with pytest.raises(ValueError):
            HistTable.adopt(*shape, str(path))
    path.write_bytes(b"")
    with pytest.raises(ValueError):
        HistTable.adopt(*shape, str(path))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        HistTable.adopt(*shape, str(path))


def test_files(folder: Path) -> None:
    path = folder / "hist"
    table = HistTable.create(7, 8, 1, str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == table.full_bytes == HistTable.bytes_of(7, 8, 1)
    assert path.stat().st_blocks * 512 == 4096
    with pytest.raises(FileExistsError):
        HistTable.create(7, 8, 1, str(path))
    table.remove()
    table.remove()
    assert not path.exists()
    assert table.path is None
    assert HistTable.create(7, 8, 1).path is None


def test_memory_comes_with_the_first_record(folder: Path) -> None:
    path = folder / "hist"
    hist = hist_of(defined(b"keys=id:size=2048", EVENT), str(path))
    assert path.stat().st_blocks * 512 <= 8192 < hist.table.nr_bytes + hist.table.full_bytes
    hist.table.clear()
    _ = list(Entries(hist.table).piece())
    assert (hist.table.has_memory, path.stat().st_blocks * 512 <= 8192) == (False, True)
    hist.count(PACK(7, 0, b"", b"", b"", 1))
    assert hist.table.has_memory
    assert path.stat().st_blocks * 512 >= hist.table.full_bytes == hist.table.nr_bytes
    shape = shape_of(hist)
    hist.table.clear()
    adopted = HistTable.adopt(*shape, str(path))
    assert not adopted.has_memory, "an empty one gives it back"
    assert path.stat().st_blocks * 512 <= 8192


def test_a_record_without_memory_is_dropped(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again now and then; the next daemon has the number of dropped ones."""
    path = folder / "hist"
    hist = hist_of(defined(b"keys=id:size=128", EVENT), str(path))
    asked = []

    def refuse(table: HistTable) -> None:
        asked.append(table)
        raise TraceError(errno.ENOMEM, "all is taken")

    hist.table.check_room = refuse
    for _ in range(1001):
        assert not hist.count(PACK(7, 0, b"", b"", b"", 1))
    assert len(asked) == 2
    assert "all is taken" in caplog.text
    caplog.clear()
    adopted = HistTable.adopt(*shape_of(hist), str(path))
    assert (adopted.hits, adopted.drops, len(adopted)) == (0, 1001, 0)
    hist.table.check_room = None


def test_killed_at_any_instruction(folder: Path) -> None:
    """Old keys, new keys, dropped ones, and a clear: the next daemon finds one of the states between records,
    and `has_taken` says which."""
    path = folder / "hist"
    hist = hist_of(defined(b"keys=id:vals=big:size=128", EVENT), str(path))
    for n in range(127):
        hist.count(PACK(n, 0, b"", b"", b"", n))
    shape = shape_of(hist)
    records = [PACK(n, 0, b"", b"", b"", 1000 + n) for n in (5, 999, 5, 1000, 999)]
    wanted: list[dict[bytes, tuple[int, ...]]] = [contents(hist.table)]
    totals = [(hist.table.hits, hist.table.drops)]
    for n, dropped in [(5, 0), (999, 0), (5, 0), (1000, 1), (999, 0)]:
        state = dict(wanted[-1])
        if not dropped:
            count, total = state.get(number(n), (0, 0))
            state[number(n)] = (count + 1, total + 1000 + n)
        wanted.append(state)
        totals.append((totals[-1][0] + 1 - dropped, totals[-1][1] + dropped))
    wanted.append({})
    totals.append((0, 0))
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def work() -> None:
        for serial, record in enumerate(records, 1):
            hist.count(record, who=1, serial=serial)
        hist.table.clear()

    judged, reached = 0, 0
    with stepping(work, lambda: memory[:]) as states:
        for now in states:
            if now is None:
                continue
            judged += 1
            copy = folder / "copy"
            copy.write_bytes(now)
            table = HistTable.adopt(*shape, str(copy))
            found = contents(table), (table.hits, table.drops)
            taken = [serial for serial in range(1, 6) if table.has_taken(1, serial)]
            possible = [
                n for n in (reached, reached + 1) if n < len(wanted) and found == (wanted[n], totals[n])
            ]
            assert possible, f"after {judged} states, {reached} records"
            reached = possible[0]
            assert len(taken) <= 1
            if taken:
                assert taken == [reached]
            # The daemon after it does the same, and nothing is lost that this one had begun to repair.
            again = HistTable.adopt(*shape, str(copy))
            assert (contents(again), (again.hits, again.drops)) == found
            copy.unlink()
        memory.close()
    assert reached == len(wanted) - 1
    assert judged > 60
