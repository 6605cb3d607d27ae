"""Host, boot and time of day of recordings: kept by both kinds of files, and used by all exports."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import utracefs
from tests.client.export.timelines import trace_processor
from tests.client.html.chromium import Chromium
from tests.client.html.example import page_of
from tests.client.recordings.events import Events
from tests.client.recordings.trace_dat import example
from tests.judges import judge, library, run_judge
from utracefs.cli.convert.export import export
from utracefs.cli.convert.report import report
from utracefs.cli.record.target import Target
from utracefs.export import write_ctf, write_parquet, write_perf_data, write_perfetto, write_trace_dat
from utracefs.recordings import origin
from utracefs.recordings.origin import ClockPair, Origin, read_clocks
from utracefs.recordings.trace_dat.writer import TraceDatWriter
from utracefs_protocol.errors import TraceError

SECOND = 10**9
NUMBERS = Events(5, b"ev u32 n")
ORIGIN = Origin("box", "b-1", (ClockPair(SECOND, 86_400 * SECOND), ClockPair(5 * SECOND, 86_404 * SECOND)))
"""The clock's second 1 is the first moment of 1970-01-02."""
OFFSET = 86_399 * SECOND

names = st.text()
numbers = st.integers(0, 2**63 - 1)
pairs = st.builds(ClockPair, numbers, numbers, error_ns=st.none() | numbers)


@given(st.builds(Origin, names, names, st.lists(pairs).map(tuple)))
def test_what_is_written_is_read(origin: Origin) -> None:
    assert Origin.of_lines(origin.lines()) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CPU: 0\nentries: 5\n",
        "host: a\n",
        "host: a\nboot id: b\nclock: 1\n",
        "host: a\nboot id: b\nclock: x at 1\n",
        "host: a\nboot id: b\nclock: 1 at 9223372036854775808\n",
        "host: a\nboot id: b\nclock: 1 at -1\n",
        "host: a\nboot id: b\nclock: -1 at 1\n",
        "host: a\nboot id: b\nclock: 1 at 1 at 1\n",
        "host: a\nboot id: b\nclock: 1\nclock: 1 at 1\n",
        "host: a\nboot id: b\nclock: 1 at 1\nuncertainty: x\n",
        "host: a\nboot id: b\nclock: 1 at 1\nuncertainty: -1\n",
        "host: a\nboot id: b\nclock: 1 at 1\nuncertainty: 9223372036854775808\n",
    ],
)
def test_other_texts(text: str) -> None:
    assert Origin.of_lines(text) is None


@pytest.mark.parametrize("clock", ["local", "global", "perf", "mono", "mono_raw", "boot", "tai"])
def test_here(clock: str) -> None:
    before = time.time_ns()
    origin = Origin.here(clock).ended(clock)
    assert origin.host == os.uname().nodename
    assert origin.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [before <= pair.unix_ns <= time.time_ns() for pair in origin.clocks] == [True, True]
    assert origin.unix_offset_ns == origin.clocks[0].offset_ns
    assert abs(origin.step_ns) < SECOND


def test_a_clock_that_does_not_tell_times() -> None:
    assert read_clocks("counter") is None
    origin = Origin.here("counter").ended("counter")
    assert (origin.clocks, origin.unix_offset_ns, origin.step_ns) == ((), None, 0)


@pytest.fixture
def trace_dat(tmp_path: Path) -> Path:
    records = [(n * SECOND, NUMBERS.entry(5, 1, n)) for n in range(3)]
    more = {"formats": {b"user_events": NUMBERS.formats()}, "origin": ORIGIN}
    path = example.write(tmp_path / "t.dat", [example.pages(records)], **more)
    os.utime(path, ns=(0, 0))
    return path


def test_a_trace_dat_keeps_it(trace_dat: Path, tmp_path: Path) -> None:
    with utracefs.open(trace_dat) as recording:
        assert (recording.origin, recording.host, recording.unix_offset_ns) == (ORIGIN, "box", OFFSET)
        assert recording.metadata == {
            "clock": "mono",
            "clock_in_ns": "true",
            "unix_offset_ns": str(OFFSET),
            "host": "box",
            "boot_id": "b-1",
        }
        assert [record.time_ns for record in recording] == [0, SECOND, 2 * SECOND]
        write_trace_dat(recording, tmp_path / "copy.dat")
        write_perf_data(recording, tmp_path / "p.data")
    for copy in ("copy.dat", "p.data"):
        with utracefs.open(tmp_path / copy) as recording:
            assert (copy, recording.origin) == (copy, ORIGIN)


