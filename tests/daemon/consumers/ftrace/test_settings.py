"""Settings: the effects of an assignment, and valid values in the log."""

from typing import Any

import attrs
import msgpack
import pytest

from utracefsd.consumers.ftrace.settings import Options, Settings, default_options, parse_setting

OTHER: dict[str, Any] = {
    "in_memory": (8192, 100, 200),
    "expanded": True,
    "snapshot": True,
    "tracing_on": False,
    "clock": "boot",
    "options": frozenset({"raw", "overwrite"}),
    "cpumask": 1 << 100,
    "pids": frozenset({3, 1}),
    "notrace_pids": frozenset({2}),
    "standing": (b"b*", b"a*"),
    "standing_filters": (b"a* x == 1",),
    "standing_triggers": (b"a* traceoff",),
    "clear_pending": True,
    "remove_on_close": True,
    "owner_returns": True,
    "buffer_percent": 7,
    "time_start": 1 << 63,
    "error_log": (b"x",),
}
"""A value for each that is not its default."""


def test_every_setting_has_another_value_here() -> None:
    names = {field.name for field in attrs.fields(Settings)}
    assert names - {"changed", "unsaved", "on_unsaved"} == OTHER.keys()


@pytest.mark.parametrize("name", OTHER)
def test_an_assignment_is_noted_and_goes_through_the_log(name: str) -> None:
    settings = Settings()
    calls = []
    settings.on_unsaved = lambda: calls.append(name)
    setattr(settings, name, getattr(settings, name))
    assert (settings.unsaved, calls) == (set(), []), "the same value is no change"
    setattr(settings, name, OTHER[name])
    assert (settings.unsaved, calls) == ({name}, [name])
    ((told, saved),) = settings.take_unsaved()
    assert (told, settings.unsaved) == (name, set())
    assert parse_setting(name, msgpack.unpackb(msgpack.packb(saved))) == OTHER[name]
    assert settings.saved() == [(told, saved)], "the others are as in a new instance"


@pytest.mark.parametrize("name", OTHER)
def test_a_default_that_came_back_goes_through_the_log(name: str) -> None:
    settings = Settings()
    default = getattr(settings, name)
    setattr(settings, name, OTHER[name])
    setattr(settings, name, default)
    ((_, saved),) = settings.saved()
    assert parse_setting(name, saved) == default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", 1),
        ("unsaved", []),
        ("in_memory", [4096]),
        ("in_memory", [4097, 1]),
        ("in_memory", [4096, 0]),
        ("in_memory", ["4096", 1]),
        ("in_memory", 4096),
        ("expanded", 1),
        ("tracing_on", None),
        ("clock", "sundial"),
        ("clock", ["local"]),
        ("options", ["nonsense"]),
        ("options", [["raw"]]),
        ("options", {"raw": 1}),
        ("cpumask", "-1"),
        ("cpumask", "A"),
        ("cpumask", 3),
        ("pids", [None]),
        ("pids", [True]),
        ("standing", ["text"]),
        ("buffer_percent", 101),
        ("time_start", "0"),
        ("error_log", [1]),
    ],
)
def test_what_is_no_value(name: str, value: Any) -> None:
    with pytest.raises(ValueError):
        parse_setting(name, value)


def test_what_is_no_value_cannot_be_assigned() -> None:
    settings = Settings()
    with pytest.raises(ValueError, match="buffer_percent is 200"):
        settings.buffer_percent = 200
    assert (settings.buffer_percent, settings.unsaved) == (50, set())


def test_changes_are_counted_where_they_show() -> None:
    top = Options(Settings(options=default_options(top=True)))
    other = Options(Settings(options=default_options(top=False)), top)
    before = top.changes, other.changes
    other.set("raw", True)
    assert (top.changes, other.changes > before[1]) == (before[0], True)
    before = top.changes, other.changes
    other.set("printk-msg-only", True)
    assert top.changes > before[0]
    assert other.changes > before[1]
