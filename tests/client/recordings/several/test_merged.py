"""Several recordings as one: the same records as of each, in the order of one time."""

import io
import json
import resource
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import utracefs
from tests.client.recordings.events import Events, trace_cmd
from tests.client.recordings.several.example import DAY, EVENTS, PID, SECOND, origin, write
from tests.client.recordings.trace_dat import example
from tests.judges import judge, library, run_judge
from utracefs.cli.convert.export import export
from utracefs.cli.convert.report import report
from utracefs.cli.convert.sql import sql
from utracefs.export import write_csv, write_json_lines, write_perf_data, write_trace_dat
from utracefs.recordings.origin import Origin
from utracefs.recordings.recording import Recording
from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import FilterError

HOUR = 3600 * SECOND


def two(folder: Path) -> list[Path]:
    """Their clocks are five hours apart, and their records alternate."""
    return [
        write(folder / "a.dat", origin("a", DAY, uncertainty_ns=1000), [SECOND, 3 * SECOND]),
        write(folder / "b.dat", origin("b", DAY - 5 * HOUR), [5 * HOUR + 2 * SECOND, 5 * HOUR + 4 * SECOND]),
    ]


def rows(recording: Recording) -> list[tuple[int, str, int]]:
    return [(r.time_ns - DAY, r.host, r.fields["n"]) for r in recording]


def test_records_are_merged_by_the_time_of_day(tmp_path: Path) -> None:
    files = two(tmp_path)
    with utracefs.open(files) as recording:
        assert recording.is_merged
        expected = [(SECOND, "a", 0), (2 * SECOND, "b", 0), (3 * SECOND, "a", 1), (4 * SECOND, "b", 1)]
        assert rows(recording) == expected
        assert [r.file for r in recording] == [str(files[n]) for n in (0, 1, 0, 1)]
        assert (recording.clock, recording.unix_offset_ns, recording.host) == ("realtime", 0, "a, b")
        assert recording.last_ns() == DAY + 4 * SECOND
        assert recording.notes == [
            f"{files[0]}: a, time of day ± 0.001 ms",
            f"{files[1]}: b, time of day of unknown uncertainty (no NTP, or an older recording)",
        ]
        reading = recording.reading()
        assert [r.comm for r in reading] == ["alpha"] * 4
        assert reading.done == 1


def test_one_file_is_a_recording(tmp_path: Path) -> None:
    path, _ = two(tmp_path)
    for given_as in (path, str(path), [path], (str(path), path)):
        with utracefs.open(given_as) as recording:
            assert isinstance(recording, Recording)
            assert [(r.host, r.file) for r in recording] == [("a", str(path))] * 2
    with pytest.raises(ValueError, match="no recording"):
        utracefs.open([])


