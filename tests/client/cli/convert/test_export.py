"""`utracefs export`: format, records, output, errors. The formats themselves: tests/client/export."""

import contextlib
import csv
import errno
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.cli.kit import Cli
from tests.client.export.example import EVENTS, ROWS, write
from tests.client.export.timelines.trace_processor import ask
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, pages
from tests.client.recordings.trace_dat.example import EVENTS as PAGE_EVENTS
from tests.client.recordings.trace_dat.example import write as write_pages
from tests.judges import library, run_judge
from utracefs.cli import Failure, cli
from utracefs.cli.convert.export import FORMATS
from utracefs.cli.record.target import Target
from utracefs.cli.run.recorder import Recorder
from utracefs.export import Exported, write_perf_data


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.dat", lost=3)


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, words)])


def test_json_lines_to_stdout(file: Path) -> None:
    done = run(file, "-e", "begin")
    assert done.exit_code == 0
    assert [json.loads(line).get("fields") for line in done.stdout.splitlines()] == [
        None,
        {"key": 7, "size": 100},
        {"key": 8, "size": 2**63},
    ]
    assert done.stderr == f"utracefs: {file}: 2 records, 3 lost\n"
    assert run(file, "-e", "begin", "-o", "-").stdout == done.stdout


@pytest.mark.parametrize(
    ("ending", "to"),
    [
        ("jsonl", None),
        ("ndjson", None),
        ("csv", None),
        ("json", None),
        ("pftrace", None),
        ("perfetto-trace", None),
        ("x", "csv"),
    ],
)
def test_the_format_is_that_of_the_ending(file: Path, tmp_path: Path, ending: str, to: str | None) -> None:
    out = tmp_path / f"out.{ending}"
    done = run(file, "-o", out, *(["--to", to] if to else []))
    assert (done.exit_code, done.output) == (0, f"{out}: {len(ROWS)} records, 3 lost\n")
    if ending in ("pftrace", "perfetto-trace"):
        assert records_in(out) == len(ROWS) + 1
        return
    text = out.read_text(encoding="utf-8")
    if ending in ("jsonl", "ndjson"):
        assert len([json.loads(line) for line in text.splitlines()]) == len(ROWS) + 1
    elif ending == "json":
        assert len(json.loads(text)["traceEvents"]) > len(ROWS)
    else:
        with out.open(encoding="utf-8", newline="") as rows:
            assert len(list(csv.reader(rows))) == len(ROWS) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"trace.dat", out.name})


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["-P", "13"], [40, 3_000_000_999]),
        (["--since", "1.000000351", "--until", "2"], [1_000_000_351]),
        (["--cpu", "1", "-e", "user_events:t*"], [11, 13, 15, 17]),
        (["--filter", "key == 7", "-f", "comm == '<idle>'"], [1_000_000_351]),
    ],
)
def test_selection(file: Path, words: list[str], times: list[int]) -> None:
    lines = [json.loads(line) for line in run(file, *words).stdout.splitlines()]
    assert [line["time_ns"] for line in lines if "time_ns" in line] == times


WORDS = [
    "--slice",
    "begin,done,key",
    "--slice-duration",
    "done.usec:us",
    "--counter",
    "user_events:begin.size",
]
TOML = """
[[slice]]
begin = "begin"
end = ["done", "failed"]
key = "key"
[[duration]]
event = "done"
field = "usec"
unit = "us"
[[counter]]
event = "begin"
field = "size"
[[counter]]
event = "nosuch"
field = "n"
"""


def test_the_last_seconds(file: Path, tmp_path: Path) -> None:
    with utracefs.open(file) as recording:
        times = [record.time_ns for record in recording]
        write_perf_data(recording, tmp_path / "perf.data")
    seconds = (times[-1] - times[-3]) / 1e9
    for path in (file, tmp_path / "perf.data"):
        lines = run("--last", f"{seconds:.9f}", path).stdout.splitlines()
        assert [one["time_ns"] for line in lines if "name" in (one := json.loads(line))] == times[-3:]
    assert run("--last", "1", "--since", "1", file).exit_code == 2
    assert run("--last", "1", "--live").exit_code == 2