def test_times_that_are_times_of_day_already(tmp_path: Path) -> None:
    """The file has its reader add an offset: `record --wall-clock`."""
    records = [(SECOND, NUMBERS.entry(5, 1, 0))]
    more = {"formats": {b"user_events": NUMBERS.formats()}, "origin": ORIGIN, "offset_ns": OFFSET}
    with utracefs.open(example.write(tmp_path / "t", [example.pages(records)], **more)) as recording:
        assert recording.unix_offset_ns == 0
        assert [record.time_ns for record in recording] == [86_400 * SECOND]


def test_one_that_does_not_know(tmp_path: Path) -> None:
    records = [(SECOND, NUMBERS.entry(5, 1, 0))]
    more = {"formats": {b"user_events": NUMBERS.formats()}, "uname": "Linux box 6.1"}
    with utracefs.open(example.write(tmp_path / "t", [example.pages(records)], **more)) as recording:
        assert recording.origin == Origin("box")
        write_perf_data(recording, tmp_path / "p")
    with utracefs.open(tmp_path / "p") as recording:
        assert recording.unix_offset_ns is None  # not that of the export


def test_trace_cmd_prints_it_as_a_statistic(trace_dat: Path) -> None:
    statistics = run_judge("trace-cmd", "report", "--stat", "-i", trace_dat).decode()
    assert "clock: 1000000000 at 86400000000000" in statistics
    lines = run_judge("trace-cmd", "report", "-i", trace_dat).decode().splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["0.000000:", "1.000000:", "2.000000:"]


def test_perf_reads_it(trace_dat: Path, tmp_path: Path) -> None:
    with utracefs.open(trace_dat) as recording:
        write_perf_data(recording, tmp_path / "p.data")
    environ = {**os.environ, "TZ": "UTC"}
    words = [judge("perf"), "script", "-i", str(tmp_path / "p.data"), "-F", "tod,event"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["1970-01-01", "23:59:59.000000"],
        ["1970-01-02", "00:00:00.000000"],
        ["1970-01-02", "00:00:01.000000"],
    ]


def test_perfetto(trace_dat: Path, tmp_path: Path) -> None:
    with utracefs.open(trace_dat) as recording, open(tmp_path / "t.pftrace", "wb") as out:
        write_perfetto(recording, out)
    query = "select to_realtime(ts) as unix from slice order by ts"
    (rows,) = trace_processor.ask(tmp_path / "t.pftrace", query)
    assert [int(row["unix"]) for row in rows] == [OFFSET + n * SECOND for n in range(3)]


def test_ctf(trace_dat: Path, tmp_path: Path) -> None:
    with utracefs.open(trace_dat) as recording:
        write_ctf(recording, tmp_path / "ctf")
    text = run_judge("babeltrace2", "--clock-gmt", "--clock-date", tmp_path / "ctf").decode()
    assert [line.split("]")[0] for line in text.splitlines()] == [
        "[1970-01-01 23:59:59.000000000",
        "[1970-01-02 00:00:00.000000000",
        "[1970-01-02 00:00:01.000000000",
    ]


def test_names_of_a_file_are_one_short_line() -> None:
    found = Origin("a\nclock: 1 at 2\x1b[31m\u202e\udcff" + 300 * "b", "c\rd")
    assert found.lines() == f"host: {('aclock: 1 at 2[31m' + 300 * 'b')[:255]}\nboot id: cd\n"


MOVED = attrs.evolve(ORIGIN, clocks=(ORIGIN.clocks[0], ClockPair(5 * SECOND, 90_000 * SECOND)))
SAYS = "time of day and clock moved apart by +3,596.000 s during the recording; times of day are its begin's"


