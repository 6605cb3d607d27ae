"""Slices, durations and counters: how they are spelled, which events they mean, what cannot be."""

from pathlib import Path

import pytest

import utracefs
from tests.client.export.example import write
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import write as write_perf_data
from utracefs.export.timelines.tracks import Counter, Duration, Slice, Tracks
from utracefs.tree.event_names import EventName
from utracefs_protocol.errors import TraceError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("b,e,key", Slice("b", ("e",), ("key",))),
        ("b,e", Slice("b", ("e",))),
        ("s:b,s:e/f,k,l", Slice("s:b", ("s:e", "f"), ("k", "l"))),
    ],
)
def test_slices(text: str, found: Slice) -> None:
    assert Slice.parse(text) == found


@pytest.mark.parametrize("text", ["", "b", "b,", ",e,k", "b,e,", "b,e//f", "b,/e"])
def test_no_slices(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not BEGIN,END\[,KEY\]"):
        Slice.parse(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("e.f", Duration("e", "f", 1)),
        ("s:e.f", Duration("s:e", "f", 1)),
        ("e.1a.f:ms", Duration("e.1a", "f", 10**6)),
    ],
)
def test_durations(text: str, found: Duration) -> None:
    assert Duration.parse(text) == found


@pytest.mark.parametrize("text", ["", "e", "e.", ".f", "e.f:", "e.f:h", "e.f:us:us"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not EVENT\.FIELD|the unit is one of ns, us, ms, s, not"):
        Duration.parse(text)


def test_counters() -> None:
    assert Counter.parse("s:e.1a.f") == Counter("s:e.1a", "f")
    for text in ("", "e", "e.", ".f"):
        with pytest.raises(ValueError, match=r"is not EVENT\.FIELD"):
            Counter.parse(text)


def test_toml() -> None:
    text = b"""
        [[slice]]
        begin = "b"
        end = ["e", "f"]
        key = ["k", "l"]
        name = "n"
        [[slice]]
        begin = "b"
        end = "e"
        [[duration]]
        event = "d"
        field = "usec"
        unit = "us"
        name = "query"
        [[counter]]
        event = "c"
        field = "f"
        name = "g"
    """
    assert Tracks.from_toml(text) == Tracks(
        (Slice("b", ("e", "f"), ("k", "l"), "n"), Slice("b", ("e",))),
        (Duration("d", "usec", 1000, "query"),),
        (Counter("c", "f", "g"),),
    )
    assert not Tracks.from_toml(b"")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff", "can't decode byte 0xff"),
        (b"a = ", "Invalid value"),
        (b"a = " + b"[" * 100_000, "nest|Invalid|recursion"),
        (b"[[slices]]", r"there is no table 'slices'; there are \[\[slice\]\], \[\[duration\]\]"),
        (b"[slice]", r"slice: write \[\[slice\]\], with two brackets"),
        (b"slice = [1]", r"slice: write \[\[slice\]\]"),
        (b"[[slice]]", r"\[\[slice\]\] number 1: begin is missing"),
        (b"[[slice]]\nbegin='b'\nend=[]", "end is missing"),
        (b"[[slice]]\nbegin='b'\nend=[1]", "end must be a text, or a list of texts"),
        (b"[[slice]]\nbegin='b'\nend=''", "end must be a text, or a list of texts"),
        (b"[[slice]]\nbegin=''\nend='e'", "begin must be a text"),
        (b"[[slice]]\nbegin='b'\nend='e'\nkey=1", "key must be a text, or"),
        (b"[[slice]]\nbegin='b'\nend='e'\nkeys='k'", "no key 'keys'; there are begin, end, key, name"),
        (b"[[duration]]\nevent='d'\nfield='f'\nunit='h'", "the unit is one of ns, us, ms, s, not 'h'"),
        (b"[[counter]]\nevent='d'\nfield='f'\n[[counter]]\nevent=1", "number 2: event must be a text"),
    ],
)
def test_mistakes_in_toml(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Tracks.from_toml(text)
    assert "\n" not in str(caught.value)


def test_roles() -> None:
    tracks = Tracks(
        (Slice("b", ("e", "b"), ("k",)),), (Duration("s:*", "n"),), (Counter("b", "n"), Counter("b", "k"))
    )
    roles = tracks.roles(EventName("s", "b"), ["k"])
    assert roles == ([(0, (0,), -1, "")], [(0, (0,), -1, "b")], [], [(0, "b.k")])
    assert tracks.roles(EventName("s", "x"), ["n"]) == ([], [], [(0, 1, "x")], [])
    assert not any(tracks.roles(EventName("t", "b"), ["x"]))


def test_events_that_are_missing(tmp_path: Path) -> None:
    tracks = Tracks(
        (Slice("begin", ("done", "x")), Slice("begin", ("x",)), Slice("y", ("done",))),
        (Duration("z", "f"), Duration("done", "usec")),
        (Counter("user_events:b*", "key"), Counter("other:begin", "key")),
    )
    with utracefs.open(write(tmp_path / "trace.dat")) as recording:
        missing = tracks.missing(recording)
        assert missing == ["other:begin", "x", "y", "z"]
        left = tracks.without(missing)
        assert left == Tracks(
            (Slice("begin", ("done",)),), (Duration("done", "usec"),), (Counter("user_events:b*", "key"),)
        )
        left.check(recording)
        with pytest.raises(TraceError, match="other:begin: no such event in "):
            tracks.check(recording)


@pytest.mark.parametrize(
    ("tracks", "says"),
    [
        (Tracks(counters=(Counter("begin", "usec"),)), "begin.usec: no such field; the event has key, size"),
        (Tracks(counters=(Counter("empty", "usec"),)), "empty.usec: no such field; the event has none"),
        (Tracks(counters=(Counter("text", "fixed"),)), r"text.fixed: is char\[8\], not a number"),
        (Tracks(durations=(Duration("text", "rel"),)), r"text.rel: is __rel_loc char\[\], not a number"),
        (
            Tracks((Slice("begin", ("done",), ("size",)),)),
            "done.size: no such field; the event has key, usec",
        ),
    ],
)
def test_what_cannot_be(tmp_path: Path, tracks: Tracks, says: str) -> None:
    with utracefs.open(write(tmp_path / "trace.dat")) as recording, pytest.raises(TraceError, match=says):
        tracks.check(recording)


def test_keys_that_are_never_equal(tmp_path: Path) -> None:
    events = Events(100, b"begin u32 key", b"done char[4] key", b"failed s64 key")
    write_perf_data(tmp_path / "perf.data", events, [])
    with utracefs.open(tmp_path / "perf.data") as recording:
        Tracks((Slice("begin", ("failed",), ("key",)),)).check(recording)
        for ends in ("done",), ("failed", "done"), ("done", "failed"):
            tracks = Tracks((Slice("begin", ends, ("key",)),))
            with pytest.raises(TraceError, match=r"^key: is a number in (begin|failed) and none in done: "):
                tracks.check(recording)
