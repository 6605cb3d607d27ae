"""Every field of every record, read back by babeltrace2's Python binding."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import COMMS, EVENTS, ROWS, name, write
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import sample
from tests.client.recordings.perf_data.example import write as write_perf_data
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, many_records, pages
from tests.client.recordings.trace_dat.example import write as write_pages
from tests.judges import run_judge
from utracefs.export import Exported, write_ctf
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import bytes_of

READ = """
import json, sys
import bt2

def value(field):
    if isinstance(field, bt2._StringFieldConst):
        return str(field).encode("utf-8", "surrogateescape").hex()
    if isinstance(field, bt2._ArrayFieldConst):
        return [int(item) for item in field]
    return int(field)

path, pid, tid = sys.argv[1:]
for message in bt2.TraceCollectionMessageIterator(path):
    if type(message) is not bt2._EventMessageConst:
        continue
    event = message.event
    context = event.common_context_field or event.payload_field
    if pid not in context:
        continue
    print(json.dumps([
        message.default_clock_snapshot.value,
        int(event.packet.context_field["cpu_id"]),
        int(context[pid]),
        int(context[tid]),
        value(context["procname"]) if "procname" in context else "",
        event.name,
        {name: value(field) for name, field in event.payload_field.items()},
    ]))
"""


def read(
    path: Path, thread: tuple[str, str] = ("vpid", "vtid"), *, may_warn: bool = False
) -> list[list[Any]]:
    """thread: the names of the process's and the thread's number, in the context or among the fields."""
    text = run_judge("bt2", "-c", READ, path, *thread, may_warn=may_warn)
    return [json.loads(line) for line in text.splitlines()]


def as_read(event_id: int, values: dict[str, object], events: Events = EVENTS) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in events.declared[event_id].fields:
        key = field.name.decode()
        value = values[key]
        if isinstance(value, bytes) and field.is_loc:
            found[f"_{key}_length"] = len(value)
        if isinstance(value, str):
            found[key] = bytes_of(value).hex()
        else:
            found[key] = list(value) if isinstance(value, bytes) else value
    return found


def test_all_records(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "trace.dat")) as recording:
        assert write_ctf(recording, tmp_path / "ctf") == Exported(len(ROWS), 0, False)
    assert read(tmp_path / "ctf") == [
        [
            time,
            number % 2,
            tid,
            tid,
            bytes_of(COMMS.get(tid, "<...>" if tid else "<idle>"))[:15].hex(),
            f"user_events:{name(event_id)}",
            as_read(event_id, values),
        ]
        for number, (tid, event_id, time, values) in enumerate(ROWS)
    ]


def test_many_packets(tmp_path: Path) -> None:
    path = write_pages(tmp_path / "trace.dat", [pages(many_records(cpu, 3000)) for cpu in range(3)])
    with utracefs.open(path) as recording:
        write_ctf(recording, tmp_path / "ctf")
        expected = [[r.time_ns, r.cpu, f"user_events:{r.name}"] for r in recording]
    assert (tmp_path / "ctf" / "channel0_0").stat().st_size > 128 << 10
    assert sorted([row[0], row[1], row[5]] for row in read(tmp_path / "ctf")) == sorted(expected)


def test_names_that_a_format_stumbles_over(tmp_path: Path) -> None:
    events = Events(
        1,
        b"event u32 string; u32 1st; u32 a-b; u32 a_b; u32 struct; __rel_loc u8[] x; u32 _x_length; "
        b"u32 length",
        b'quote"back\\slash u8 n',
    )
    path = write_perf_data(
        tmp_path / "perf.data",
        events,
        [
            sample(1, 0, 3, 4, events.entry(1, 4, 1, 2, 3, 4, 5, b"6", 7, 8)),
            sample(2, 0, 3, 4, events.entry(2, 4, 9)),
        ],
    )
    with utracefs.open(path) as recording:
        write_ctf(recording, tmp_path / "ctf")
    first, second = read(tmp_path / "ctf")
    assert list(first[6].values()) == [1, 2, 3, 4, 5, 1, [ord("6")], 7, 8]
    assert second[2:] == [3, 4, b"<...>".hex(), 'user_events:quote"back\\slash', {"n": 9}]


def discarded(path: Path) -> list[int]:
    """Numbers of discarded records, for each packet of cpu 1."""
    data = (path / "channel0_1").read_bytes()
    found = []
    while data:
        head = struct.unpack_from("<I16sIIQQQQQQI", data)
        found.append(head[9])
        data = data[head[7] // 8 :]
    return found


@pytest.mark.parametrize(("lost", "counted"), [(0, 0), (7, 7), (-1, 1)])
def test_lost_records_are_counted(tmp_path: Path, lost: int, counted: int) -> None:
    with utracefs.open(write(tmp_path / "trace.dat", lost=lost)) as recording:
        write_ctf(recording, tmp_path / "ctf")
    assert discarded(tmp_path / "ctf") == [counted]


def test_times_that_readers_refuse_stay_at_the_latest(tmp_path: Path) -> None:
    events = Events(1, b"ev u64 n")
    records = [sample(time, 1, 3, 4, events.entry(1, 4, 5)) for time in (1, 2**63, 2**64 - 1)]
    path = write_perf_data(tmp_path / "p", events, records)
    with utracefs.open(path) as recording:
        write_ctf(recording, tmp_path / "ctf")
    lines = run_judge("babeltrace2", "--clock-cycles", tmp_path / "ctf").decode().splitlines()
    assert [int(line[1:21]) for line in lines] == [1, 2**63 - 2, 2**63 - 2]


def test_a_record_that_is_too_short_is_discarded(tmp_path: Path) -> None:
    events = Events(1, b"ev u64 n")
    records = [sample(1, 1, 3, 4, events.entry(1, 4, 5)[:12]), sample(2, 1, 3, 4, events.entry(1, 4, 5))]
    with utracefs.open(write_perf_data(tmp_path / "perf.data", events, records)) as recording:
        write_ctf(recording, tmp_path / "ctf")
    assert discarded(tmp_path / "ctf") == [1]
    assert [row[0] for row in read(tmp_path / "ctf", may_warn=True)] == [2]


def test_what_is_discarded_at_the_end_has_a_packet(tmp_path: Path) -> None:
    events = Events(1, b"ev u64 n")
    records = [sample(n + 1, 1, 3, 4, events.entry(1, 4, n)) for n in range(1490)]
    records.append(sample(2000, 1, 3, 4, events.entry(1, 4, 5)[:12]))
    with utracefs.open(write_perf_data(tmp_path / "perf.data", events, records)) as recording:
        write_ctf(recording, tmp_path / "ctf")
    assert discarded(tmp_path / "ctf") == [0, 1]
    assert [row[6]["n"] for row in read(tmp_path / "ctf", may_warn=True)] == list(range(1490))


def test_two_events_of_one_name_keep_their_fields(tmp_path: Path) -> None:
    """A file has both when an event was declared anew."""
    events = Events(1, b"ev u64 n", b"ev u8 a; u8 b")
    records = [sample(1, 0, 3, 4, events.entry(1, 4, 5)), sample(2, 0, 3, 4, events.entry(2, 4, 6, 7))]
    with utracefs.open(write_perf_data(tmp_path / "perf.data", events, records)) as recording:
        write_ctf(recording, tmp_path / "ctf")
    assert [row[5:] for row in read(tmp_path / "ctf")] == [
        ["user_events:ev", {"n": 5}],
        ["user_events:ev", {"a": 6, "b": 7}],
    ]


def test_no_records(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "trace.dat"), pids=[999]) as recording:
        assert write_ctf(recording, tmp_path / "ctf").records == 0
    assert read(tmp_path / "ctf") == []


def test_a_broken_recording_makes_a_complete_trace(tmp_path: Path) -> None:
    path = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    with utracefs.open(path) as recording, pytest.raises(TraceError, match="broken: cpu 0"):
        write_ctf(recording, tmp_path / "ctf")
    assert [row[0] for row in read(tmp_path / "ctf")] == [100000000001]


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "trace.dat")) as recording, pytest.raises(FileExistsError):
        write_ctf(recording, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.dat"]