@pytest.mark.parametrize("step_ns", [SECOND, -SECOND])
def test_a_time_of_day_that_was_set_a_little(step_ns: int) -> None:
    clocks = (ORIGIN.clocks[0], ClockPair(5 * SECOND, 86_404 * SECOND + step_ns))
    assert (Origin(clocks=clocks).step_ns, Origin(clocks=clocks).moved) == (step_ns, "")


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    more = {"formats": {b"user_events": NUMBERS.formats()}, "origin": MOVED}
    return example.write(tmp_path / "m.dat", [example.pages([(SECOND, NUMBERS.entry(5, 1, 0))])], **more)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (report, []),
        (report, ["--json"]),
        (report, ["--html", "-o", "m.html"]),
        (export, ["--to", "csv"]),
        (export, ["-o", "m.parquet"]),
        (export, ["-o", "m.data"]),
    ],
)
def test_a_time_of_day_that_was_moved(
    moved: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command, words: list[str]
) -> None:
    if "m.parquet" in words:
        library("pyarrow")
    assert (MOVED.unix_offset_ns, MOVED.step_ns) == (OFFSET, 3_596 * SECOND)
    monkeypatch.chdir(moved.parent)
    done = CliRunner().invoke(command, [*words, "m.dat"])
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == f"utracefs: m.dat: {SAYS}"


