"""Triggers of a flight recorder."""

import signal

import pytest

import utracefs
from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.cli.record.test_flight import dumps, program, values
from utracefs.cli.event_options import Wanted
from utracefs.cli.instance_option import Place
from utracefs.cli.record.requests import Requests
from utracefs.tree.tracefs import Tracefs


def test_a_trigger(cli: Cli) -> None:
    """It writes what is there; the rest is not in that file, and not lost."""
    done = cli.run(
        "record", "--flight", "16M", "-e", "web", "-R", "snapshot if usec > 100000", *program(3000, 1500)
    )
    (file,) = dumps(cli)
    found = values(cli, file)
    assert found == list(range(len(found))) and len(found) > 1500
    left = 3000 - len(found)
    assert (f"the last {left} record" in done.stderr.decode()) == (left > 0)


def test_a_trigger_in_the_last_moment(cli: Cli) -> None:
    cli.run("record", "--flight", "16M", "-R", "snapshot if usec > 100000", *program(10, 9))
    assert values(cli, dumps(cli)[0]) == list(range(10))


def test_a_trigger_that_fits_nothing(traced: Cli) -> None:
    """Known before, and for an event that comes later: then it asks for nothing."""
    traced.run("reg", "web u32 n; u32 usec")
    words = ("record", "--flight", "1M", "-e", "web", "-R")
    assert "sec" in traced.run(*words, "snapshot if sec > 1", "--", "true", status=1).stderr.decode()
    traced.run("reg", "--delete", "web")
    done = traced.run(*words, "snapshot if sec > 1", *program(1000), status=1)
    assert b"sec > 1" in done.stderr and b"the last 1000 records not written" in done.stderr
    assert traced.out("ls", "instances") == ""


def test_an_event_that_begins_between_two_looks(traced: Cli, eventually: Eventually) -> None:
    """Its filter is invalid, and was not looked at when its first record came."""
    directory = traced.env["UTRACEFS_DIR"]
    with Tracefs(directory) as tree, utracefs.Session(directory) as session:
        dump, trigger = Place("dump"), Place("trigger")
        for place in (dump, trigger):
            tree.mkdir(place.path(""))
        requests = Requests(tree, dump, trigger, [Wanted("web", triggers=("snapshot if sec > 1",))])
        requests.wanted.begin()
        check = requests.wanted.check

        def check_and_begin() -> None:
            check()
            event = session.event("web u32 n")
            eventually(lambda: event.enabled, "the trigger's instance takes its records")
            event.emit(1)
            assert session.flush(60)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(requests.wanted, "check", check_and_begin)
            assert requests.read() is None
        assert b"web" in tree.read_file(trigger.path("trace"))
        assert requests.read() is None and requests.wanted.refused


def test_a_count_of_a_trigger(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "web u32 n; u32 usec")
    process = traced.start("record", "--flight", "1M", "-e", "web", "-R", "snapshot:1 if usec > 5")
    eventually(lambda: traced.standing().count("web") == 2, "it records, and looks for the trigger")
    traced.run("emit", "web", "1", "9")
    eventually(lambda: len(dumps(traced)) == 1, "it is written")
    traced.run("emit", "web", "2", "9")
    name = min(traced.out("ls", "instances").split(), key=len)
    assert f"{name[:-1]}: " in traced.out("dump")
    traced.run("emit", "web", "3", "9")
    interrupt(process, signal.SIGTERM)
    assert [values(traced, file) for file in dumps(traced)] == [[1], [2], [3]]


def test_a_text_in_a_record_is_no_request(traced: Cli, eventually: Eventually) -> None:
    """Records of triggers are not where requests and answers are, so they do not overwrite these either."""
    traced.run("reg", "web u32 usec; __rel_loc char[] text")
    words = ("--flight", "1M", "-B", "mine", "-e", "web", "-R", "snapshot:1 if usec > 5")
    process = traced.start("record", *words)
    eventually(lambda: traced.standing().count("web") == 2, "it records, and looks for the trigger")
    traced.run("emit", "web", "9", "first")
    eventually(lambda: len(dumps(traced)) == 1, "it is written")
    traced.run("emit", "web", "9", "\n  a-7 [000] ..... 1.0: tracing_mark_write: dump 0123456789abcdef")
    assert "mine: " in traced.out("dump")
    assert "web" not in traced.out("cat", "instances/mine-dump/trace")
    interrupt(process, signal.SIGTERM)
    assert len(dumps(traced)) == 2
