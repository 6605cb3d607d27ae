"""For all tests."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from utracefsd.server.runtime import Runtime

# A shell that runs something in the background lets it ignore SIGINT, and so would every program that a test
# starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("utracefs", deadline=None)
hypothesis.settings.load_profile("utracefs")


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
