"""A tracepoint: the checks of a write, with a kernel's answers, and the counts of every consumer."""

import errno
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance import transcript
from tests.daemon.record_path import PID, Collecting, ftrace, numbers, tracepoint, write
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.event._sink import FtraceProbe
from utracefsd.consumers.perf._sink import PerfProbe
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._index_table import IndexTable

TRANSCRIPT = Path(__file__).parents[2] / "conformance" / "6.12.117" / "08_writes.txt"

NOW_NS = 5_000_000_000


class Player:
    """Plays the writes of a transcript against the bare record path."""

    def __init__(self) -> None:
        self.sink = ftrace(1, 1408)
        self.sink.clock = "counter"
        self.first = self.sink.now() - 2  # in the transcript, setting the clock left the counter at 2
        self.tables: dict[str, IndexTable] = {}
        self.indices: dict[tuple[str, str], int] = {}
        self.events: dict[str, Tracepoint] = {}

    def enable(self, name: str, on: bool) -> None:
        event = self.events[name]
        if on and not event.probes:
            event.attach(FtraceProbe(self.sink))
        elif not on:
            event.detach(event.probes[0])

    def play(self, words: list[str]) -> int | None:
        """The result of an operation; None for an unrelated one."""
        match words:
            case ["open", name]:
                self.tables[name] = IndexTable()
            case ["close", name]:
                self.tables[name] = IndexTable()
            case ["reg", table, name, *_]:
                command = " ".join(words[2:]).encode()
                event = self.events.setdefault(name, tracepoint(command, 1039 + len(self.events)))
                self.indices[table, name] = self.tables[table].append(event)
            case ["write" | "write1", table, index, *fields]:
                number = self.indices[table, index[1:]] if index.startswith("@") else int(index)
                record = struct.pack("<i", number) + transcript.payload(" ".join(fields))
                return self.tables[table].write(record, PID, NOW_NS)
            case ["pwrite", table, "0", *rest]:
                return self.play(["write", table, *rest])
            case ["rawwrite", table, data]:
                return self.tables[table].write(transcript.payload(data), PID, NOW_NS)
            case ["w", "events/user_events/enable", on]:
                for name in self.events:
                    self.enable(name, on == "1")
            case ["w", path, on] if path.startswith("events/user_events/"):
                self.enable(path.split("/")[2], on == "1")
            case ["w", "tracing_on", on]:
                self.sink.tracing_on = on == "1"
            case ["wn", "trace"]:
                self.sink.now()  # clearing reads the clock
                self.sink.ring_buffer.clear()
        return None

    def trace(self) -> list[tuple[int, str]]:
        names = {event.id: name for name, event in self.events.items()}
        return [
            (ts - self.first, names[struct.unpack_from("<H", data)[0]])
            for _, ts, data, _ in self.sink.ring_buffer.cursor()
        ]


def test_the_writes_of_a_kernel() -> None:
    """Every result, and the counter of every record: it shows the ticks of refused records."""
    player = Player()
    results = traces = 0
    lines = TRANSCRIPT.read_text("latin-1").splitlines()
    for at, line in enumerate(lines):
        if line.startswith("# several pieces"):
            break
        if not line.startswith("> "):
            continue
        words = line[2:].split()
        got = player.play(words)
        if got is not None:
            expected = re.match(r"= (?:writev?: (-1) \w+\((\d+)\)|(\d+))", lines[at + 1])
            assert expected, lines[at + 1]
            assert got == (-int(expected[2]) if expected[1] else int(expected[3])), line
            results += 1
        elif words == ["cat", "trace"]:
            shown = []
            for text in lines[at + 1 :]:
                if text.startswith("="):
                    break
                if found := re.match(r"\| +\S+ +\[\d+\] \.{5} +(\d+): (\w+):", text):
                    shown.append((int(found[1]), found[2]))
            assert player.trace() == shown
            traces += 1
    assert (results, traces) == (108, 6)


def test_the_order_of_the_checks() -> None:
    event = tracepoint(b"test u32 a; __rel_loc char[] s")
    bad = struct.pack("<IHH", 1, 0, 99)
    assert write(event, bad[:7]) == -errno.EINVAL
    assert write(event, bad) == -errno.EBADF
    event.attach(FtraceProbe(ftrace()))
    assert write(event, bad[:7]) == -errno.EINVAL
    assert write(event, bad) == -errno.EFAULT
    assert write(event, bytes(8)) == 0
    assert event.emitted == 1