def test_a_file_is_read_once(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    link = tmp_path / "link.dat"
    link.symlink_to(a)
    with utracefs.open([a, b, a, link]) as recording:
        assert recording.paths == (str(a), str(b))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, DAY),
            st.lists(st.integers(DAY, DAY + 40), max_size=12).map(sorted),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_merged_is_the_sorted_union(
    tmp_path_factory: pytest.TempPathFactory, recordings: list[tuple[int, int, list[int]]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    offsets: dict[int, int] = {}
    expected = []
    files = []
    for number, (boot, offset, times) in enumerate(recordings):
        shared = offsets.setdefault(boot, offset)
        files.append(write(folder / f"{number}.dat", origin("h", shared, boot=f"b{boot}"), times))
        add = shared if len({boot for boot, _, _ in recordings}) > 1 else 0
        expected += [(time + add, number, n) for n, time in enumerate(times)]
    with utracefs.open(files) as recording:
        found = [(r.time_ns, files.index(Path(r.file)), r.fields["n"]) for r in recording]
        assert sorted(found) == sorted(expected)
        assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)
        for one in range(len(files)):
            assert [n for _, number, n in found if number == one] == sorted(
                range(len(recordings[one][2])), key=lambda n: (recordings[one][2][n], n % 2, n)
            )


def test_of_one_boot_the_clock_decides(tmp_path: Path) -> None:
    """Their offsets differ by more than the records are apart."""
    files = [
        write(tmp_path / "a.dat", origin("a", DAY, boot="x"), [SECOND, SECOND + 2]),
        write(tmp_path / "b.dat", origin("b", DAY + 5000, boot="x"), [SECOND + 1, SECOND + 3]),
    ]
    with utracefs.open(files) as recording:
        assert [(r.time_ns, r.host) for r in recording] == [
            (SECOND + n, host) for n, host in enumerate(["a", "b", "a", "b"])
        ]
        assert recording.clock == "mono"
        assert recording.notes == [f"{files[0]}, {files[1]}: of one boot, merged by its clock mono"]
    with utracefs.open([*files, write(tmp_path / "c.dat", origin("c", 0), [DAY])]) as recording:
        assert [r.host for r in recording] == ["c", "a", "b", "a", "b"]


def test_equal_times_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{host}.dat", origin(host, DAY), [SECOND] * 2) for host in "ba"]
    with utracefs.open(files) as recording:
        assert [r.host for r in recording] == ["b", "b", "a", "a"]


def test_selections_are_of_the_whole(tmp_path: Path) -> None:
    files = two(tmp_path)
    with utracefs.open(files, since_ns=DAY + 2 * SECOND, until_ns=DAY + 4 * SECOND) as recording:
        assert rows(recording) == [(2 * SECOND, "b", 0), (3 * SECOND, "a", 1)]
        assert recording.selection == ["from 86402.000000000 s", "before 86404.000000000 s"]
    with utracefs.open(files, filter="n == 1 && path == '/1'") as recording:
        assert rows(recording) == [(3 * SECOND, "a", 1), (4 * SECOND, "b", 1)]
    with utracefs.open(files, pids=[PID + 1]) as recording:
        assert not rows(recording)
    with utracefs.open(files, cpus=[1], events=["tick"]) as recording:
        assert [n for _, _, n in rows(recording)] == [1, 1]


def test_an_event_of_one_file_is_enough(tmp_path: Path) -> None:
    other = Events(300, b"tock u32 other")
    files = [*two(tmp_path), write(tmp_path / "c.dat", origin("c", DAY), [SECOND], events=other)]
    with utracefs.open(files, events=["tock"]) as recording:
        assert [(r.host, r.fields) for r in recording] == [("c", {"other": 0})]
    with utracefs.open(files, filter="other == 0") as recording:
        assert [r.host for r in recording] == ["c"]
    with pytest.raises(TraceError, match=r"a\.dat, .*c\.dat: .*nothing"):
        utracefs.open(files, events=["tick", "nothing"])
    with pytest.raises(FilterError, match="Field not found"):
        utracefs.open(files, filter="nothing == 1")


def test_recordings_without_times_of_day(tmp_path: Path) -> None:
    old = write(tmp_path / "old.dat", None, [SECOND])
    with pytest.raises(TraceError, match=r"old\.dat: cannot be merged .* read it alone"):
        utracefs.open([*two(tmp_path), old])
    dated = write(tmp_path / "dated.dat", Origin("d", "", ()), [SECOND], offset_ns=DAY)
    with pytest.raises(TraceError, match=r"dated\.dat: cannot be merged"):
        utracefs.open([*two(tmp_path), dated])


def test_empty_ones_and_losses(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "empty.dat", origin("e", 0), []),
        write(tmp_path / "lossy.dat", origin("l", DAY), [SECOND, 2 * SECOND], lost=3),
    ]
    with utracefs.open(files) as recording:
        reading = recording.reading()
        assert [r.lost for r in reading] == [3, 3]
        assert (reading.records.lost, recording.last_ns()) == (6, DAY + 2 * SECOND)
    with utracefs.open(files[:1] * 1 + [write(tmp_path / "f.dat", origin("f", 0), [])]) as recording:
        assert (list(recording), recording.last_ns(), recording.events_with_records()) == ([], 0, [])


def test_a_broken_file_ends_alone(tmp_path: Path) -> None:
    """The records of the others follow, then the error names the file."""
    a, b = two(tmp_path)
    data = bytearray(a.read_bytes())
    at = data.index(EVENTS.entry(300, PID, 0, "/0"))
    data[at - 4 : at] = b"\xff\xff\xff\x7f"
    a.write_bytes(data)
    with utracefs.open([a, b]) as recording:
        reading = iter(recording)
        assert [next(reading).host for _ in range(2)] == ["b", "b"]
        with pytest.raises(TraceError, match=rf"^{a}: broken: .*--recover"):
            next(reading)
        with pytest.raises(StopIteration):
            next(reading)
    with utracefs.open([a, b], recover=True) as recording:
        assert [(r.host, r.fields["n"]) for r in recording] == [("b", 0), ("a", 1), ("b", 1)]
    a.write_bytes(b"no recording")
    with pytest.raises(TraceError, match=f"^{a}: is neither"):
        utracefs.open([b, a])


