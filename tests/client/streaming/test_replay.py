"""Replay: a reader of streams finds a recording's events and records where it looks for a daemon."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.daemons.fake_daemon import wait_for
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import sample, write
from utracefs.streaming.replay import Replay
from utracefs.tree.tracefs import Tracefs

EVENTS = Events(300, b"first u64 n; __rel_loc char[] s", b"second u8 a")
OTHERS = Events(300, b"second u8 a", b"first u64 n; u8 new")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Both have the same ids for different events; `first` has other fields in the second one."""
    first = [sample(n, 1, 3, 4, EVENTS.entry(300, 4, n, f"s{n}")) for n in range(10, 2010, 2)]
    second = [sample(n, 0, 5, 6, OTHERS.entry(300, 6, n % 256)) for n in range(11, 2011, 2)]
    second.append(sample(5000, 0, 5, 6, OTHERS.entry(301, 6, 1, 2)))
    return [write(tmp_path / "a", EVENTS, first), write(tmp_path / "b", OTHERS, second)]


def records(replay: Replay, *events: str) -> list[tuple[str, int, int, dict[str, Any]]]:
    found = []
    with utracefs.attach(events, directory=replay.directory, reconnect=False, timeout_s=60) as stream:
        found = [(one.name, one.time_ns, one.tid, one.fields) for one in stream]
        assert not stream.lost
    return found


def test_records_are_those_of_the_recording(files: list[Path]) -> None:
    with utracefs.open(files[0]) as recording, Replay(recording) as replay:
        expected = [(one.name, one.time_ns, one.tid, one.fields) for one in recording]
        assert records(replay, "*:*") == expected
        assert records(replay, "first") == expected  # another stream begins again
        assert records(replay, "second") == []


def test_several_recordings_are_merged(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utracefs.recordings.recording.timelines", lambda files: [_same() for _ in files])
    with utracefs.open(files) as recording, Replay(recording) as replay:
        expected = [(one.name, one.time_ns, one.tid, one.fields) for one in recording]
        assert len(expected) == 2001
        assert records(replay, "user_events:*") == expected


def test_records_of_unknown_events_are_counted(tmp_path: Path) -> None:
    entries = [EVENTS.entry(300, 4, n, "s") for n in range(3)]
    entries[1] = b"\xff\x7f" + entries[1][2:]
    path = write(tmp_path / "a", EVENTS, [sample(n, 1, 3, 4, entry) for n, entry in enumerate(entries, 1)])
    with utracefs.open(path) as recording, Replay(recording) as replay:
        assert [fields["n"] for *_, fields in records(replay, "*:*")] == [0, 2]
        wait_for(lambda: replay.notes == {"1 records of events without a format were left out"})


def _same() -> Any:
    from utracefs.recordings.several.timeline import Timeline

    return Timeline()


def test_files(files: list[Path]) -> None:
    with (
        utracefs.open(files[0]) as recording,
        Replay(recording) as replay,
        Tracefs(replay.directory) as tree,
    ):
        assert tree.read_file("available_events") == b"user_events:first\nuser_events:second\n"
        text = tree.read_file("events/user_events/second/format").decode()
        number = tree.read_file("events/user_events/second/id").decode().strip()
        assert text.startswith(f"name: second\nID: {number}\nformat:\n")
        for path, error in (
            ("events/user_events", errno.EISDIR),
            ("events", errno.EISDIR),
            ("x", errno.ENOENT),
        ):
            with pytest.raises(OSError) as raised:
                tree.read_file(path)
            assert raised.value.errno == error
        with pytest.raises(OSError, match="has no list_dir"):
            tree.list_dir("events")


def test_no_filters(files: list[Path]) -> None:
    with (
        utracefs.open(files[0]) as recording,
        Replay(recording) as replay,
        pytest.raises(OSError, match="record with them"),
        utracefs.attach("first", filter="n > 5", directory=replay.directory),
    ):
        pass


def test_invalid_data(tmp_path: Path) -> None:
    data = [sample(10, 1, 3, 4, EVENTS.entry(301, 4, 7)), b"\x09\0\0\0\0\0\x05\0"]
    with utracefs.open(write(tmp_path / "p", EVENTS, data)) as recording, Replay(recording) as replay:
        assert len(records(replay, "second")) == 1
        assert wait_for(lambda: replay.error).errno == errno.EINVAL


def test_nothing_is_left(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a reader that goes in the middle."""
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{'deep' * 30}")  # too deep for a socket
    threads = threading.active_count()
    with utracefs.open(files[0]) as recording, Replay(recording) as replay:
        directory = Path(replay.directory)
        stream = utracefs.attach("first", directory=replay.directory).__enter__()
        next(stream)
        stream.close()
    assert not directory.exists()
    wait_for(lambda: threading.active_count() == threads)
