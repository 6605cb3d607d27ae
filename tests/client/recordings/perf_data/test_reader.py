"""A perf.data's description of itself; broken or foreign files: one reason, no other exception; `perf script`
as judge of the test's own files."""

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.recordings.perf_data.example import comm, sample, write
from tests.client.recordings.perf_data.test_writer import written
from tests.client.recordings.trace_dat.example import EVENTS
from tests.judges import run_judge
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs_protocol.errors import TraceError

RECORDS = [
    comm(11, 11, b"alpha"),
    comm(11, 12, b"beta task"),
    sample(100000000351, 0, 11, 12, EVENTS.entry(2002, 12, "Get", 1500, -2)),
    sample(100000000001, 0, 11, 11, EVENTS.entry(2001, 11, 7)),
    sample(100500000000, 1, 11, 11, EVENTS.entry(2003, 11, b"0123456789abcdef", b"t1")),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "perf.data", EVENTS, RECORDS, b"11 alpha\n13 gamma\n")


def test_perf_reads_the_file_of_these_tests_alike(file: Path) -> None:
    words = ["script", "--ns", "-F", "trace:comm,pid,tid,cpu,time,trace", "-f", "-i", file]
    found = run_judge("perf", *words).decode()
    with utracefs.open(file) as recording:
        ours = [
            [r.comm, f"{r.pid}/{r.tid}", f"[{r.cpu:03}]", f"{r.time_ns // 10**9}.{r.time_ns % 10**9:09}:"]
            + [
                f"{name}={value.decode() if isinstance(value, bytes) else value}"
                for name, value in r.fields.items()
            ]
            for r in recording
        ]
    assert found.split() == " ".join(" ".join(line) for line in ours).split()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: b"", "is not a perf.data"),
        (lambda d: b"2ELIFREP" + d[8:], "big-endian"),
        (lambda d: d[:8] + struct.pack("<Q", 16) + d[16:], "pipe"),
        (lambda d: d[:48] + struct.pack("<Q", 0) + d[56:], "was not finished"),
        (lambda d: d[:48] + struct.pack("<Q", 1 << 60) + d[56:], "cut off or broken"),
        (lambda d: d[:32] + struct.pack("<Q", 0) + d[40:], "samples of 0 kinds"),
        (lambda d: d[:72] + bytes(32) + d[104:], "not of tracepoints"),
        (lambda d: d[:-30], "cut off or broken"),
    ],
)
def test_broken_in_a_known_way(file: Path, change: object, says: str) -> None:
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TraceError, match=says) as raised:
        PerfDataReader(file)
    assert raised.value.errno == errno.EINVAL


CHANGES = st.lists(st.tuples(st.integers(0, 6000), st.binary(min_size=1, max_size=9)), max_size=6)


@given(st.sampled_from(["ours", "example"]), CHANGES, st.just(9000) | st.integers(0, 9000), st.booleans())
@settings(max_examples=300, deadline=None)
def test_damage_is_an_error_at_worst(
    tmp_path_factory: pytest.TempPathFactory,
    which: str,
    changes: list[tuple[int, bytes]],
    length: int,
    recover: bool,
) -> None:
    """To the output of PerfDataWriter, and to the file of these tests."""
    path = tmp_path_factory.getbasetemp() / f"{which}.data"
    if which == "ours":
        written(path)
    else:
        write(path, EVENTS, RECORDS)
    data = bytearray(path.read_bytes()[:length])
    for at, new in changes:
        at %= len(data) or 1
        data[at : at + len(new)] = new[: len(data) - at]
    path.write_bytes(data)
    try:
        with utracefs.open(path, recover=recover) as recording:
            assert len(list(recording)) <= 4
    except TraceError as error:
        assert error.errno == errno.EINVAL and str(path) in error.text


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        PerfDataReader(path)
    assert caught.value.errno == errno.EINVAL
    return str(caught.value)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data, reason in (
        (b"", "shorter"),
        (bytes(200), "not a perf.data"),
        (b"PERFILE2" + bytes(200), "utracefs"),
    ):
        path.write_bytes(data)
        assert reason in refused(path)
    with pytest.raises(FileNotFoundError):
        PerfDataReader(tmp_path / "none")