def test_tracks(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(file, "-o", out, *WORDS)
    assert (done.exit_code, "3 lost, slices without an end: 1\n" in done.stderr) == (0, True)
    events = json.loads(out.read_text())["traceEvents"]
    assert [event["dur"] for event in events if "dur" in event] == [1500]
    kinds = [event["ph"] for event in events]
    assert (kinds.count("b"), kinds.count("e"), kinds.count("C")) == (2, 1, 2)
    assert "ends without a begin: 1\n" in run(file, "-o", out, *WORDS, "--since", "2.5").stderr


@pytest.mark.parametrize("ending", ["json", "pftrace"])
def test_tracks_from_a_file(file: Path, tmp_path: Path, ending: str) -> None:
    """It may name events that the recording does not have."""
    (tmp_path / "tracks.toml").write_text(TOML)
    assert run(file, "-o", tmp_path / f"a.{ending}", *WORDS).exit_code == 0
    done = run(file, "-o", tmp_path / f"b.{ending}", "--tracks", tmp_path / "tracks.toml")
    assert done.exit_code == 0
    assert done.stderr.startswith(f"utracefs: {tmp_path}/tracks.toml: not in {file}: failed, nosuch\n")
    assert (tmp_path / f"b.{ending}").read_bytes() == (tmp_path / f"a.{ending}").read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "tracks.toml: No such file or directory"),
        ("[[slice]", "tracks.toml: Expected ']]' at the end of an array declaration (at line 1"),
        ("[[slices]]", "there is no table 'slices'; there are [[slice]], [[duration]], [[counter]]"),
        ("[[counter]]\nevent='a'", "[[counter]] number 1: field is missing"),
        ("[[counter]]\nevent='text'\nfield='rel'", "text.rel: is __rel_loc char[], not a number"),
        ("#" * (1 << 20) + "\n", "tracks.toml: has more than 1 MiB"),
    ],
)
def test_mistakes_in_a_file_with_tracks(file: Path, tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "tracks.toml").write_text(text)
    done = run(file, "-o", tmp_path / "out.json", "--tracks", tmp_path / "tracks.toml")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert says in done.stderr and not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["nosuch.dat"], 1, "nosuch.dat: No such file or directory"),
        (["FILE", "-e", "nosuch"], 1, "no such event: nosuch"),
        (["FILE", "-o", "out.xyz"], 2, "which format?"),
        (["FILE", "--to", "xml"], 2, "xml"),
        (["FILE", "-o", "FILE", "--to", "csv"], 1, "is the input"),
        (["FILE", "-o", "nowhere/out.csv"], 1, "nowhere/out.csv: No such file or directory"),
        (["FILE", "--counter", "begin.size"], 2, "are for --to perfetto or chrome"),
        (["FILE", "--to", "chrome", "--counter", "size"], 2, "'size' is not EVENT.FIELD"),
        (["FILE", "--to", "chrome", "--slice", "a,"], 2, "'a,' is not BEGIN,END[,KEY]"),
        (
            ["FILE", "--to", "chrome", "--slice", "begin,done,size"],
            1,
            "done.size: no such field; the event has key, usec",
        ),
        (["FILE", "--to", "chrome", "--counter", "nosuch.n"], 1, "nosuch: no such event in"),
        (
            ["FILE", "--to", "chrome", "--slice-duration", "done.usec:h"],
            2,
            "the unit is one of ns, us, ms, s",
        ),
        (["FILE", "--to", "csv", "--tracks", "x.toml"], 2, "are for --to perfetto or chrome"),
        (["FILE", "--to", "perfetto", "--counter", "text.rel"], 1, "is __rel_loc char[], not a number"),
        (["FILE", "--since", "yesterday"], 2, "'yesterday' is not a time in seconds"),
    ],
)
def test_mistakes_are_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, says: str
) -> None:
    monkeypatch.chdir(file.parent)
    before = sorted(file.parent.iterdir())
    done = run(*[word.replace("FILE", file.name) for word in words])
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr and done.stderr.count("\n") == 1
    assert sorted(file.parent.iterdir()) == before


def test_a_broken_recording_is_saved_up_to_there(tmp_path: Path) -> None:
    path = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    out = tmp_path / "out.jsonl"
    done = run(path, "-o", out)
    assert done.exit_code == 1 and done.output.count("\n") == 1 and "--recover" in done.output
    assert out.read_text().count("\n") == 1
    done = run(path, "-o", out, "--recover")
    assert (done.exit_code, done.output) == (0, f"{out}: 1 records\n")


