"""How histograms are shown: tables, JSON, and a table that is renewed."""

import io
import json

import pytest
from rich.console import Console

from tests.client.cli.kit import Files
from utracefs.cli.instance_option import Place
from utracefs.cli.live.hist_view import EventHistogram, JsonView, LiveView, PlainView, Shown
from utracefs.tree.event_names import EventName
from utracefs.tree.histogram import Entry, Histogram

EVENT = EventName("user_events", "http_request")


def histogram(
    *entries: Entry, trigger: str = "hist:keys=path,status:vals=hitcount", **more: int
) -> EventHistogram:
    return EventHistogram(
        EVENT,
        Histogram(trigger, bool(more.get("paused")), entries, more.get("hits", 3), more.get("dropped", 0)),
    )


TWO = (
    Entry({"path": "/cart", "status": 503}, {"hitcount": 2, "usec": 70}),
    Entry({"path": "/", "status": 7}, {"hitcount": 1, "usec": -5}),
)


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.show([histogram(*TWO)])
    assert capsys.readouterr().out == (
        "user_events:http_request by path,status\n"
        "PATH   STATUS  HITCOUNT  USEC\n"
        "/cart     503         2    70\n"
        "/           7         1    -5\n"
        "3 records, 2 entries\n"
    )


def test_what_else_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    trigger = "hist:keys=path:vals=hitcount:sort=hitcount:size=128 if status > 5"
    PlainView().show([histogram(trigger=trigger, hits=1, dropped=4, paused=1)])
    assert capsys.readouterr().out == (
        "user_events:http_request by path if status > 5\n"
        "1 record, 0 entries, 4 dropped: the table is full (--size), paused\n"
    )


def test_texts_do_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    PlainView().show([histogram(Entry({"path": "a\x1b[2J\nb"}, {"hitcount": 1}))])
    assert "a\\x1b[2J\\nb" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view.show([])
    assert json.loads(capsys.readouterr().out) == []
    view.show([histogram(*TWO)])
    (one,) = json.loads(capsys.readouterr().out)
    assert one == {
        "system": "user_events",
        "name": "http_request",
        "trigger": "hist:keys=path,status:vals=hitcount",
        "paused": False,
        "hits": 3,
        "dropped": 0,
        "entries": [
            {"keys": {"path": "/cart", "status": 503}, "values": {"hitcount": 2, "usec": 70}},
            {"keys": {"path": "/", "status": 7}, "values": {"hitcount": 1, "usec": -5}},
        ],
    }


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_kwargs: console)
    monkeypatch.setenv("LINES", "9")
    many = tuple(Entry({"path": f"/{n}\udcff[b]"}, {"hitcount": 10 - n}) for n in range(5))
    with LiveView() as view:
        view.show([])
        view.show([histogram(*many)])
        view.show([histogram(*many), histogram()])
    text = out.getvalue()
    assert "/0\\xff[b]" in text and "/2" in text and "/3" not in text, "as many as there are lines for"
    assert "2 of them not shown" in text
    assert "█" * 24 in text and "█" * 25 not in text


@pytest.mark.parametrize(
    ("columns", "bar", "path"), [(50, 16, "/a cart"), (40, 0, "/a cart"), (20, 0, "/a…")]
)
def test_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, bar: int, path: str) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=columns, height=40, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_kwargs: console)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    with LiveView() as view:
        view.show([histogram(Entry({"path": "/a cart", "status": 503}, {"hitcount": 2}))])
    line = [line for line in out.getvalue().splitlines() if path in line][-1]
    assert "2" in line and len(line.rstrip()) <= columns, "one line: numbers and texts do not wrap"
    assert line.count("█") == bar


HIST = b"""\
# event histogram
#
# trigger info: hist:keys=n:vals=hitcount:sort=hitcount:size=2048 [active]
#

{ n: 18446744073709551615 } hitcount:          2

Totals:
    Hits: 2
    Entries: 1
    Dropped: 0
"""
FORMAT = (
    b'name: a\nID: 1500\nformat:\n\tfield:s32 n;\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: "n", REC->n\n'
)


def test_reading() -> None:
    tree = Files({"available_events": b"user_events:b\nuser_events:a\n"})
    shown = Shown(tree, Place("i"), "*")
    assert [event.name for event in shown.events()] == ["a", "b"]
    assert shown.read() == []
    tree.files["instances/i/events/user_events/a/hist"] = HIST
    assert shown.read()[0].histogram.entries[0].keys == {"n": 2**64 - 1}, "as long as the format is not known"
    tree.files["events/user_events/a/format"] = FORMAT
    (one,) = shown.read()
    assert (one.event.name, one.histogram.entries[0].keys) == ("a", {"n": -1})
