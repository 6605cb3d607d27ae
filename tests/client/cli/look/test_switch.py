"""`utracefs enable` and `disable`: switches of events, and standing ones."""

import subprocess
import sys

from tests.client.cli.kit import Cli, Eventually


def test_standing_events(traced: Cli) -> None:
    traced.run("enable", "--standing", "user_events:later*")
    assert traced.out("cat", "standing_events") == "user_events:later*\n"
    traced.run("emit", "later_one u32 a", "1")
    assert "later_one: a=0x1 (1)" in traced.out("cat", "trace")
    traced.run("disable", "user_events:later*")
    assert traced.out("cat", "standing_events", "set_event") == ""


def test_filters_and_triggers(traced: Cli) -> None:
    traced.run("reg", "web u16 status")
    traced.run("reg", "other u16 status")
    traced.run("enable", "-f", "status >= 500", "-R", "traceoff if status == 503", "we*", "other")
    for event in ("web", "other"):
        assert traced.out("cat", f"events/user_events/{event}/filter") == "status >= 500\n"
        text = traced.out("cat", f"events/user_events/{event}/trigger")
        assert text == "traceoff:unlimited if status == 503\n"
    for status in ("200", "500", "503", "504"):
        traced.run("emit", "web", status, status=0 if status != "x" else 1)
    text = traced.out("cat", "trace")
    assert "=0x1f4 (500)" in text and "=0x1f7 (503)" in text
    assert "(200)" not in text and "(504)" not in text
    assert traced.out("cat", "tracing_on") == "0\n"


def test_beside_a_program_that_emits(traced: Cli, eventually: Eventually) -> None:
    """The trigger acts on a record that is in the trace."""
    program = (
        "import time, utracefs\ne = utracefs.event('web u32 n')\nwhile True: e.emit(1); time.sleep(1e-4)"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=traced.env) as process:
        try:
            eventually(lambda: "web" in traced.out("list"), "it is declared")
            traced.run("enable", "web", "-R", "traceoff if n == 1")
            eventually(lambda: traced.out("cat", "tracing_on") == "0\n", "it fired")
        finally:
            process.kill()
    assert "web: n=0x1 (1)" in traced.out("cat", "trace")


def test_what_does_not_fit_enables_nothing(traced: Cli) -> None:
    traced.run("reg", "web u16 status")
    error = traced.run("enable", "web", "-f", "stauts == 1", status=1).stderr.decode()
    assert (
        error
        == "utracefs: user_events:web: filter: Field not found; it has status\n  stauts == 1\n         ^\n"
    )
    for standing in ((), ("--standing",)):
        traced.run("enable", *standing, "web", "-R", "traceoff if stauts == 1", status=1)
    assert traced.out("cat", "set_event", "standing_events") == ""
    traced.run("enable", "web", "-R", "traceoff")
    error = traced.run("enable", "web", "-R", "traceoff if status == 1", status=1).stderr.decode()
    assert error == (
        "utracefs: user_events:web: trigger: the event has one of its kind already; "
        "'!TRIGGER' appended to its file trigger removes it\n"
    )
    traced.run("write", "--append", "events/user_events/web/trigger", "!traceoff")
    traced.run("enable", "web", "-R", "traceoff if status == 1")
    assert b"is empty" in traced.run("enable", "web", "-f", " ", status=2).stderr


def test_what_does_not_fit_leaves_the_earlier_filter(traced: Cli) -> None:
    """Also of events that it fits, if another one refuses it; and no trigger is set."""

    def filters() -> str:
        return traced.out("cat", *[f"events/user_events/{name}/filter" for name in ("fits", "web", "wet")])

    for event in ("fits u16 stauts", "web u16 status", "wet u16 level"):
        traced.run("reg", event)
    traced.run("enable", "web", "-f", "status == 500")
    wrong = ("-f", "stauts == 1")
    traced.run("enable", "web", *wrong, status=1)
    traced.run("enable", "--standing", "web", *wrong, status=1)
    traced.run("enable", "fits", "we*", *wrong, "-R", "traceoff", status=1)
    assert filters() == "none\nstatus == 500\nnone\n"
    assert traced.out("cat", "set_event") == "user_events:web\n"
    assert "\ntraceoff" not in "\n" + traced.out("cat", "events/user_events/fits/trigger")
    # An event of a glob, others of which take the filter, is enabled with its earlier one.
    traced.run("enable", "we*", "-f", "level == 1", status=1)
    assert filters() == "none\nstatus == 500\nlevel == 1\n"
    traced.run("enable", "*", *wrong, status=1)
    assert filters() == "stauts == 1\nstatus == 500\nlevel == 1\n"


def test_standing_settings(traced: Cli) -> None:
    traced.run("enable", "--standing", "-f", "status >= 500", "-R", "traceoff if status == 503", "we*", "x")
    assert traced.out("cat", "standing_filters") == "we* status >= 500\nx status >= 500\n"
    traced.run("emit", "web u16 status", "200")
    assert traced.out("cat", "events/user_events/web/filter") == "status >= 500\n"
    traced.run("disable", "we*")
    assert traced.out("cat", "standing_filters") == "x status >= 500\n"
    assert traced.out("cat", "standing_triggers") == "x traceoff if status == 503\n"
    assert traced.out("cat", "standing_events") == "x\n"