def test_fifty_files_and_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read at once, and closed; mapped ones need a descriptor, or are read."""
    files = [write(tmp_path / f"{n}.dat", origin(f"h{n}", DAY), [SECOND + n]) for n in range(50)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
    try:
        with utracefs.open(files) as recording:
            assert [r.host for r in recording] == [f"h{n}" for n in range(50)]
            assert recording.path.endswith("2.dat and 47 more")
        monkeypatch.setattr("utracefs.recordings.recording._READ_BYTES", 0)
        monkeypatch.setattr("utracefs.recordings.recording._READ_LEAST", 0)
        with utracefs.open(files) as recording:
            assert len(list(recording)) == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tables(tmp_path: Path) -> None:
    library("pyarrow")
    files = two(tmp_path)
    with utracefs.open(files) as recording:
        table = recording.to_arrow("tick")
        assert table["host"].to_pylist() == ["a", "b", "a", "b"]
        assert table["file"].to_pylist() == [str(files[n]) for n in (0, 1, 0, 1)]
        assert recording.arrow_reader("tick").read_all() == table
        assert recording.to_arrow()["user_events:tick"] == table


def test_one_name_of_two_declarations(tmp_path: Path) -> None:
    """A table has the columns of both, in the order of time; one of two types is text."""
    library("pyarrow")
    other = Events(300, b"tick s64 n; u32 host")
    c = tmp_path / "c.dat"
    page = example.pages([(SECOND + 5, other.entry(300, PID, -7, 9))])
    example.write(c, [page], formats={b"user_events": other.formats()}, origin=origin("c", DAY))
    with utracefs.open([*two(tmp_path), c]) as recording:
        table = recording.to_arrow("tick")
        assert table["n"].to_pylist() == ["0", "-7", "0", "1", "1"]
        assert table["field_host"].to_pylist() == [None, 9, None, None, None]
        with pytest.raises(TraceError, match="2 layouts"):
            recording.arrow_reader("tick")


def test_text_formats_have_host_and_file(tmp_path: Path) -> None:
    files = two(tmp_path)
    with utracefs.open(files) as recording:
        lines, table = io.BytesIO(), io.BytesIO()
        write_json_lines(recording, lines)
        write_csv(recording, table)
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(one["host"], one["file"]) for one in found] == [
        (host, str(files[n])) for n, host in enumerate("ab")
    ] * 2
    head, *its_rows = table.getvalue().decode().splitlines()
    assert head == "time_ns,cpu,pid,tid,comm,system,name,host,file,n,path"
    assert its_rows[1] == f"{DAY + 2 * SECOND},0,{PID},{PID},alpha,user_events,tick,b,{files[1]},0,/0"


def test_formats_of_one_host_refuse(tmp_path: Path) -> None:
    with utracefs.open(two(tmp_path)) as recording:
        for write_it in (write_trace_dat, write_perf_data):
            with pytest.raises(TraceError, match="has the records of one host"):
                write_it(recording, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run(command: click.Command, *words: object) -> str:
    result = CliRunner().invoke(command, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_text_report_names_hosts(tmp_path: Path) -> None:
    files = two(tmp_path)
    lines = run(report, *files).splitlines()
    assert lines[:3] == ["a: cpus=2", "b: cpus=2", lines[2]]
    assert [line[:3] for line in lines[2:]] == ["a: ", "b: "] * 2
    assert lines[3].split() == ["b:", "alpha-11", "[000]", "86402.000000:", "tick:", "n=0", "path=/0"]
    assert "a: host: a\n" in run(report, "--stat", "-i", files[0], "-i", files[1])
    assert run(report, "--last", "2", *files).count("tick") == 3


def test_hosts_of_one_name_have_the_names_of_their_files(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.dat", origin("h", DAY, boot=str(n)), [SECOND]) for n in (1, 2)]
    assert [line.split(": ")[0] for line in run(report, *files).splitlines()] == 2 * ["1.dat", "2.dat"]
    objects = json.loads(run(export, "--to", "chrome", *files))["traceEvents"]
    processes = [(one["pid"], one["args"]["name"]) for one in objects if one["name"] == "process_name"]
    assert processes == [(PID, "h (1.dat): alpha"), (10_000_000 + PID, "h (2.dat): alpha")]


def test_viewers_have_processes_of_each_host(tmp_path: Path) -> None:
    """Both hosts have a thread 11."""
    files = two(tmp_path)
    objects = json.loads(run(export, "--to", "chrome", *files))["traceEvents"]
    assert [(one["pid"], one["tid"]) for one in objects if one["ph"] == "i"] == [
        (PID, PID),
        (10_000_000 + PID, 10_000_000 + PID),
    ] * 2
    page = tmp_path / "page.html"
    run(report, "--html", "-o", page, *files)
    assert b"time of day" in page.read_bytes()


def test_columns_of_parquet(tmp_path: Path) -> None:
    library("pyarrow")
    library("duckdb")
    files = two(tmp_path)
    query = "select host, file, n, time_ns from tick order by time_ns"
    expected = [
        (host, n, DAY + (2 * n + number + 1) * SECOND) for n in (0, 1) for number, host in enumerate("ab")
    ]
    found = [json.loads(line) for line in run(sql, "--json", *files, query).splitlines()]
    assert [(one["host"], one["n"], one["time_ns"]) for one in found] == expected
    assert found[0]["file"] == str(files[0])
    run(export, "-o", tmp_path / "one.parquet", *files)
    found = [json.loads(line) for line in run(sql, "--json", tmp_path / "one.parquet", query).splitlines()]
    assert [(one["host"], one["n"], one["time_ns"]) for one in found] == expected
    run(export, "--to", "parquet", "-o", tmp_path / "folder", *files)
    assert {path.parent.name for path in (tmp_path / "folder").rglob("*.parquet")} == {"host=a", "host=b"}
    query = "select host, n, time_ns from tick order by time_ns"
    found = [json.loads(line) for line in run(sql, "--json", tmp_path / "folder", query).splitlines()]
    assert [(one["host"], one["n"], one["time_ns"]) for one in found] == expected


def test_recordings_without_a_common_time_are_tables_still(tmp_path: Path) -> None:
    library("duckdb")
    files = [*two(tmp_path), write(tmp_path / "old.dat", None, [SECOND])]
    query = "select host, file, count(*) as n from tick group by all order by file"
    result = CliRunner().invoke(sql, ["--json", *map(str, files), query])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["host"], one["n"]) for one in found] == [("a", 2), ("b", 2), ("", 1)]
    assert "old.dat: cannot be merged" in result.stderr and "each file's own clock" in result.stderr


def test_babeltrace_merges_the_traces(tmp_path: Path) -> None:
    judge("babeltrace2")
    run(export, "-o", tmp_path / "out.ctf", *two(tmp_path))
    assert sorted(path.name for path in (tmp_path / "out.ctf").iterdir()) == ["a", "b"]
    text = run_judge("babeltrace2", "--clock-seconds", str(tmp_path / "out.ctf")).decode()
    times = [float(line[1:].partition("]")[0]) for line in text.splitlines()]
    assert times == [86401, 86402, 86403, 86404]


def test_trace_cmd_merges_ours(tmp_path: Path) -> None:
    """By the clock for one boot, exactly as our report; by --ts-offset for another one: it has to be relative
    to the first file, whose own trace-cmd 3.1.6 ignores."""
    judge("trace-cmd")
    files = [
        write(
            tmp_path / f"{n}.dat", origin("h", DAY, boot="x"), [SECOND + n * 1000, SECOND + 2000 + n * 1000]
        )
        for n in (0, 1)
    ]
    assert run(report, *files) == trace_cmd("report", "-i", str(files[0]), "-i", str(files[1]))
    c = write(tmp_path / "c.dat", origin("c", 2 * DAY), [SECOND])
    stat = run(report, "--stat", *two(tmp_path), c).splitlines()
    words = stat[-1].split()
    offsets = ["--ts-offset", str(-5 * HOUR), "-i", str(c), "--ts-offset", str(DAY)]
    assert (words[0], words[-6:]) == ("trace-cmd", offsets)
    text = trace_cmd(*words[1:])
    assert [line.split()[3] for line in text.splitlines()[3:]] == [
        f"{n}.000000:" for n in (1, 2, 3, 4, 86401)
    ]


def test_trace_cmd_merges_wall_clocks(tmp_path: Path) -> None:
    """Files of `record --wall-clock` need no offset."""
    judge("trace-cmd")
    files = [
        write(tmp_path / f"{host}.dat", origin(host, offset), [time * SECOND - offset], offset_ns=offset)
        for host, offset, time in (("a", 5 * HOUR, 2 * DAY // SECOND), ("b", DAY, DAY // SECOND + 7))
    ]
    text = trace_cmd("report", "-i", str(files[0]), "-i", str(files[1]))
    assert [line.split()[3] for line in text.splitlines()[2:]] == ["86407.000000:", "172800.000000:"]
    with utracefs.open(files) as recording:
        assert [(r.time_ns, r.host) for r in recording] == [(DAY + 7 * SECOND, "b"), (2 * DAY, "a")]


def test_a_part_need_not_have_the_selected_events(tmp_path: Path) -> None:
    other = Events(300, b"tock u32 m")
    a, b = (
        write(tmp_path / f"{n}.dat", origin(n, DAY), [SECOND], events=e)
        for n, e in (("a", EVENTS), ("b", other))
    )
    for selection in ({"events": "tick"}, {"filter": "n == 0"}):
        with utracefs.open([a, b], **selection) as recording:  # type: ignore[arg-type]
            assert [[r.name for r in part] for part in recording.parts] == [["tick"], []]
