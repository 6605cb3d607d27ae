"""Where an instance lies, and -B of the commands that take it."""

import json

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from utracefs.cli.instance_option import MAX_NAME, TOP, Place, instance_name


def test_places() -> None:
    assert (TOP.path("trace"), TOP.consumer) == ("trace", "ftrace")
    place = Place("a b")
    assert (place.path("trace"), place.consumer) == ("instances/a b/trace", "ftrace:a b")


@pytest.mark.parametrize("name", ["a", "a b", "ä", "x" * MAX_NAME, "..."])
def test_names(name: str) -> None:
    assert instance_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "/", ".", "..", "a\0", "x" * (MAX_NAME + 1), "ä" * 128])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError):
        instance_name(name)


def test_each_command_works_in_the_instance_alone(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    traced.run("instance", "create", "mine")
    traced.run("enable", "-B", "mine", "ev")
    assert traced.out("cat", "set_event") == ""
    assert traced.out("cat", "-B", "mine", "set_event") == "user_events:ev\n"
    assert json.loads(traced.out("list", "--json"))[0]["enabled"] is False
    assert json.loads(traced.out("list", "--json", "-B", "mine"))[0]["enabled"] is True
    traced.run("emit", "ev", "7")
    assert "ev: a=0x7 (7)" in traced.out("cat", "--instance", "mine", "trace")
    traced.run("write", "-B", "mine", "trace_clock", "mono")
    assert "[local]" in traced.out("cat", "trace_clock")
    assert "trace_clock\n" in traced.out("ls", "-B", "mine")
    assert traced.out("ls", "-l", "-B", "mine", "trace_clock").endswith(" trace_clock\n")
    traced.run("disable", "-B", "mine", "ev")
    assert traced.out("cat", "-B", "mine", "set_event") == ""
    traced.run("enable", "--standing", "-B", "mine", "later")
    assert traced.out("cat", "-B", "mine", "standing_events") == "later\n"
    traced.run("disable", "-B", "mine", "later")
    assert traced.out("cat", "-B", "mine", "standing_events") == ""


def test_status(traced: Cli) -> None:
    traced.run("reg", "ev")
    traced.run("instance", "create", "mine")
    traced.run("enable", "ev")
    traced.run("enable", "-B", "mine", "ev")
    traced.run("emit", "ev")
    assert "instances mine" in traced.out("status").splitlines()
    lines = traced.out("status", "-B", "mine").splitlines()
    assert lines[1] == "instance  mine"
    assert ": 1 records, 0 overwritten" in lines[2]
    assert [line.split()[2:] for line in lines[4:]] == [["ftrace:mine", "1", "1", "0", "0"]]
    state = json.loads(traced.out("status", "-B", "mine", "--json"))
    assert (state["instance"], state["instances"]) == ("mine", ["mine"])
    assert list(state["events"][0]["consumers"]) == ["ftrace:mine"]


def test_stream(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "ev u32 a")
    traced.run("instance", "create", "mine")
    traced.run("enable", "-B", "mine", "ev")
    traced.run("emit", "ev", "7")
    process = traced.start("stream", "-B", "mine")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"ev: a=0x7 (7)\n")
    interrupt(process)
    error = traced.run("stream", "-B", "mine", "-e", "ev", status=2).stderr
    assert b"-B uses an existing instance" in error


def test_record(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    said = traced.run("record", "-B", "mine", "--", "ls", traced.home.as_posix())
    assert b"0 records" in said.stderr
    assert traced.out("instance", "list") == "", "what it made it removes"
    traced.run("instance", "create", "mine")
    assert "of this name already; --keep" in traced.fails("record", "-B", "mine", "--", "true")
    traced.run("enable", "-B", "mine", "ev")
    traced.run("emit", "ev", "7")
    assert b"1 record, " in traced.run("record", "--keep", "-B", "mine", "--", "true").stderr
    assert traced.out("instance", "list") == "mine\n"
    assert traced.out("cat", "-B", "mine", "set_event") == "user_events:ev\n"


def test_no_such_instance(traced: Cli) -> None:
    for words in (["status"], ["enable", "ev"], ["ls"], ["stream"], ["record", "--keep"]):
        error = traced.fails(words[0], "-B", "nosuch", *words[1:])
        assert error == "utracefs: nosuch: no such instance; `utracefs instance list` shows all\n"
