"""traceon, traceoff, stacktrace, enable_event and disable_event as commands."""

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk

B = b"user_events:b"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (b"traceon", b"traceon:unlimited"),
        (b"traceon:", b"traceon:unlimited"),
        (b"traceon: ", b"traceon:unlimited"),
        (b"traceon 5", b"traceon:count=5"),
        (b"traceon\t5", b"traceon:count=5"),
        (b"traceon: 5", b"traceon:count=5"),
        (b"traceon:5:", b"traceon:count=5"),
        (b"traceon:1:2", b"traceon:count=1"),
        (b"traceon:0", b"traceon:count=0"),
        (b"traceon:0x10", b"traceon:count=16"),
        (b"traceon:010", b"traceon:count=8"),
        (b"traceon:18446744073709551615", b"traceon:unlimited"),
        (b"traceon:18446744073709551614", b"traceon:count=-2"),
        (b"traceon:18446744073709551616", "ERANGE"),
        (b"traceon:99999999999999999999x", "ERANGE"),
        (b"traceon:-1", "EINVAL"),
        (b"traceon:+1", "EINVAL"),
        (b"traceon:5x", "EINVAL"),
        (b"traceon:08", "EINVAL"),
        (b"traceon:0x", "EINVAL"),
        (b"traceon:text", "EINVAL"),
        (b"traceon::5", "EINVAL"),
        (b"traceon iff v == 1", "EINVAL"),
        (b"traceon v == 1", "EINVAL"),
        (b"traceon if", "EINVAL"),
        (b"traceon:5 if", "EINVAL"),
        (b"traceon:5 v == 1", "EINVAL"),
    ],
)
def test_counts_of_simple_triggers(desk: Desk, command: bytes, shown: bytes | str) -> None:
    error = desk.write(desk.a, command)
    assert [*desk.lines(desk.a), error] == ([shown, ""] if isinstance(shown, bytes) else [shown])
    assert desk.enabled(desk.a) == (b"0" if error else b"0*")


@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        (b":" + B, b":unlimited"),
        (b" " + B, b":unlimited"),
        (b":" + B + b":5", b":count=5"),
        (b":" + B + b":+5", b":count=5"),
        (b":" + B + b":5:6", b":count=5"),
        (b":" + B + b":", "EINVAL"),
        (b":" + B + b":-1", "EINVAL"),
        (b":" + B + b":x", "EINVAL"),
        (b":" + B + b":99999999999999999999", "ERANGE"),
        (b"", "EINVAL"),
        (b":", "EINVAL"),
        (b":user_events", "EINVAL"),
        (b":user_events:", "EINVAL"),
        (b":user_events:nothing", "EINVAL"),
        (b":b", "EINVAL"),
        (b"::b", "EINVAL"),
        (b":" + B + b" v == 1", "EINVAL"),
        (b":" + B + b" if", "EINVAL"),
    ],
)
def test_targets_and_counts_of_event_switches(desk: Desk, rest: bytes, shown: bytes | str) -> None:
    error = desk.write(desk.a, b"enable_event" + rest)
    expected = [b"enable_event:" + B + shown, ""] if isinstance(shown, bytes) else [shown]
    assert [*desk.lines(desk.a), error] == expected
    assert (desk.enabled(desk.a), desk.enabled(desk.b)) == ((b"0", b"0") if error else (b"0*", b"0*"))
    assert len(desk.instance.sink.cells) == (0 if error else 2)


