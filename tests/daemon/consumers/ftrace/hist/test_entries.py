"""A copy of a table, sorted as by Python."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.histograms import defined
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.hist._hist import Entries, Hist, HistTable
from utracefsd.consumers.ftrace.hist.program import compile_definition

EVENT = parse(b"e s64 n; char[4] s; s64 v")
HITS, VALUE = 0, 8
NUMBER, STRING = 0, 8


def table_of(records: list[tuple[int, bytes, int]]) -> HistTable:
    """With the keys n, s and the value v."""
    program = compile_definition(defined(b"keys=n,s:vals=v:size=128", EVENT))
    hist = Hist(program, HistTable.create(7, program.key_size, program.nr_words))
    for n, s, v in records:
        hist.count(struct.pack("<q4sq", n, s, v))
    return hist.table


def value_of(entry: tuple[bytes, tuple[int, ...]], by: tuple[bool, bool, int, int, bool, bool]) -> Any:
    is_string, in_key, offset, size, signed, _ = by
    data = entry[0] if in_key else b"".join(word.to_bytes(8, "little") for word in entry[1])
    data = data[offset : offset + size]
    return data.partition(b"\0")[0] if is_string else int.from_bytes(data, "little", signed=signed)


numbers = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
records = st.lists(
    st.tuples(numbers, st.sampled_from([b"", b"a", b"ab", b"b", b"\xff"]), numbers), max_size=60
)
ways = st.one_of(
    st.tuples(
        st.just(False),
        st.just(False),
        st.sampled_from([HITS, VALUE]),
        st.just(8),
        st.booleans(),
        st.booleans(),
    ),
    st.tuples(
        st.just(False),
        st.just(True),
        st.just(NUMBER),
        st.sampled_from([1, 2, 4, 8]),
        st.booleans(),
        st.booleans(),
    ),
    st.tuples(st.just(True), st.just(True), st.just(STRING), st.just(8), st.just(False), st.booleans()),
)


@given(records=records, by=st.lists(ways, max_size=2), cut=st.integers(0, 70))
def test_as_python_sorts(
    records: list[tuple[int, bytes, int]], by: list[tuple[bool, bool, int, int, bool, bool]], cut: int
) -> None:
    entries = Entries(table_of(records))
    want = entries.piece()
    assert len(entries) == len(want) == len({(n, s) for n, s, _ in records})
    entries.sort(by)
    for one in reversed(by):
        want.sort(key=lambda entry, one=one: value_of(entry, one), reverse=one[5])  # type: ignore[misc]
    assert entries.piece(0, cut) + entries.piece(cut) == want
    columns = list(zip(*(words for _, words in want), strict=True))
    assert entries.stats() == [(max(column), sum(column) % (1 << 64)) for column in columns]


def test_it_is_a_copy() -> None:
    table = table_of([(1, b"a", 7)])
    entries = Entries(table)
    table.clear()
    assert entries.piece() == [(struct.pack("<q8s", 1, b"a"), (1, 7))]
    assert not Entries(table).piece() and not Entries(table).stats()
    del table
    assert len(entries.piece()) == 1


def test_a_piece_from_nowhere() -> None:
    entries = Entries(table_of([(1, b"a", 7)]))
    assert entries.piece(5, 9) == []
