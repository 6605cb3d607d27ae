"""The imports of a program that declares one event. One careless line imports a heavy module, and a test of
times would be too noisy to see it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import utracefs
import utracefs_protocol
from tests.client.daemons.fake_daemon import FakeDaemon

PATH = os.pathsep.join(str(Path(*package.__path__[:1]).parent) for package in (utracefs, utracefs_protocol))

HEAVY = {
    *("ast", "dis", "inspect", "linecache", "tokenize", "traceback", "warnings"),
    *("attr", "attrs", "dataclasses", "typing", "typing_extensions"),
    *("asyncio", "concurrent", "logging", "multiprocessing", "subprocess", "threading", "trio"),
    *("selectors", "signal", "socket"),
    *("fnmatch", "glob", "pathlib", "shutil", "tempfile", "urllib"),
    *("array", "contextlib", "contextvars", "copy", "enum", "functools", "re", "string", "types", "weakref"),
    *("click", "importlib", "msgpack", "rich", "ipaddress", "json", "platform", "random", "unicodedata"),
    "utracefs.producer._span",
}
"""No program that emits needs these. Besides our own, without spans, it imports os, with what belongs to
it."""


def modules_after(code: str) -> set[str]:
    """In an interpreter without `site`, which may import anything for reasons of the installation."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def brought_by(code: str) -> set[str]:
    """Less what the interpreter imports for itself: linecache for -c, in Python 3.13."""
    return modules_after(code) - modules_after("pass")


def test_importing_the_package_imports_nothing_but_its_core() -> None:
    found = brought_by("import utracefs")
    assert {name for name in found if "cython" not in name} == {
        "utracefs",
        "utracefs.producer._emit",
        "utracefs.producer._event",
        "utracefs.producer",
        "utracefs.producer.fallback",
        "utracefs.producer.fallback._interpreter",
        "utracefs.producer.fallback.available",
    }


FIRST = "import utracefs; event = utracefs.event('first u32 a; __rel_loc char[] s'); event.emit(1, 'x')"


def test_the_first_event_without_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UTRACEFS_DIR", str(tmp_path))
    assert not brought_by(FIRST) & HEAVY


def test_the_first_event_with_a_daemon(daemon: FakeDaemon) -> None:
    found = brought_by(f"{FIRST}\nwhile not event.registered: pass")
    assert not found & HEAVY


REFUSED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("attr", "attrs", "click", "msgpack", "rich", "trio"):
            raise SystemExit(f"imports {name}")
sys.meta_path.insert(0, Refuse())
"""


def test_a_program_that_emits_needs_no_other_distribution(daemon: FakeDaemon) -> None:
    daemon.enabled_from_start.add(b"first u32 a; __rel_loc char[] s")
    modules_after(f"{REFUSED}\n{FIRST}\nassert utracefs.stats().emitted == 1\nutracefs.close()")
    assert len(daemon.last.records) == 1


def test_statistics_are_there_with_the_first_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have lost its right to import them when it asks."""
    monkeypatch.setenv("UTRACEFS_DIR", str(tmp_path))
    assert "utracefs.producer.totals" in modules_after(FIRST)