def test_to_a_pipe_whose_reader_goes_away(file: Path) -> None:
    words = [sys.executable, "-m", "utracefs.cli", "export", str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_directory(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace"
    done = run(file, "--to", "ctf", "-o", out)
    assert (done.exit_code, done.output) == (0, f"{out}: {len(ROWS)} records, 3 lost\n")
    assert sorted(path.name for path in out.iterdir()) == ["channel0_0", "channel0_1", "metadata"]
    done = run(file, "--to", "ctf", "-o", out)
    assert (done.exit_code, "makes a new directory" in done.output) == (1, True)
    broken = break_first_page(write_pages(tmp_path / "broken.dat", [pages(CPU0)]))
    done = run(broken, "--to", "ctf", "-o", tmp_path / "part")
    assert (done.exit_code, "--recover" in done.output) == (1, True)
    assert (tmp_path / "part" / "metadata").exists()
    assert run(file, "--to", "ctf").exit_code == 2
    done = run(file, "--to", "ctf", "-o", tmp_path / "nowhere" / "trace")
    assert (done.exit_code, "No such file" in done.output) == (1, True)
    assert not list(tmp_path.glob(".*"))


def test_nothing_beside_the_output_is_touched(file: Path, tmp_path: Path) -> None:
    source = tmp_path / "out.jsonl.tmp"
    source.write_bytes(file.read_bytes())
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out.csv.tmp").symlink_to("victim")
    (tmp_path / "out.tmp").mkdir()
    for words in (["out.jsonl"], ["out.csv"], ["out", "--to", "ctf"]):
        done = run(source, "-o", tmp_path / words[0], *words[1:])
        assert (done.exit_code, done.output) == (0, f"{tmp_path / words[0]}: {len(ROWS)} records, 3 lost\n")
    assert source.read_bytes() == file.read_bytes()
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "out.csv").is_file() and not (tmp_path / "out.csv").is_symlink()


def test_an_output_of_the_longest_name_keeps_its_mode(file: Path, tmp_path: Path) -> None:
    out = tmp_path / ("a" * 249 + ".jsonl")
    out.touch(0o600)
    assert run(file, "-o", out).exit_code == 0
    assert (out.stat().st_mode & 0o777, out.stat().st_size > 0) == (0o600, True)


@pytest.mark.parametrize("name", ["out.data", "out.dat"])
def test_into_the_files_of_other_tracers(file: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    done = run(file, "-o", out)
    assert (done.exit_code, done.output) == (0, f"{out}: {len(ROWS)} records, 3 lost\n")
    with utracefs.open(out) as recording:
        assert len(list(recording)) == len(ROWS)
    assert run(out, "-o", out).exit_code == 1


def test_the_ring_buffer_of_the_daemon(traced: Cli) -> None:
    """It stays there; events that are not enabled any more are in it, too."""
    traced.run("enable", "--standing", "*")
    for declaration in ("shop u32 count; char[8] what", "other u32 n"):
        traced.run("reg", declaration)
    traced.run("emit", "shop", "7", "sold")
    traced.run("emit", "other", "8")
    traced.run("disable", "shop")
    for _ in range(2):
        lines = traced.out("export", "--daemon").splitlines()
        assert [json.loads(line)["fields"] for line in lines] == [{"count": 7, "what": "sold"}, {"n": 8}]
    done = traced.run("export", "--daemon", "-e", "shop", "-o", "now.dat")
    assert done.stderr == b"now.dat: 1 records\n"
    assert "count=7" in traced.out("report", "now.dat")
    traced.run("write", "trace_clock", "boot")
    traced.run("emit", "other", "9")
    says = traced.fails("export", "--daemon", "-o", "x.data")
    assert says.startswith("utracefs: the daemon's ring buffer: perf.data needs times of CLOCK_MONOTONIC; ")
    assert says.count("\n") == 1
    assert sorted(path.name for path in traced.home.iterdir()) == ["d", "now.dat"]
    assert "no such instance" in traced.fails("export", "--daemon", "-B", "nosuch")
    assert "give INPUT, --daemon or --live" in traced.run("export", "--daemon", "x", status=2).stderr.decode()
    assert "-B goes with --daemon or --live" in traced.run("export", "-B", "x", status=2).stderr.decode()
    traced.run("instance", "create", "box")
    assert traced.out("export", "--daemon", "-B", "box") == ""


def test_the_ring_buffer_is_overwritten_meanwhile(
    traced: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages do not tell how many records are lost, but the daemon knows how many there were."""
    traced.run("write", "buffer_size_kb", "8")
    traced.run("enable", "--standing", "*")
    one_cpu = "import os, utracefs; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    program = one_cpu + "e = utracefs.event('full u32 n'); [e.emit(n) for n in range(4000)]"
    emit = partial(subprocess.run, [sys.executable, "-c", program], env=traced.env, check=True)
    emit()

    class Slow(Recorder):
        def open(self, file: str) -> None:
            super().open(file)
            emit()

    monkeypatch.setattr("utracefs.cli.run.recorder.Recorder", Slow)
    done = run("--daemon", "--dir", traced.env["UTRACEFS_DIR"], "-o", tmp_path / "now.csv")
    assert re.search(r"now.csv: 0 records, [1-9]\d+ lost$", done.output.rstrip()), done.output


def test_packets_are_not_for_a_terminal(file: Path, cli: Cli) -> None:
    controller, terminal = pty.openpty()
    process = cli.start("export", str(file), "--to", "perfetto", stdout=terminal)
    error = process.communicate(timeout=60)[1]
    os.close(controller)
    os.close(terminal)
    assert b"--to perfetto needs -o FILE" in error


def test_to_a_device(file: Path) -> None:
    assert run(file, "-o", "/dev/null", "--to", "csv").exit_code == 0


@pytest.mark.parametrize("command", ["export", "report"])
def test_a_filter_that_fits_nothing(file: Path, command: str) -> None:
    done = CliRunner().invoke(cli, [command, str(file), "--filter", "stauts >= 500"])
    assert (done.exit_code, done.stdout) == (1, "")
    hint = f"; `utracefs sql {file}` lists the fields"
    assert done.stderr == f"utracefs: {file}: filter: Field not found{hint}\n  stauts >= 500\n         ^\n"


GUESSED = "; the days are guessed: the recording does not know the time of day"


def test_parquet(file: Path, tmp_path: Path) -> None:
    parquet = library("pyarrow.parquet")
    done = run(file, "--to", "parquet", "-o", tmp_path / "out")
    assert (done.exit_code, done.output) == (0, f"{tmp_path}/out: {len(ROWS)} records, 3 lost{GUESSED}\n")
    folders = {folder.name for folder in (tmp_path / "out").iterdir()}
    assert folders == {f"event=user_events%3A{e.name.decode()}" for e in EVENTS.declared.values()}
    assert (
        run(file, "-o", tmp_path / "all.parquet").exit_code == 0
    )  # several events: a directory all the same
    assert {folder.name for folder in (tmp_path / "all.parquet").iterdir()} == folders
    assert run(file, "-e", "begin", "-o", tmp_path / "begin.parquet").exit_code == 0
    assert parquet.read_table(tmp_path / "begin.parquet").column("key").to_pylist() == [7, 8]
    assert run(file, "-P", "13", "--since", "3", "-o", tmp_path / "done.parquet").exit_code == 0


def test_parquet_that_cannot_be(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "o.parquet"
    assert run(file, "--to", "parquet").exit_code == 2
    library("pyarrow")
    (tmp_path / "there").mkdir()
    assert "there: exists; parquet makes" in run(file, "--to", "parquet", "-o", tmp_path / "there").stderr
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(file, "-e", "begin", "-o", out)
    assert (done.exit_code, done.stderr) == (
        1,
        "utracefs: pyarrow is not installed: pip install 'utracefs[arrow]'\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "trace.dat"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A trace.dat and a perf.data."""
    path = write(tmp_path_factory.mktemp("fuzz") / "trace.dat", lost=3)
    with utracefs.open(path) as recording:
        write_perf_data(recording, path.with_name("perf.data"))
    return {name: path.with_name(name).read_bytes() for name in ("trace.dat", "perf.data")}


@given(
    name=st.sampled_from(["trace.dat", "perf.data"]),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), max_size=6),
    length=st.none() | st.integers(0, 1 << 14),
    recover=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_one_line_at_worst(
    originals: dict[str, bytes],
    tmp_path: Path,
    name: str,
    changes: list[tuple[int, bytes]],
    length: int | None,
    recover: bool,
) -> None:
    """Each format, of a file with changes anywhere, or cut off; with a note about unknown records."""
    data = bytearray(originals[name])
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new
    path = tmp_path / name
    path.write_bytes(data[:length])
    for kind in ("trace.dat", "perf.data", "jsonl", "csv", "chrome", "perfetto", "ctf", "parquet"):
        out = tmp_path / "out"
        done = run(path, "--to", kind, "-o", out, *(["--recover"] if recover else []))
        notes = done.output.count(" of events without a format: ") if recover else 0
        assert done.exit_code in (0, 1) and done.output.count("\n") == 1 + notes <= 2, (kind, done.output)
        assert "internal error" not in done.output, (kind, done.output)
        for left in tmp_path.glob("out*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    done = CliRunner().invoke(cli, ["report", str(path)])
    assert done.exit_code in (0, 1) and "internal error" not in done.output


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = Random(1)
    texts = (chance.randbytes(60).hex() for _ in range(20000))
    records = [(n + 1, PAGE_EVENTS.entry(2002, 11, text, n, n)) for n, text in enumerate(texts)]
    return write_pages(
        tmp_path_factory.mktemp("large") / "trace.dat", [pages(records[::2]), pages(records[1::2])]
    )


def records_in(out: Path) -> int:
    """As others read them."""
    if out.suffix in (".dat", ".data"):
        with utracefs.open(out) as recording:
            return len(list(recording))
    if out.suffix in (".pftrace", ".perfetto-trace"):
        return int(ask(out, "select count(*) as n from slice")[0][0]["n"])
    if out.suffix == ".json":
        return sum(one["ph"] == "i" for one in json.loads(out.read_bytes())["traceEvents"])
    if out.is_dir() and out.name == "out.ctf":
        return len(run_judge("babeltrace2", out, may_warn=True).splitlines())  # of packets that are missing
    if out.is_dir() or out.suffix == ".parquet":
        pq = library("pyarrow.parquet")
        files = [*out.rglob("*.parquet")] if out.is_dir() else [out]
        return sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    return out.read_bytes().count(b"\n") - (out.suffix == ".csv")


@pytest.mark.parametrize(
    "name",
    [
        "out.dat",
        "out.data",
        "out.jsonl",
        "out.csv",
        "out.json",
        "out.pftrace",
        "out.ctf",
        "out.parquet",
        "dir",
    ],
)
def test_a_disk_that_is_full(large: Path, tmp_path: Path, name: str) -> None:
    """The file has what fits and is good; what does not fit is counted."""
    if name in ("out.parquet", "dir"):
        library("pyarrow")
    out = tmp_path / name
    with files_up_to(1 << 20):
        done = run(large, "-o", out, *(["--to", "parquet"] if name == "dir" else []))
    assert kept_of(done, out) > 3000
    assert os.listdir(tmp_path) == [name]


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own takes root")
@pytest.mark.parametrize("name", ["out.dat", "out.data", "out.jsonl"])
def test_a_small_disk(large: Path, tmp_path: Path, name: str) -> None:
    """The room for the end leaves room for records."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", tmp_path], check=False).returncode:
        pytest.skip("no mount here")
    try:
        assert kept_of(run(large, "-o", tmp_path / name), tmp_path / name) > 500
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_the_copy_of_the_ring_buffer_does_not_fit(traced: Cli, tmp_path: Path) -> None:
    """The output would, and lack records."""
    traced.run("enable", "--standing", "*")
    program = (
        "import utracefs; e = utracefs.event('large char[1000] text'); [e.emit('x') for _ in range(1300)]"
    )
    subprocess.run([sys.executable, "-c", program], env=traced.env, check=True)
    out = tmp_path / "now.csv"
    with files_up_to(1 << 20):
        done = run("--daemon", "--dir", traced.env["UTRACEFS_DIR"], "-e", "other", "-o", out)
    assert re.search(rf"^utracefs: {out}: .*; \d+ records of the ring buffer did not fit", done.output)
    assert (done.exit_code, out.exists()) == (1, False)


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def kept_of(done: Result, out: Path) -> int:
    """How many of the 20,000 records were kept; the others are reported."""
    found = re.fullmatch(
        rf"{out}: (\d+) records.*\nutracefs: {out}: .* it has what fitted, (\d+) records did not\n",
        done.output,
    )
    assert found and done.exit_code == 1, done.output
    kept, missing = map(int, found.groups())
    assert kept + missing == 20000
    assert records_in(out) == kept
    return kept


def test_a_conversion_that_does_not_fit_keeps_the_recording(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(str(tmp_path / "out.csv"))
    shutil.copy(large, target.path)
    error = OSError(errno.ENOSPC, "full")
    monkeypatch.setattr(
        "utracefs.cli.convert.export.convert", lambda *_: Exported(1, 0, False, no_room=2, error=error)
    )
    with pytest.raises(Failure, match=re.escape(target.path)):
        target.finish(1, {})
    assert os.path.exists(target.path)


def test_record_names_an_ending_of_each_format() -> None:
    """Its help does not import the exporters."""
    words = set(re.findall(r"\.\w+", CliRunner().invoke(cli, ["record", "--help"]).stdout))
    assert {row.endings[0] for row in FORMATS.values()} <= words
