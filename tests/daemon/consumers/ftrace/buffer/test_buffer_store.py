"""The place of a ring buffer: in files or, without enough space, in memory, with all its records.

Sizes and their texts are tested through the tree (tests/daemon/tree/test_instance_files.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.restarting import (
    WARNING,
    daemon_in,
    die,
    emit,
    files,
    finish,
    read,
    register,
    write,
)
from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.buffer.buffer_store import BufferStore
from utracefsd.consumers.ftrace.settings import Settings
from utracefsd.daemon import Daemon


class Storage:
    """Notes its calls, with the settings at that time."""

    adopted: RingBuffer | None = None

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.told: list[tuple[str, Any]] = []

    def new_folder(self) -> str:
        path = self.folder / str(len(list(self.folder.iterdir())))
        path.mkdir()
        return str(path)

    def remove_folder(self, folder: str) -> None:
        self.told.append(("remove_folder", os.path.basename(folder)))

    def switch_to(self, folder: str) -> None:
        self.told.append(("switch_to", os.path.basename(folder)))

    def remove(self) -> None:
        self.told.append(("remove", None))

    def leave(self, why: OSError) -> None:
        self.told.append(("leave", self.settings.in_memory))


def test_the_calls_of_the_storage(tmp_path: Path, room: Callable[..., None]) -> None:
    """The settings say that a buffer is in memory, and its size, before the storage is called: without a
    buffer the next daemon needs its size."""
    settings = Settings()
    storage = Storage(tmp_path, settings)
    store = BufferStore(settings, nr_cpus=1, storage=storage, free_memory_kb=lambda: 1 << 20)
    replaced: list[RingBuffer] = []
    store.on_replaced = lambda buffer: replaced.append(buffer)
    store.set_subbuf_size(8)
    assert (storage.told, settings.in_memory) == ([("switch_to", "0"), ("switch_to", "1")], ())
    assert replaced == [store.buffer]
    storage.told.clear()
    room(1000)
    store.set_subbuf_size(16)
    assert storage.told == [("remove_folder", "2"), ("leave", (16384, store.buffer.size_kb(0)))]
    store.resize(100)
    store.remove()
    assert len(storage.told) == 2, "nothing more: it was left"
    assert settings.in_memory == (16384, store.buffer.size_kb(0))


@pytest.mark.parametrize(
    "operation",
    [
        lambda daemon: write(daemon, b"events/enable", b"1"),
        lambda daemon: write(daemon, b"standing_events", b"b*\n"),
        lambda daemon: write(daemon, b"per_cpu/cpu0/buffer_size_kb", b"100"),
        lambda daemon: write(daemon, b"buffer_subbuf_size_kb", b"64"),
    ],
)
def test_each_operation_that_needs_room(
    folder: Path,
    room: Callable[..., None],
    log: pytest.LogCaptureFixture,
    operation: Callable[[Daemon], None],
) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    room(20 << 10)
    operation(daemon)
    assert daemon.instances.top.buffer.folder is None
    assert log.text.count(WARNING) == 1
    assert files(folder) == ["cells", "journal", "room", "state", "user_events_status"]
    finish(daemon)


def test_when_memory_is_short_the_operation_fails(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 n")
    write(daemon, b"events/enable", b"1")
    emit(event, 1)
    room(0)
    monkeypatch.setattr(daemon.instances.top.store, "free_memory_kb", lambda: 100)
    with pytest.raises(TraceError) as failure:
        write(daemon, b"buffer_size_kb", b"4096")
    assert failure.value.errno == errno.ENOMEM
    monkeypatch.setattr(daemon.instances.top.store, "free_memory_kb", lambda: 1 << 62)
    with pytest.raises(TraceError) as failure:
        write(daemon, b"buffer_size_kb", b"%d" % (1 << 40))
    assert failure.value.errno == errno.ENOMEM
    assert b"n=0x1" in read(daemon, b"trace")
    finish(daemon)


def test_the_size_of_before_cannot_be_had(folder: Path, log: pytest.LogCaptureFixture) -> None:
    old = daemon_in(folder)
    register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    assert old.state is not None
    nr_cpus = old.instances.top.nr_cpus
    old.instances.top.settings.in_memory = (4096, *[1 << 40] * nr_cpus)
    old.state.folder.buffers_of(0).folder = ""
    old.state.folder.on_buffer_moved(0)
    die(old)
    new = daemon_in(folder)
    assert log.text.count("stays at its smallest size") == 1
    event = register(new, b"a u32 n")
    emit(event, 1)
    assert b"n=0x1" in read(new, b"trace")
    finish(new)


def test_another_number_of_cpus(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    room(0)
    die(daemon_in(folder))
    monkeypatch.setattr("utracefsd.daemon.possible_cpus", lambda: 77)
    new = daemon_in(folder)
    assert "and there are 77" in log.text
    finish(new)