def test_a_time_of_day_that_was_moved_while_record_converts(
    moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target(str(moved.with_suffix(".jsonl")))
    moved.rename(target.path)
    target.finish(0, {})
    assert capsys.readouterr().err == f"utracefs: {target.output}: {SAYS}\n"


def test_the_page_says_when_and_where(moved: Path, chromium: Chromium) -> None:
    with chromium.page(page_of(moved)) as page:
        page.until("document.body?.dataset.complete", "true")
        assert page.text("#notice") == SAYS[0].upper() + SAYS[1:]
        assert page.texts("#facts dd")[-2:] == ["box", "1970-01-02 00:00:00"]
        page.key(".")
        page.until("document.querySelector('#record td') !== null")
        assert "1970-01-02 00:00:00.000000000 UTC" in page.texts("#record td")


LAST = 2**63 - 1


@pytest.mark.parametrize(
    ("pair", "offset_ns"),
    [
        (ClockPair(0, LAST), None),
        (ClockPair(LAST, 0), None),
        (ClockPair(LAST, LAST), LAST),
        (ClockPair(0, LAST), 10**40),
    ],
)
def test_pairs_and_times_that_cannot_be(
    tmp_path: Path, chromium: Chromium, pair: ClockPair, offset_ns: int | None
) -> None:
    """Every export writes something that its readers take."""
    library("pyarrow")
    records = [(time_ns, NUMBERS.entry(5, 1, 0)) for time_ns in (0, SECOND, LAST, 2**64 - 1)]
    more = {"formats": {b"user_events": NUMBERS.formats()}, "origin": Origin(clocks=(pair,))}
    made = [page for record in records for page in example.pages([record])]
    path = example.write(tmp_path / "t.dat", [made], offset_ns=offset_ns, **more)
    for name in ("c.dat", "p.data", "t.jsonl", "t.csv", "t.json", "t.pftrace", "one.parquet", "t.ctf"):
        done = CliRunner().invoke(export, [str(path), "-o", str(tmp_path / name)])
        assert (name, done.exit_code, done.exception) == (name, 0, None)
    with utracefs.open(path) as recording:
        write_parquet(recording, tmp_path / "folder")
    run_judge("babeltrace2", "--clock-gmt", "--clock-date", tmp_path / "t.ctf")
    run_judge("trace-cmd", "report", "-i", tmp_path / "c.dat")
    run_judge("perf", "script", "-i", tmp_path / "p.data")
    with chromium.page(page_of(path)) as page:
        page.until("document.body?.dataset.complete", "true")
        page.key("End")
        page.key(",")
        page.until("document.querySelector('#record td') !== null")
        assert page.errors == []


@pytest.mark.parametrize("clock", ["local", "tai", "counter", "uptime"])
def test_of_every_clock_the_time_of_day_is_right_or_absent(tmp_path: Path, clock: str) -> None:
    library("pyarrow")
    begin = read_clocks(clock)
    now_ns = begin.clock_ns if begin else SECOND
    records = [(now_ns + n * SECOND, NUMBERS.entry(5, 1, n)) for n in range(2)]
    more = {"formats": {b"user_events": NUMBERS.formats()}, "trace_clock": f"[{clock}]".encode()}
    made = [example.pages(records)]
    path = example.write(tmp_path / "t.dat", made, origin=Origin.here(clock), **more)
    unix = [time.time_ns() + n * SECOND for n in range(2)]
    with utracefs.open(path) as recording:
        offset = recording.unix_offset_ns
        write_trace_dat(recording, tmp_path / "copy.dat")
        write_ctf(recording, tmp_path / "ctf")
        write_parquet(recording, tmp_path / "folder")
        with open(tmp_path / "t.pftrace", "wb") as out:
            write_perfetto(recording, out)
        if clock == "local":
            write_perf_data(recording, tmp_path / "p.data")
        else:
            with pytest.raises(TraceError, match="needs times of CLOCK_MONOTONIC"):
                write_perf_data(recording, tmp_path / "p.data")
    with utracefs.open(tmp_path / "copy.dat") as recording:
        assert (recording.clock, recording.unix_offset_ns) == (clock, offset)
    query = "select to_realtime(ts) as unix from slice order by ts"
    (rows,) = trace_processor.ask(tmp_path / "t.pftrace", query)
    perfetto = [row["unix"] for row in rows]
    text = run_judge("babeltrace2", "--clock-seconds", tmp_path / "ctf").decode()
    times = [int(line[1:].split(".")[0]) for line in text.splitlines()]
    days = {file.parent.parent.name for file in (tmp_path / "folder").rglob("*.parquet")}
    if begin is None:
        assert (offset, perfetto) == (None, [None, None])
        assert times == [ns // SECOND for ns, _ in records]
        assert days == {"day=1970-01-01"}
    else:
        for found in ([int(ns) // SECOND for ns in perfetto], times):
            assert all(abs(a - b // SECOND) <= 2 for a, b in zip(found, unix, strict=True))
        around = {time.gmtime(ns // SECOND + more) for ns in unix for more in (-2, 0)}
        assert days <= {f"day={time.strftime('%F', day)}" for day in around}


def test_a_recorder_that_was_killed(trace_dat: Path, tmp_path: Path) -> None:
    """The pair of the begin is in NAME.part from the beginning."""
    contents = example.contents(formats={b"user_events": NUMBERS.formats()}, origin=ORIGIN)
    writer = TraceDatWriter(tmp_path / "killed.dat", nr_cpus=1)
    writer.add_texts(contents)
    (page,) = example.pages([(SECOND, NUMBERS.entry(5, 1, 7))])
    writer.add_page(0, page)
    with utracefs.open(writer.leave(), recover=True) as recording:
        assert (recording.origin, [record.fields for record in recording]) == (ORIGIN, [{"n": 7}])


class _Kernel:
    """adjtimex(2) of a library: its result, and the status and maxerror in microseconds that it stores."""

    def __init__(self, result: int, status: int, maxerror: int) -> None:
        self._told = result, status, maxerror

    def adjtimex(self, timex: Any) -> int:
        assert timex._obj.modes == 0, "only a reader"
        result, timex._obj.status, timex._obj.maxerror = self._told
        return result


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (_Kernel(0, 0x2001, 1500), True),
        (_Kernel(5, 0x40, 16_000_000), False),
        (_Kernel(-1, 0, 0), False),
        (object(), False),
    ],
)
def test_the_uncertainty_is_the_kernels(monkeypatch: pytest.MonkeyPatch, kernel: object, known: bool) -> None:
    """Without NTP, or where the system call is forbidden or missing, it is unknown."""
    monkeypatch.setattr(origin, "_LIBC", kernel)
    pair = read_clocks("mono")
    assert pair is not None
    if known:
        assert pair.error_ns is not None and 1_500_000 <= pair.error_ns < SECOND
    else:
        assert pair.error_ns is None


def test_the_kernel_answers_as_a_struct_that_fits() -> None:
    """Whether this machine has NTP or not."""
    pair = read_clocks("mono")
    assert pair is not None and (pair.error_ns is None or 0 <= pair.error_ns < 60 * SECOND)