@pytest.mark.parametrize(
    ("filter", "error", "entry"),
    [
        (b"nothing == 1", "EINVAL", b"Field not found\n  Command: nothing == 1\n                   ^\n"),
        (b"v = 1", "EINVAL", b"Invalid operator\n  Command: v = 1\n              ^\n"),
        (b"(v == 1", "ENOENT", b"Too many '('\n  Command: (v == 1\n           ^\n"),
        (b"v == 1)", "EPERM", b"Too few '('\n  Command: v == 1)\n                 ^\n"),
        (b"v == '1", "ESRCH", b"Missing matching quote\n  Command: v == '1\n                ^\n"),
        (b"()", "EINVAL", b"Error\n  Command: ()\n           ^\n"),
    ],
)
def test_a_filter_that_is_refused(desk: Desk, filter: bytes, error: str, entry: bytes) -> None:
    for command in (b"traceon", b"snapshot:3", b"stacktrace", b"enable_event:" + B):
        assert desk.write(desk.a, command + b" if " + filter) == error
        assert desk.instance.error_log.text().endswith(b"] event filter parse error: error: " + entry)
    assert (desk.lines(desk.a), desk.enabled(desk.a), desk.enabled(desk.b)) == ([], b"0", b"0")
    assert len(desk.instance.sink.cells) == 0
    assert desk.instance.snapshot.buffer is None


def test_a_snapshot_that_has_no_memory(desk: Desk) -> None:
    desk.world.free_memory_kb = 1
    assert desk.write(desk.a, b"snapshot") == "ENOMEM"
    assert (desk.lines(desk.a), len(desk.instance.sink.cells)) == ([], 0)


@pytest.mark.parametrize("had", [False, True])
def test_a_snapshot_trigger_that_has_no_memory_leaves_no_spare(
    desk: Desk, had: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("utracefsd.consumers.ftrace.trigger.kind.SnapshotTrigger", fail)
    if had:
        desk.instance.snapshot.allocate()
    assert desk.write(desk.a, b"snapshot") == "ENOMEM"
    assert (desk.instance.snapshot.buffer is not None) == had


def test_removal(desk: Desk) -> None:
    """Text behind the name is ignored, except for a target; removing a missing trigger succeeds, too."""
    desk.write(desk.a, b"traceon:5")
    assert desk.write(desk.a, b"!traceoff:7 if nonsense") == ""
    assert desk.lines(desk.a) == []
    assert desk.write(desk.a, b"!traceon") == ""
    desk.write(desk.a, b"enable_event:user_events:a")
    desk.write(desk.a, b"enable_event:" + B)
    assert desk.write(desk.a, b"!disable_event") == "EINVAL"
    assert desk.write(desk.a, b"!disable_event:user_events:nothing") == "EINVAL"
    assert desk.write(desk.a, b"!disable_event:" + B) == ""
    assert desk.lines(desk.a) == [b"enable_event:user_events:a:unlimited"]
    assert desk.write(desk.a, b"!enable_event:user_events:a:3 if x") == ""
    assert (desk.enabled(desk.a), desk.enabled(desk.b), len(desk.instance.sink.cells)) == (b"0", b"0", 0)


def test_triggers_of_two_events_may_switch_the_same(desk: Desk) -> None:
    desk.write(desk.a, b"enable_event:" + B)
    desk.write(desk.b, b"disable_event:" + B)
    assert desk.enabled(desk.b) == b"0*"
    desk.emit(desk.a)
    assert desk.enabled(desk.b) == b"1*"
    desk.emit(desk.b, 7)
    assert (desk.enabled(desk.b), desk.recorded()) == (b"0*", []), "off before it is stored"
    desk.write(desk.a, b"!enable_event:" + B)
    desk.write(desk.b, b"!disable_event:" + B)
    assert (desk.enabled(desk.b), len(desk.instance.sink.cells)) == (b"0", 0)


def test_tracing_on_is_noted_when_the_last_switch_goes(desk: Desk) -> None:
    """As long as there are any, the next daemon reads their cell; afterwards the settings."""
    desk.write(desk.a, b"traceoff")
    desk.write(desk.b, b"traceon:0")
    desk.emit(desk.a)
    assert not desk.instance.tracing_on
    assert desk.instance.settings.tracing_on
    desk.write(desk.a, b"!traceoff")
    desk.write(desk.b, b"!traceoff")
    assert not desk.instance.settings.tracing_on
