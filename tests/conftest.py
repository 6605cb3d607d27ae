"""For all tests."""

from __future__ import annotations

import gc
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.left_over import LeftOver, watch
from utracefsd.server.runtime import Runtime

# A shell that runs something in the background lets it ignore SIGINT, and nohup SIGHUP; so would every
# program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("utracefs", deadline=None)
hypothesis.settings.load_profile("utracefs")


@pytest.fixture(scope="session", autouse=True)
def left_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeftOver]:
    """The last test of this process fails if one of them left files, daemons' folders or programs."""
    tmp_path_factory.getbasetemp()  # pytest's own, which stays for who looks
    left_over = watch()
    yield left_over
    gc.collect()
    deadline = time.monotonic() + 5  # for those that are just ending
    while (found := left_over.report()) and time.monotonic() < deadline:
        time.sleep(0.1)
    left_over.remove()
    assert not found, "tests left behind:\n" + "\n".join(found)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon that is cancelled leaves its state to a successor; after a test there is none."""
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
