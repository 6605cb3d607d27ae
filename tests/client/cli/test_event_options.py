"""-e, --filter and --trigger: their meaning, and the lines written into an instance for them."""

import errno
from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner

from utracefs.cli import Failure
from utracefs.cli.event_options import (
    Wanted,
    WantedCommand,
    WantedEvents,
    all_filters,
    any_filter,
    filter_of,
    triggers_of,
    wanted_options,
)
from utracefs.cli.instance_option import Place
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import Tracefs


def parsed(*words: str) -> tuple[Wanted, ...] | str:
    """The selection of a command line, or its error."""
    found: list[tuple[Wanted, ...]] = []

    @click.command(cls=WantedCommand, context_settings={"allow_interspersed_args": False})
    @wanted_options("Events.")
    @click.argument("command", nargs=-1, type=click.UNPROCESSED)
    def command(wanted: tuple[Wanted, ...], command: tuple[str, ...]) -> None:
        found.append(wanted)

    result = CliRunner().invoke(command, list(words))
    assert result.exit_code in (0, 2), result.output
    return found[0] if found else result.output


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ()),
        (["-e", "a"], (Wanted("a"),)),
        (["-e", "a", "-f", "x > 1", "-e", "b"], (Wanted("a", "x > 1"), Wanted("b"))),
        (["-e", "a", "-e", "b", "--filter", "x > 1"], (Wanted("a"), Wanted("b", "x > 1"))),
        (["-e", "a,s:b", "-f", "x", "-e", "c"], (Wanted("a", "x"), Wanted("s:b", "x"), Wanted("c"))),
        (["-e", "a", "-f", "x > 1", "-f", "y"], (Wanted("a", "(x > 1) && (y)"),)),
        (
            ["-e", "a", "-R", "traceoff", "--trigger", " snapshot if x == 1 "],
            (Wanted("a", "", ("traceoff", "snapshot if x == 1")),),
        ),
        (["-ea", "-fx", "-Rt", "--event=b", "--filter=y"], (Wanted("a", "x", ("t",)), Wanted("b", "y"))),
        (["-e", "a", "-f", "x", "-e", "a", "-f", "y"], (Wanted("a", "(x) || (y)"),)),
        (["-e", "a", "-f", "x", "-e", "a", "-f", "x"], (Wanted("a", "x"),)),
        (["-e", "a", "-f", "x", "-e", "a", "-R", "t"], (Wanted("a", "", ("t",)),)),
        (["-e", "a", "--", "-e", "b", "-f", "x"], (Wanted("a"),)),
        (["-e", "a", "prog", "-f", "x"], (Wanted("a"),)),
        (["-f", "x"], (Wanted("user_events*:*", "x"),)),
        (["-f", "x", "-R", "t", "-f", "y"], (Wanted("user_events*:*", "(x) && (y)", ("t",)),)),
    ],
)
def test_a_filter_belongs_to_the_event_before_it(words: list[str], wanted: tuple[Wanted, ...]) -> None:
    assert parsed(*words) == wanted


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-f", "x", "-e", "a"], "--filter 'x' belongs to the -e before it, and there is none"),
        (["-f", ""], "is empty"),
        (["-R", "x", "-e", "a"], "--trigger 'x' belongs to the -e before it"),
        (["-e", "a", "-f", " "], "--filter of a is empty"),
        (["-e", "a", "-R", ""], "--trigger of a is empty"),
        (["-e", "a", "-f"], "requires an argument"),
    ],
)
def test_wrong_usage(words: list[str], says: str) -> None:
    said = parsed(*words)
    assert isinstance(said, str) and says in said


def test_filters_together() -> None:
    assert all_filters([]) == all_filters(["", ""]) == any_filter(["a", ""]) == any_filter([]) == ""
    assert all_filters(["", "a"]) == any_filter(["a", "a"]) == "a"
    assert all_filters(["a", "b"]) == "(a) && (b)"
    assert any_filter(["a", "b"]) == "(a) || (b)"