def test_one_probe_that_looks_decides_for_all() -> None:
    event = tracepoint(b"test __data_loc char[] s")
    off, on = FtraceProbe(ftrace(), "ftrace:off"), FtraceProbe(ftrace())
    off.sink.tracing_on = False
    event.attach(off)
    bad = struct.pack("<HH", 0, 1)
    assert write(event, bad) == 0
    event.attach(on)
    assert write(event, bad) == -errno.EFAULT
    assert (numbers(off), numbers(on), event.emitted) == ((0, 1, 0), (0, 0, 0), 1)


def test_a_refused_record_is_counted_by_no_probe_not_even_by_perf_that_has_no_place_for_its_size() -> None:
    event = tracepoint(b"test __data_loc char[] s")
    perf, batch = PerfProbe("perf:1", 1, data_pages=4, sample_period=2), Collecting("p", print)
    event.attach(perf)
    event.attach(batch)
    bad = struct.pack("<HH", 0, 1) + bytes(9000)
    for _ in range(3):
        assert write(event, bad) == -errno.EFAULT
    assert (perf.count, numbers(perf), numbers(batch), event.emitted) == (0, (0, 0, 0), (0, 0, 0), 0)
    event.detach(batch)
    for _ in range(3):
        assert write(event, bad) == 0
    assert (perf.count, numbers(perf), event.emitted) == (3, (2, 0, 1), 3)
    perf.close()


def test_a_full_or_too_small_buffer_does_not_look() -> None:
    event = tracepoint(b"test __data_loc char[] s")
    probe = FtraceProbe(ftrace(1, 1))
    probe.sink.ring_buffer.overwrite = False
    event.attach(probe)
    bad = struct.pack("<HH", 0, 1)
    assert write(event, bad + bytes(4064)) == 0  # too large for a sub-buffer
    while write(event, bytes(100)) == 0 and probe.lost < 2:
        pass
    assert write(event, bad + bytes(100)) == 0
    assert probe.lost == 3


def test_where_its_location_words_are() -> None:
    """For clients that check a record themselves: offset in the payload; 1 __rel_loc, 2 ends in NUL."""
    assert tracepoint(b"test u32 a; char[4] b").locations == []
    command = (
        b"test u8 a; __rel_loc char[] s; __data_loc u8[] d; __data_loc unsigned char[] t; __rel_loc u8[] r"
    )
    found = tracepoint(command)
    assert found.locations == [[1, 3], [5, 0], [9, 2], [13, 1]]
    assert found.min_size == 17


def test_status_is_what_is_attached() -> None:
    event = tracepoint()
    probes = [FtraceProbe(ftrace()), PerfProbe("perf:1", 7), Collecting("plug", print)]
    for probe, status in zip(probes, (1, 3, 0x83), strict=True):
        event.attach(probe)
        assert event.status == status
    assert event.probes == tuple(probes)
    with pytest.raises(ValueError, match="already"):
        event.attach(probes[0])
    event.detach(probes[1])
    assert event.status == 0x81
    with pytest.raises(ValueError, match="not attached"):
        event.detach(probes[1])
    event.detach(probes[0])
    event.detach(probes[2])
    assert event.status == 0
    assert write(event, bytes(4)) == -errno.EBADF


def test_stats_keep_detached_consumers() -> None:
    event = tracepoint()
    assert event.stats_text() == b"emitted: 0\n"
    sink = ftrace()
    for count in (3, 2):
        probe = FtraceProbe(sink)
        event.attach(probe)
        for _ in range(count):
            write(event, bytes(4))
        sink.tracing_on = False
        write(event, bytes(4))
        sink.tracing_on = True
        event.detach(probe)
    assert event.past == [("ftrace", 5, 2, 0)]
    assert event.stats_text() == b"emitted: 7\nbytes: 28\ndetached:\nftrace: recorded 5 filtered 2 lost 0\n"
    event.attach(Collecting("count", len))
    event.attach(FtraceProbe(sink))
    write(event, bytes(4))
    assert event.stats_text() == (
        b"emitted: 8\nbytes: 32\ncount: recorded 1 filtered 0 lost 0\nftrace: recorded 6 filtered 2 lost 0\n"
    )
    event.detach(next(probe for probe in event.probes if probe.consumer == "count"))
    assert event.stats_text() == (
        b"emitted: 8\nbytes: 32\nftrace: recorded 6 filtered 2 lost 0\ndetached:\n"
        b"count: recorded 1 filtered 0 lost 0\n"
    )


