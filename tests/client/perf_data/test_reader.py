"""Files that are no perf.data of ours, or were damaged: one reason, no other exception."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.perf_data.test_writer import written
from utracefs.perf_data import Contents, PerfDataReader, PerfDataWriter


def refused(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        PerfDataReader(path)
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


def test_an_empty_one(tmp_path: Path) -> None:
    with PerfDataWriter(tmp_path / "x") as writer:
        writer.finish(Contents(events=(), header_page=b"", header_event=b""))
    with PerfDataReader(tmp_path / "x") as reader:
        assert (len(reader), list(reader), reader.events) == (0, [], {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("perf") / "perf.data"
    written(path)
    return path.read_bytes()


@pytest.mark.parametrize("parts", [0, 1, 3, 6, 9])
def test_cut_off(whole: bytes, tmp_path: Path, parts: int) -> None:
    (tmp_path / "x").write_bytes(whole[: 104 + (len(whole) - 104) * parts // 10])
    assert "cut off" in refused(tmp_path / "x") or "shorter" in refused(tmp_path / "x")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_damage_is_a_value_error_at_worst(
    whole: bytes, tmp_path: Path, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(whole)
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new[: len(data) - at]
    (tmp_path / "x").write_bytes(data)
    try:
        with PerfDataReader(tmp_path / "x") as reader:
            assert len(list(reader)) == len(reader) <= 4
    except ValueError:
        pass
