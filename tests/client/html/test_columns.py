"""Columns against the Record objects of the same file."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import utracefs
from tests.client.export.example import write
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data import example as perf
from tests.client.recordings.trace_dat.example import pages
from tests.client.recordings.trace_dat.example import write as write_pages
from utracefs.html._columns import Columns, Counts, EventColumns, Integers, Texts
from utracefs.recordings.recording import Record, Recording

EVENTS = Events(100, b"ints u8 a; s64 b; u64 c", b"text __rel_loc char[] d")


def values(column: Integers | Texts) -> list[int | str]:
    if isinstance(column, Texts):
        return [column.values[number] for number in column.numbers.values]
    return list(column.values)


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    """As `row_of` has them."""
    fields = [
        iter(list(zip(*map(values, event.values), strict=True)) or [()] * event.count)
        for event in columns.event_columns
    ]
    lost = dict(zip(columns.lost_at.values, columns.lost.values, strict=True))
    found = []
    for row in range(columns.count):
        event: EventColumns = columns.event_columns[columns.events.values[row]]
        pid, tid, comm = columns.task_list[columns.tasks.values[row]]
        found.append(
            (
                columns.times.values[row],
                columns.cpus.values[row],
                pid,
                tid,
                comm,
                event.system,
                event.name,
                columns.instance_list[columns.instances.values[row]],
                lost.get(row, 0),
                dict(zip(event.names, next(fields[columns.events.values[row]]), strict=True)),
            )
        )
    return found


def row_of(record: Record) -> tuple[Any, ...]:
    fields = {key: v.hex() if isinstance(v, bytes) else v for key, v in record.fields.items()}
    return (
        record.time_ns,
        record.cpu,
        record.pid,
        record.tid,
        record.comm,
        record.system,
        record.name,
        record.instance,
        record.lost,
        fields,
    )


def columns_of(
    recording: Recording, size: int = 1 << 20, *, records: int = 1 << 30, text: int = 1 << 30, counts: int = 9
) -> Columns:
    columns = Columns(
        recording.reading().records, max_records=records, max_text_bytes=text, max_counts=counts
    )
    while columns.read(size):
        pass
    return columns


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_every_field_of_every_record(tmp_path: Path, size: int) -> None:
    with utracefs.open(write(tmp_path / "trace.dat", lost=3)) as recording:
        columns = columns_of(recording, size)
        columns.sort()
        assert rows(columns) == [row_of(record) for record in recording]


def test_a_perf_data_with_records_out_of_order_and_a_short_one(tmp_path: Path) -> None:
    chance = Random(1)
    records = [perf.comm(7, 8, b"one"), perf.comm(7, 9, b"two")]
    for number in range(300):
        entry = EVENTS.entry(100, 8, number % 256, -number, 2**64 - number - 1)
        if number % 3 == 0:
            entry = EVENTS.entry(101, 8, str(number % 7))
        if number % 50 == 1:
            entry = entry[:-2]
        records.append(perf.sample(1000 + chance.randrange(100_000), number % 3, 7, 8 + number % 2, entry))
        if number % 40 == 0:
            records.append(perf.lost(number + 1, 1000 + chance.randrange(100_000)))
    path = perf.write(tmp_path / "perf.data", EVENTS, records)
    with utracefs.open(path) as recording:
        columns = columns_of(recording)
        expected = [row_of(record) for record in recording]
        assert rows(columns) == expected
        assert {event.is_short for event in columns.event_columns} == {True, False}
        columns.sort()
        assert rows(columns) == expected


def test_sorting(tmp_path: Path) -> None:
    """A page whose times are before those of the page in front of it."""
    chance = Random(2)
    times = [chance.randrange(50) * 10 for _ in range(400)]
    made = [
        page
        for number, time in enumerate(times)
        for page in pages(
            [(time, EVENTS.entry(*((101, 5, str(number)) if number % 3 else (100, 5, 1, number, 2))))],
            lost=number % 4,
        )
    ]
    path = write_pages(tmp_path / "trace.dat", [made], formats={b"user_events": EVENTS.formats()})
    with utracefs.open(path) as recording:
        expected = [row_of(record) for record in recording]
        columns = columns_of(recording)
    assert rows(columns) == expected
    columns.sort()
    assert rows(columns) == sorted(expected, key=lambda row: row[0])
    assert (columns.first, columns.last) == (min(times), max(times))
    assert list(columns.times.steps(0).values) == [
        b - a for a, b in zip([0, *sorted(times)], sorted(times), strict=False)
    ]


@pytest.mark.parametrize(
    ("event", "field", "numbers", "width"),
    [
        (100, 0, [7, 7, 7], 0),
        (100, 0, [0, 255], 1),
        (100, 1, [-128, 127], 1),
        (100, 1, [-1, 255], 2),
        (100, 1, [-(2**63), 2**63 - 1, 0], 8),
        (100, 2, [2**64 - 1, 2**64 - 1 - 2**32, 2**64 - 2], 8),
        (100, 2, [2**64 - 1, 2**64 - 2**32], 4),
        (100, 2, [2**40, 2**40 + 65535], 2),
    ],
)
def test_packing(tmp_path: Path, event: int, field: int, numbers: list[int], width: int) -> None:
    entries = []
    for number in numbers:
        given = [0, 0, 0]
        given[field] = number
        entries.append((1000, EVENTS.entry(event, 1, *given)))
    path = write_pages(tmp_path / "t", [pages(entries)], formats={b"user_events": EVENTS.formats()})
    with utracefs.open(path) as recording:
        column = columns_of(recording).event_columns[0].values[field]
    assert isinstance(column, Integers)
    base, found, data = column.packed()
    assert (base, found, len(data)) == (min(numbers), width, width * len(numbers))
    count = len(numbers)
    unpacked = [int.from_bytes(data[i::count], "little") + base for i in range(count)]
    assert unpacked == numbers == list(column.values)


def test_no_records() -> None:
    assert Integers().packed() == Integers(True).packed() == (0, 0, b"")
    assert list(Integers().steps(0).values) == []


def recording_of_texts(tmp_path: Path) -> Recording:
    entries = [(n, EVENTS.entry(101, 1 + n % 3, f"{n}" * 50)) for n in range(100)]
    path = write_pages(tmp_path / "t", [pages(entries)], formats={b"user_events": EVENTS.formats()})
    return utracefs.open(path)


@pytest.mark.parametrize(("records", "text"), [(7, 1 << 30), (1 << 30, 700)])
def test_what_does_not_fit_is_counted(tmp_path: Path, records: int, text: int) -> None:
    with recording_of_texts(tmp_path) as recording:
        columns = columns_of(recording, 10, records=records, text=text, counts=1000)
        assert rows(columns) == [row_of(record) for record in recording][:7]
    (event,) = columns.event_columns
    rest = columns.rest
    assert rest is not None and (event.count, event.total, rest.total) == (7, 100, 93)
    assert (columns.first, columns.last) == (0, 99)
    bins, events, tasks, counts = (list(one.values) for one in rest.columns())
    assert (rest.shift, bins, counts) == (0, list(range(7, 100)), [1] * 93)
    assert events == [0] * 93
    assert [columns.task_list[number][0] for number in tasks] == [1 + n % 3 for n in range(7, 100)]


@pytest.mark.parametrize("max_counts", [0, 1, 30, 1 << 10])
def test_bins_get_wider_and_no_count_is_lost(tmp_path: Path, max_counts: int) -> None:
    with recording_of_texts(tmp_path) as recording:
        columns = columns_of(recording, records=0, counts=max_counts)
    rest = columns.rest
    assert isinstance(rest, Counts) and (columns.first, columns.last, rest.total) == (0, 99, 100)
    found = list(zip(*(list(one.values) for one in rest.columns()), strict=True))
    expected = Counter((n >> rest.shift, 0, n % 3) for n in range(100))
    assert found == [(*key, expected[key]) for key in sorted(expected)]
    assert len(found) <= max(max_counts, 8 * 3)