def test_reasons_of_refusals_are_clean_and_bounded() -> None:
    table, event = IndexTable(), tracepoint()
    table.append(event)
    reasons = [b"a was \xff", b"x: recorded 1 filtered 0 lost 0", "\n\u009b\u202e".encode(), b"y" * 1000]
    for reason in [*reasons, *(b"%d" % n for n in range(15))]:
        table.take_in(b"\xc5" + struct.pack(">HI", len(reason) + 4, 0x40) + reason, 0, 1, 0)
    assert sum(event.refused.values()) == 19
    assert len(event.refused) == 17
    assert event.stats_text().startswith(
        b"emitted: 0\nrefused: 1 a was \\xff\nrefused: 1 x? recorded 1 filtered 0 lost 0\nrefused: 1 ???\n"
        b"refused: 1 " + b"y" * 255 + b"\nrefused: 1 0\n"
    )
    assert event.stats_text().endswith(b"\nrefused: 3 other reasons\n")


@given(
    command=st.sampled_from(
        [
            b"t __rel_loc char[] a; u8 b; __data_loc char[] c",
            b"t __data_loc u8[] a; __rel_loc u8[] b",
            b"t u8 x; __rel_loc char[] a; __rel_loc unsigned char[] b",
        ]
    ),
    payload=st.binary(min_size=9, max_size=40),
)
def test_locations_never_lead_outside(command: bytes, payload: bytes) -> None:
    """Against the rule in plain Python (user_event_validate())."""
    declaration = parse(command)
    event = tracepoint(command)
    event.attach(FtraceProbe(ftrace(1, 8)))
    entry = struct.pack("<HBBi", 1039, 0, 0, PID) + payload
    valid = True
    for field in declaration.fields:
        if field.is_loc:
            offset, size = struct.unpack_from("<HH", entry, field.offset)
            start = offset if field.kind.name == "DATA_LOC" else field.offset + 4 + offset
            end = start + size
            valid &= end <= len(entry) and (not field.is_string or end == 0 or entry[end - 1] == 0)
    assert write(event, payload) == (0 if valid else -errno.EFAULT)


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5), st.binary(min_size=8, max_size=200)), max_size=150
    )
)
def test_every_record_is_counted_once_by_every_consumer(steps: list[tuple[int, int, bytes]]) -> None:
    """emitted = recorded + filtered + lost while attached, whatever is switched in between."""
    event = tracepoint(b"test u32 a; __rel_loc char[] s")
    small = ftrace(2, 1)
    small.ring_buffer.overwrite = False
    perf = PerfProbe("perf:1", 1, data_pages=1, sample_period=2)
    mine = FtraceProbe(small)
    probes = [
        mine,
        FtraceProbe(ftrace(2, 1), "ftrace:other"),
        perf,
        Collecting("plug", len),
    ]
    attached_at: dict[int, int] = {}
    seen = dict.fromkeys(range(len(probes)), 0)
    for action, which, payload in steps:
        probe = probes[which % len(probes)]
        number = which % len(probes)
        if action == 0 and number not in attached_at:
            event.attach(probe)
            attached_at[number] = event.emitted
        elif action == 1 and number in attached_at:
            event.detach(probe)
            seen[number] += event.emitted - attached_at.pop(number)
        elif action == 2:
            small.tracing_on = not small.tracing_on
        elif action == 3:
            mine.soft_disabled = not mine.soft_disabled
        elif action == 4:
            perf.enabled = not perf.enabled
        else:
            write(event, payload, cpu=which % 2)
    for number, start in attached_at.items():
        seen[number] += event.emitted - start
    for number, probe in enumerate(probes):
        assert sum(numbers(probe)) == seen[number]
    assert small.ring_buffer.entries() == probes[0].recorded
    perf.close()


def test_consumers_that_are_gone_are_not_remembered_one_by_one_for_ever() -> None:
    event = tracepoint()
    for n in range(1000):
        probe = FtraceProbe(ftrace(), f"ftrace:record-{n}")
        event.attach(probe)
        write(event, b"abcdefgh")
        event.detach(probe)
    assert len(event.past) == 32
    assert event.past[0] == ("earlier consumers", 969, 0, 0)
    assert event.past[-1] == ("ftrace:record-999", 1, 0, 0)
