"""Counts by event and process: any order of records, a table that grows, is full, forgets and sweeps."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.record_path import numbers, tracepoint, write
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.counts._count import CountProbe, CountTable
from utracefsd.events._tracepoint import Tracepoint


def counting(table: CountTable, id: int) -> tuple[Tracepoint, CountProbe]:
    declaration = parse(b"ev u32 n")
    event = Tracepoint(id, declaration.name, declaration.fields)
    probe = CountProbe("counts:1", table, id)
    event.attach(probe)
    return event, probe


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 300), st.integers(4, 40)), max_size=400),
    st.sampled_from([1, 5, 100, 1 << 16]),
)
def test_any_records(records: list[tuple[int, int, int]], max_rows: int) -> None:
    table = CountTable(max_rows)
    events = {id: counting(table, id) for id in (1, 2, 3)}
    counts: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    rest: Counter[int] = Counter()
    for id, pid, size in records:
        key = (id, pid)
        if key in counts or len(counts) < max_rows:
            counts[key] += 1
            sizes[key] += size
        else:
            rest[id] += 1
        assert write(events[id][0], bytes(size), ts_ns=1, cpu=0, pid=9, tgid=pid) == 0
    assert sorted(table.read()) == sorted((*key, counts[key], sizes[key], 0) for key in counts)
    assert table.used == len(counts) <= max_rows
    for id, (_, probe) in events.items():
        assert probe.read_others()[0] == rest[id]
        assert numbers(probe) == (sum(n for (i, _), n in counts.items() if i == id) + rest[id], 0, 0)


def test_one_event_is_forgotten() -> None:
    table = CountTable()
    one, two = counting(table, 1)[0], counting(table, 2)[0]
    for pid in range(1, 200):
        for event in (one, two):
            write(event, bytes(4), ts_ns=1, cpu=0, pid=pid, tgid=pid)
    table.forget(1)
    assert sorted(table.read()) == [(2, pid, 1, 4, 0) for pid in range(1, 200)]
    write(one, bytes(8), ts_ns=1, cpu=0, pid=7, tgid=7)
    write(two, bytes(8), ts_ns=1, cpu=0, pid=199, tgid=199)
    assert (1, 7, 1, 8, 0) in table.read() and (2, 199, 2, 12, 0) in table.read()


def test_a_sweep_takes_ended_processes_that_did_nothing_since_the_one_before() -> None:
    table = CountTable()
    event, probe = counting(table, 1)
    for pid in (10, 11, 12):
        write(event, bytes(4), ts_ns=1, cpu=0, pid=pid, tgid=pid)
    table.sweep({1: probe}, lambda pid: pid == 10)
    assert len(table.read()) == 3
    write(event, bytes(4), ts_ns=1, cpu=0, pid=11, tgid=11)
    table.sweep({1: probe}, lambda pid: pid == 10)
    assert sorted(table.read()) == [(1, 10, 1, 4, 0), (1, 11, 2, 8, 0)]
    assert probe.read_others() == (1, 4, 0)


def test_a_sweep_is_bounded_and_continues_the_next_time() -> None:
    table = CountTable()
    event, probe = counting(table, 1)
    for pid in range(1, 31):
        write(event, bytes(4), ts_ns=1, cpu=0, pid=pid, tgid=pid)
    asked: list[int] = []

    def lives(pid: int) -> bool:
        asked.append(pid)
        return True

    table.sweep({1: probe}, lives)
    for _ in range(3):
        table.sweep({1: probe}, lives, at_most=10)
    assert len(asked) == 30 and len(set(asked)) >= 28


def test_an_invalid_record_counts_where_it_is_emitted() -> None:
    table = CountTable()
    event = tracepoint(b"ev __rel_loc char[] text")
    probe = CountProbe("counts:1", table, event.id)
    event.attach(probe)
    assert write(event, b"\xff\xff\xff\xff") == 0
    assert numbers(probe) == (1, 0, 0)
    assert [row[2:] for row in table.read()] == [(1, 4, 0)]