EVENT = EventName("user_events", "http_request")

NO_FIELD = "filter: Field not found; the event's `format` lists its fields"
NO_OPERATOR = "Invalid operator; write one of == != < <= > >= & ~ after the field"


@pytest.mark.parametrize(
    ("wanted", "filter_text", "triggers"),
    [
        ([Wanted("other", "x")], "", ()),
        ([Wanted("http_*", "x", ("t",))], "x", ("t",)),
        ([Wanted("*", "", ("t",)), Wanted("http_request", "x", ("u", "t"))], "x", ("t", "u")),
        ([Wanted("http_request", "x"), Wanted("*", "y")], "x", ()),
        ([Wanted("http_request"), Wanted("*", "y")], "", ()),
        ([Wanted("http_*", "x"), Wanted("*_request", "y")], "y", ()),
        ([Wanted("http_request", "x"), Wanted("user_events:http_request", "y")], "y", ()),
    ],
)
def test_a_name_counts_more_than_a_glob_and_the_last_most(
    wanted: Sequence[Wanted], filter_text: str, triggers: tuple[str, ...]
) -> None:
    assert filter_of(wanted, EVENT) == filter_text
    assert triggers_of(wanted, EVENT) == triggers


class FakeTree(Tracefs):
    """Notes what is written. Events do not know the field `nosuch`, nor the trigger `bad`; of each kind of
    trigger there is one."""

    def __init__(self, *events: str) -> None:
        self.events = list(events)
        self.came: list[str] = []
        """Events that are there from the first standing line on."""
        self.files: dict[str, bytes] = {}
        self.slots: set[tuple[str, bytes]] = set()
        self.written: list[tuple[str, bytes]] = []

    def read_file(self, path: str) -> bytes:
        if path in ("available_events", "instances/i/set_event"):
            return b"".join(f"user_events:{name}\n".encode() for name in reversed(self.events))
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return self.files[path]

    def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
        self.written.append((path.removeprefix("instances/i/"), data))
        if path.startswith("instances/i/standing_"):
            self.events += self.came
            self.came = []
        elif path.endswith("/filter"):
            self.set_filter(path, data)
        elif data.startswith(b"bad"):
            raise OSError(errno.EINVAL, "there is no trigger 'bad'", path)
        elif (path, data.split()[0]) in self.slots:
            raise FileExistsError(errno.EEXIST, "has one", path)
        else:
            self.slots.add((path, data.split()[0]))
        return len(data)

    def set_filter(self, path: str, data: bytes) -> None:
        self.files[path] = data + b"\n"
        if b"nosuch" in data:
            self.files[path] = data + b"\n      ^\nparse_error: Field not found\n\n"
            raise OSError(errno.EINVAL, "Field not found", path)

    def texts(self) -> list[str]:
        return [f"{path}: {data.decode().rstrip()}" for path, data in self.written]


def test_what_is_written_and_in_which_order() -> None:
    tree = FakeTree("a1", "a2", "b")
    wanted = [Wanted("a2", "x == 2", ("snapshot",)), Wanted("a*", "x == 1", ("traceoff",))]
    asked = WantedEvents(tree, Place("i"), wanted)
    asked.begin()
    assert tree.texts() == [
        "events/user_events/a1/filter: x == 1",
        "events/user_events/a2/filter: x == 2",
        "standing_filters: a* x == 1",
        "standing_triggers: a* traceoff",
        "standing_filters: a2 x == 2",
        "standing_triggers: a2 snapshot",
        "standing_events: a2",
        "standing_events: a*",
        # Last: beside a program that emits, `traceoff` would come before the first record.
        "events/user_events/a1/trigger: traceoff",
        "events/user_events/a2/trigger: traceoff",
        "events/user_events/a2/trigger: snapshot",
    ]


