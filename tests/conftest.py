"""Fixtures and settings of all tests."""

from __future__ import annotations

import collections
import faulthandler
import gc
import os
import re
import shutil
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_timeout

from tests.client.nats.server import NatsServer, serving
from tests.forked import COVERAGE, end_template
from tests.judges import LEFT_OUT, Judges
from tests.left_over import LeftOver, descriptors, descriptors_since, watch
from utracefsd.server.runtime import Runtime

# A shell makes background programs ignore SIGINT, and nohup SIGHUP; programs that a test starts and
# interrupts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


LONG = "left out as long: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ci",
        action="store_true",
        help="Also long tests and more examples; a missing judge fails its tests.",
    )


def pytest_configure(config: pytest.Config) -> None:
    Judges.all_needed = config.getoption("ci")
    if hasattr(config, "workerinput"):
        # A test that exceeds its time limit ends its worker, and standard output of a worker is lost.
        pytest_timeout.dump_stacks = lambda _terminal: faulthandler.dump_traceback(2)
        # In a new interpreter coverage costs 95 ms of CPU time, and forks of the template run the same code.
        os.environ.pop(COVERAGE, None)
        begin_elsewhere(config)
    gc.disable()
    # The duration of an example shows how busy the machine is. With --ci the examples are always the same:
    # whether a change passes must not be left to chance.
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
    hypothesis.settings.register_profile("quick", deadline=None, max_examples=30)
    hypothesis.settings.load_profile("ci" if config.getoption("ci") else "quick")


def begin_elsewhere(config: pytest.Config) -> None:
    """Each worker collects all files, but begins in another place: so each rewrites the assertions of a
    part, and reads the others' parts from the cache."""
    args = config.args
    if args == config.getini("testpaths"):
        args = sorted(str(path) for path in (config.rootpath / "tests").rglob("test_*.py"))
    place = config.workerinput  # type: ignore[attr-defined]
    first = len(args) * int(place["workerid"].removeprefix("gw")) // place["workercount"]
    config.args = [*args[first:], *args[:first]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") and not config.getoption("ci"):
            item.add_marker(pytest.mark.skip(reason=LONG + item.name))
    # Long tests start first, so that none of them runs alone at the end; and all workers need one order.
    items.sort(
        key=lambda i: (-max([120, *(mark.args[0] for mark in i.iter_markers("timeout"))]), str(i.path))
    )


def pytest_collection_finish() -> None:
    """Half a million objects of the tests themselves stay: a collection visits only what tests make."""
    gc.enable()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line about tests that only --ci runs."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    judges = collections.Counter(
        word.rstrip("')") for reason in reasons for word in reason.partition(LEFT_OUT)[2].split()[:1]
    )
    long = sum(LONG in reason for reason in reasons)
    parts = [f"{number} without {name}" for name, number in sorted(judges.items())]
    if long:
        parts.append(f"{long} long ones")
    since = collections.Counter(
        found[0] for reason in reasons if (found := re.search(r"since .*[^')]", reason))
    )
    parts += [f"{number} {reason}" for reason, number in since.items()]
    if parts:
        terminalreporter.write_line(f"left out, for `make ci`: {', '.join(parts)}")


FILE = pytest.StashKey[tuple[Path, set[tuple[str, str]]]]()
"""The file of the present test, and the descriptors that were open before its first one."""

CHECKED = ("daemon", "protocol", "client/c")
"""Folders whose tests must leave no descriptor open."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """The last test of a file fails if its tests left descriptors open. Here the objects of the test and of
    its fixtures are free."""
    if not any(item.path.is_relative_to(Path(__file__).parent / room) for room in CHECKED):
        return (yield)
    stash = item.config.stash
    if FILE not in stash or stash[FILE][0] != item.path:
        stash[FILE] = (item.path, descriptors())
    done = yield
    if (nextitem is None or nextitem.path != item.path) and (left := descriptors_since(stash[FILE][1])):
        text = f"tests of {item.path.name} left descriptors open: {left}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "teardown")
        item.ihook.pytest_runtest_logreport(report=report)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A worker cannot send a text with bytes that are not UTF-8, and would end the whole run."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_sendable(key): _sendable(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(_sendable(each) for each in value)
    return value


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with serving(tmp_path / "nats") as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def left_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeftOver]:
    """The last test of this process fails if the tests left files, daemons' folders, mounts or programs."""
    left_over = watch(tmp_path_factory.getbasetemp())  # pytest's own, which stays for inspection
    yield left_over
    end_template()
    gc.collect()
    deadline = time.monotonic() + 5  # some are just ending
    while (found := left_over.report()) and time.monotonic() < deadline:
        time.sleep(0.1)
    left_over.remove()
    assert not found, "tests left behind:\n" + "\n".join(found)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cancelled daemon leaves its state to the next one; after a test there is no next one."""
    folders: set[Path] = set()
    prepare = Runtime.prepare

    def note(place: Runtime, *, reachable: bool = False) -> Runtime:
        prepared = prepare(place, reachable=reachable)
        folders.add(prepared.status_folder)
        return prepared

    monkeypatch.setattr(Runtime, "prepare", note)
    yield
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