def test_without_settings_there_is_nothing_but_the_events() -> None:
    tree = FakeTree("a")
    asked = WantedEvents(tree, Place("i"), [Wanted("a"), Wanted("b")])
    asked.begin()
    asked.check()
    assert tree.texts() == ["standing_events: a", "standing_events: b"]
    assert (asked.has_settings, asked.finish()) == (False, 0)


def test_a_name_without_a_filter_beside_a_glob_with_one() -> None:
    tree = FakeTree()
    WantedEvents(tree, Place("i"), [Wanted("a"), Wanted("*", "x == 1")]).begin()
    assert tree.texts()[:2] == ["standing_filters: * x == 1", "standing_filters: a 0"]


def test_for_counting_nothing_is_enabled() -> None:
    tree = FakeTree()
    WantedEvents(tree, Place("i"), [Wanted("a", triggers=("hist:keys=x",))]).begin(enable=False)
    assert tree.texts() == ["standing_triggers: a hist:keys=x"]


@pytest.mark.parametrize(
    ("wanted", "about", "reason", "detail"),
    [
        (Wanted("a", "nosuch == 1"), "a", NO_FIELD, "  nosuch == 1\n        ^"),
        (Wanted("a*", "nosuch == 1"), "a", NO_FIELD, "  nosuch == 1\n        ^"),
        (Wanted("a", "", ("bad",)), "a", "trigger: there is no trigger 'bad'", "  bad"),
        (
            Wanted("a", "", ("t", "t if x")),
            "a",
            (
                "trigger: the event has one of its kind already; "
                "'!TRIGGER' appended to its file trigger removes it"
            ),
            "",
        ),
    ],
)
def test_what_fits_no_event_that_exists_is_refused_at_once(
    wanted: Wanted, about: str, reason: str, detail: str
) -> None:
    tree = FakeTree("a")
    with pytest.raises(Failure) as caught:
        WantedEvents(tree, Place("i"), [wanted]).begin()
    failure = caught.value
    assert (failure.about, failure.reason, failure.detail) == (f"user_events:{about}", reason, detail)
    is_enabled = "standing_events" in [path for path, _ in tree.written]
    assert is_enabled == bool(wanted.triggers), "before the triggers; the instance ends with the command"


class Choosy(FakeTree):
    """The event `other` has no field x."""

    def set_filter(self, path: str, data: bytes) -> None:
        super().set_filter(path, data.replace(b"x", b"nosuch") if "/other/" in path else data)


def test_a_glob_may_have_events_that_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = WantedEvents(Choosy("a", "other"), Place("i"), [Wanted("*", "x")])
    asked.begin()
    assert capsys.readouterr().err == (f"utracefs: user_events:other: {NO_FIELD}\n  nosuch\n        ^\n")
    assert asked.finish() == 1
    told = "utracefs: user_events:other: recorded without the filter 'x': Field not found\n"
    assert capsys.readouterr().err == told


def test_what_comes_while_it_is_set_up_is_set_too() -> None:
    tree = FakeTree()
    tree.came = ["a"]
    asked = WantedEvents(tree, Place("i"), [Wanted("a", "x == 1", ("t",))])
    asked.begin()
    assert tree.texts()[2:] == [
        "events/user_events/a/filter: x == 1",
        "standing_events: a",
        "events/user_events/a/trigger: t",
    ]
    tree.written.clear()
    asked.check()
    assert (tree.written, asked.refused) == ([], [])


def test_a_line_that_does_not_fit_a_new_event_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    tree = FakeTree()
    asked = WantedEvents(
        tree, Place("i"), [Wanted("a", "nosuch == 1", ("bad",)), Wanted("fine", "x == 1", ("t",))]
    )
    asked.begin()
    tree.events += ["a", "fine", "other"]
    # The daemon's canonical form of the standing lines.
    tree.files["instances/i/events/user_events/a/filter"] = (
        b"nosuch == 1\n      ^\nparse_error: Field not found\n\n"
    )
    tree.files["instances/i/events/user_events/fine/filter"] = b"x == 1\n"
    tree.slots.add(("instances/i/events/user_events/fine/trigger", b"t"))
    asked.check()
    asked.check()
    assert capsys.readouterr().err.splitlines() == [
        f"utracefs: user_events:a: {NO_FIELD}",
        "  nosuch == 1",
        "        ^",
        "utracefs: user_events:a: trigger: there is no trigger 'bad'",
        "  bad",
    ]
    assert asked.finish() == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_an_event_that_is_gone_meanwhile_is_no_error() -> None:
    class Fleeting(FakeTree):
        def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
            if "/events/" in path:
                self.events.clear()
                raise FileNotFoundError(errno.ENOENT, "gone", path)
            return super().write_file(path, data, truncate)

    asked = WantedEvents(Fleeting("a"), Place("i"), [Wanted("a", "x == 1", ("t",))])
    asked.begin()
    assert asked.refused == []


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError()])
def test_a_daemon_that_goes_away_is_no_refusal(error: OSError) -> None:
    class Broken(FakeTree):
        def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
            raise error

    for wanted in (Wanted("a", "x == 1"), Wanted("a", "", ("t",)), Wanted("b", "x == 1")):
        with pytest.raises(type(error)):
            WantedEvents(Broken("a"), Place("i"), [wanted]).begin()


def test_what_the_standing_files_refuse_names_the_line() -> None:
    class Full(FakeTree):
        def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
            raise OSError(errno.E2BIG, "standing_filters has at most 1024 lines", path)

    with pytest.raises(OSError, match="at most 1024") as caught:
        WantedEvents(Full(), Place("i"), [Wanted("a", "x == 1")]).begin()
    assert caught.value.filename == "a x == 1"


def test_what_did_not_fit_an_event_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    tree = FakeTree()
    asked = WantedEvents(tree, Place("i"), [Wanted("a", triggers=("hist:keys=x",))])
    asked.begin(enable=False)
    asked.check_log()
    tree.files["instances/i/error_log"] = (
        b"[    1.000000] hist:user_events:a: error: Couldn't find field\n"
        b"  Command: hist:keys=x\n                     ^\n"
    ) * 2
    asked.check_log()
    asked.check_log()
    assert capsys.readouterr().err.splitlines() == [
        "utracefs: user_events:a: trigger: Couldn't find field",
        "  hist:keys=x",
        "            ^",
    ]
    assert asked.finish() == 1


@pytest.mark.parametrize(
    ("wanted", "reason", "detail"),
    [
        (Wanted("b", "x => 1"), f"filter: {NO_OPERATOR}", "  x => 1\n    ^"),
        (
            Wanted("b*", "", ("traceoff", "traceoff:3 if x => 1")),
            f"trigger: {NO_OPERATOR}",
            "  traceoff:3 if x => 1\n                  ^",
        ),
    ],
)
def test_what_no_event_will_fit_is_refused_before_there_is_one(
    wanted: Wanted, reason: str, detail: str
) -> None:
    tree = FakeTree("a")
    with pytest.raises(Failure) as caught:
        WantedEvents(tree, Place("i"), [Wanted("a", "fine to the fake"), wanted]).begin()
    failure = caught.value
    assert (failure.about, failure.reason, failure.detail) == (wanted.pattern, reason, detail)
    assert not [path for path, _ in tree.written if path.startswith("standing")]


def test_the_fields_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    tree = FakeTree("a")
    tree.files["events/user_events/a/format"] = (
        b"name: a\nID: 1500\nformat:\n\tfield:u32 n;\toffset:8;\tsize:4;\tsigned:0;\n"
        b'\tfield:u8 other;\toffset:12;\tsize:1;\tsigned:0;\n\nprint fmt: "n", REC->n\n'
    )
    with pytest.raises(Failure, match="filter: Field not found; it has n, other"):
        WantedEvents(tree, Place("i"), [Wanted("a", "nosuch")]).begin()
