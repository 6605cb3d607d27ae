"""Messages to the daemon about enablers in address spaces, and the handling of its answers."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from tests.client.mount.kernel.fake_kernel import NIL, FakeChannel, FakeMemory, FakeSpace, Kernel
from utracefs.mount.data_connections import AWAY_S
from utracefs.mount.enablers import Enablers
from utracefs.mount.operation import Operation, Steps
from utracefs.mount.processes.address_space import Enabler
from utracefs_protocol.connection import Notification
from utracefs_protocol.messages.data import (
    EnablersWritten,
    EventRegistration,
    EventUnregistration,
    NotifyEnablers,
    OpenFor,
)
from utracefs_protocol.messages.rows import Params

WORD = 0x3000


class Daemon:
    """Every event is as `enabled` says; commands in `errors` are refused."""

    def __init__(self) -> None:
        self.enabled = False
        self.errors: dict[bytes, int] = {}
        self.silent = False

    def __call__(self, params: Params) -> Any:
        if self.silent:
            return None
        if isinstance(params, EventRegistration):
            if params.name_args in self.errors:
                raise OSError(self.errors[params.name_args], "refused")
            return {"status_index": 1, "id": 300, "enabled": int(self.enabled)}
        return NIL


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


class LateMemory(FakeMemory):
    """Runs jobs on demand."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Any]] = []
        self.is_late = False

    def submit(self, job: Any, resume: Any, *, is_urgent: bool = False) -> None:
        self.jobs.append((job, resume))
        if not self.is_late:
            self.run()

    def run(self) -> None:
        while self.jobs:
            super().submit(*self.jobs.pop(0))


class World:
    """A mount's enablers."""

    def __init__(self, daemon: Daemon) -> None:
        self.kernel = Kernel(daemon)
        self.memory = LateMemory()
        self.spaces = self.kernel.spaces
        self.connections = self.kernel.connections
        self.enablers = Enablers(
            self.connections,
            self.memory,  # type: ignore[arg-type]
            self.spaces,  # type: ignore[arg-type]
            watch_process=self.kernel.watch_process,
        )

    def space(self, pid: int = 77) -> FakeSpace:
        space = self.spaces.spaces[pid] = FakeSpace(pid, 1000)
        space.map(WORD)
        return space

    def add(self, space: FakeSpace, bit: int, command: bytes = b"shop", address: int = WORD) -> Enabler:
        """OSError."""
        enabler = Enabler(4, command, 0, self.enablers.new_token())
        space.enablers[address, bit] = enabler
        errors: list[int] = []

        def steps() -> Steps:
            told = yield from self.enablers.add(space, (address, bit), enabler)  # type: ignore[arg-type]
            yield self.memory(self.enablers.write_bit, told, enabler.token)
            return b""

        Operation(steps(), lambda _reply, number: errors.append(number)).start()
        if errors and errors[0]:
            raise OSError(errors[0], "add")
        return enabler

    @property
    def channels(self) -> list[FakeChannel]:
        return self.kernel.data_channels

    def change(self, seq: int, *pairs: tuple[Enabler, int], channel: int = 0) -> None:
        params = [seq, [[enabler.token, on] for enabler, on in pairs]]
        self.channels[channel].on_notification(Notification("enablers_changed", params))


@pytest.fixture
def world(daemon: Daemon) -> World:
    return World(daemon)


def registered(channel: FakeChannel) -> list[tuple[bytes, int | None]]:
    return [(one.name_args, one.token) for one in channel.asked_for(EventRegistration)]


class TestChanges:
    def test_bits_are_set_and_acknowledged(self, world: World) -> None:
        space = world.space()
        one, two = world.add(space, 0), world.add(space, 9, b"other")
        world.change(1, (one, 1), (two, 1))
        assert space.word(WORD) == 1 | 1 << 9
        world.change(2, (one, 0))
        assert space.word(WORD) == 1 << 9
        assert world.channels[0].notified == [EnablersWritten(1), EnablersWritten(2)]

    def test_the_last_state_wins_however_late_the_thread_is(self, world: World) -> None:
        space = world.space()
        one = world.add(space, 0)
        world.memory.is_late = True
        world.change(1, (one, 1))
        world.change(2, (one, 0))
        assert world.channels[0].notified == []
        world.memory.run()
        assert space.word(WORD) == 0
        assert world.channels[0].notified == [EnablersWritten(1), EnablersWritten(2)]

    def test_new_children_are_looked_for_after_the_bits(self, world: World) -> None:
        space = world.space()
        enablers = [world.add(space, bit) for bit in range(3)]
        world.memory.is_late = True
        world.kernel.timers.run(blocking=False)
        world.memory.run()
        before = world.spaces.refreshes
        for seq, enabler in enumerate(enablers, 1):
            world.change(seq, (enabler, 1))
        world.kernel.timers.run(blocking=False)
        world.memory.run()
        assert world.spaces.refreshes == before + 2  # the second and third change were set together

    def test_an_enabler_that_was_taken_back_is_left_alone(self, world: World) -> None:
        space = world.space()
        one = world.add(space, 0)
        world.memory.is_late = True
        world.change(1, (one, 1))
        space.remove(WORD, 0)
        world.memory.run()
        world.memory.is_late = False
        world.enablers.remove(space, one)  # type: ignore[arg-type]
        world.change(2, (one, 1))
        assert space.word(WORD) == 0
        assert world.channels[0].notified == [EnablersWritten(1), EnablersWritten(2)]
        assert world.channels[0].asked_for(EventUnregistration) == [EventUnregistration(token=one.token)]

    @pytest.mark.parametrize("seconds", [0.05, 5])
    def test_a_word_that_cannot_be_written_is_tried_again(self, world: World, seconds: float) -> None:
        space = world.space()
        one = world.add(space, 0)
        space.read_only.add(WORD)
        world.change(1, (one, 1))
        assert world.channels[0].notified == [EnablersWritten(1)], "who enables does not wait for it"
        world.kernel.pass_time(seconds)
        space.read_only.clear()
        world.kernel.pass_time(1.2 * seconds)
        assert space.word(WORD) == 1

    def test_changes_meanwhile_add_no_retries(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        space = world.space()
        one, other = world.add(space, 0), world.add(space, 9)
        world.kernel.timers.run(blocking=False)
        tries: list[int] = []
        monkeypatch.setattr(FakeSpace, "set_bit", lambda *arguments: tries.append(arguments[3]))
        for seq in range(1, 101):
            world.change(seq, (one, seq % 2))
        world.change(101, (other, 1))
        assert (tries.count(0), tries.count(9)) == (100, 1)
        world.kernel.pass_time(11)
        assert (tries.count(0), tries.count(9)) == (110, 11)

    def test_is_acknowledged_when_new_children_have_it(self, world: World, daemon: Daemon) -> None:
        """As in the kernel, where a write to `enable` returns then."""
        space = world.space()
        one = world.add(space, 0)
        child = world.spaces.fork(space, 78)
        daemon.silent = True  # for its connection
        world.change(1, (one, 1))
        assert child.word(WORD) == 1
        assert world.channels[0].notified == [EnablersWritten(1)]

    def test_and_then_left_until_the_next_change(self, world: World) -> None:
        space = world.space()
        one = world.add(space, 0)
        space.read_only.add(WORD)
        world.change(1, (one, 1))
        world.kernel.pass_time(11)
        assert not world.kernel.timers.queue
        space.read_only.clear()
        world.kernel.pass_time(1)
        assert space.word(WORD) == 0
        world.change(2, (one, 1))
        assert space.word(WORD) == 1

    def test_what_cannot_be_understood(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        world.add(world.space(), 0)
        channel = world.channels[0]
        with caplog.at_level(logging.ERROR):
            channel.on_notification(Notification("enablers_changed", [1, "x"]))
            channel.on_notification(Notification("news", []))
        assert len(caplog.records) == 1 and channel.notified == []


class TestConnections:
    def test_one_for_each_address_space(self, world: World) -> None:
        spaces = [world.space(77), world.space(78)]
        for space in spaces:
            for bit in range(2):
                world.add(space, bit)
        assert len(world.channels) == 2
        for space, channel in zip(spaces, world.channels, strict=True):
            assert channel.log[:2] == [OpenFor(space.pid, 5000, 1000, 0), NotifyEnablers()]
            assert len(registered(channel)) == 2

    def test_two_threads_at_once_make_one(self, world: World, daemon: Daemon) -> None:
        space = world.space()
        daemon.silent = True
        world.add(space, 0)
        world.add(space, 1, b"other")
        [channel] = world.channels
        while channel.asked:
            params = next(iter(channel.asked.values())).params
            is_event = isinstance(params, EventRegistration)
            channel.answer({"status_index": 1, "id": 300, "enabled": 1} if is_event else None)
        assert space.word(WORD) == 3
        assert sorted(name for name, _ in registered(channel)) == [b"other", b"shop"]

    def test_a_connection_that_fails_is_tried_again_by_the_next(self, world: World) -> None:
        space = world.space()
        one = world.add(space, 0)
        world.channels[0].end()
        two = world.add(space, 1)
        assert sorted(registered(world.channels[1])) == [(b"shop", one.token), (b"shop", two.token)]


class TestProcesses:
    def test_a_child_has_copies(self, world: World, daemon: Daemon) -> None:
        parent = world.space(77)
        one = world.add(parent, 0)
        child = world.spaces.fork(parent, 78)
        daemon.enabled = True
        world.change(1, (one, 1))
        world.kernel.timers.run(blocking=False)
        assert world.channels[1].log[0] == OpenFor(78, 5000, 1000, 0)
        assert (parent.word(WORD), child.word(WORD)) == (1, 1)
        [copy] = child.enablers.values()
        assert copy.token
        child.remove(WORD, 0)
        world.enablers.remove(child, copy)  # type: ignore[arg-type]
        world.change(2, (one, 0))
        assert (parent.word(WORD), child.word(WORD)) == (0, 1), "the child's own now"

    def test_the_child_of_an_event_that_is_gone(self, world: World, daemon: Daemon) -> None:
        parent = world.space(77)
        world.add(parent, 0)
        world.add(parent, 1, b"other")
        child = world.spaces.fork(parent, 78)
        child.write(WORD, b"\x03")
        daemon.errors[b"shop"] = errno.EADDRINUSE
        world.spaces.refresh()
        assert list(child.enablers) == [(WORD, 1)]
        assert child.word(WORD) == 0

    def test_an_ended_process_is_not_notified(self, world: World) -> None:
        space = world.space()
        world.add(space, 0)
        world.spaces.gone.append(space)
        world.enablers.refresh_later()
        world.kernel.timers.run(blocking=False)
        assert world.channels[0].closed and world.enablers.leaving.is_open
        world.enablers.daemon_came()
        assert len(world.channels) == 1

    def test_the_end_of_a_process_is_noticed(self, world: World) -> None:
        space = world.space()
        world.add(space, 0)
        world.spaces.gone.append(space)
        world.kernel.watched[77]()
        world.kernel.timers.run(blocking=False)
        assert world.channels[0].closed and not world.kernel.watched

    def test_a_process_that_cannot_be_watched(self, world: World) -> None:
        def fail(pid: int, on_end: Any) -> Any:
            raise ProcessLookupError(errno.ESRCH, "ended")

        world.enablers.watch_process = fail
        space = world.space()
        world.add(space, 0)
        world.spaces.gone.append(space)
        world.enablers.refresh_later()
        world.kernel.timers.run(blocking=False)
        assert world.channels[0].closed

    def test_a_process_that_ends_during_a_request(self, world: World, daemon: Daemon) -> None:
        space = world.space()
        daemon.silent = True
        world.add(space, 0)
        world.spaces.gone.append(space)
        world.enablers.refresh_later()
        world.kernel.timers.run(blocking=False)
        [channel] = world.channels
        assert not channel.closed
        while channel.asked:
            params = next(iter(channel.asked.values())).params
            is_event = isinstance(params, EventRegistration)
            channel.answer({"status_index": 1, "id": 300, "enabled": 1} if is_event else None)
        assert channel.closed

    def test_many_children(self, world: World, daemon: Daemon) -> None:
        """More than the queue of the daemon's socket has room for."""
        parent = world.space(77)
        world.add(parent, 0)
        children = [world.spaces.fork(parent, 100 + i) for i in range(50)]
        world.kernel.refused_connections = 30
        daemon.enabled = True
        world.spaces.refresh()
        world.kernel.pass_time(1)
        assert [child.word(WORD) for child in children] == [1] * 50

    def test_looking_for_processes_fails(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        def fail() -> None:
            raise OSError(errno.EMFILE, "no more descriptors")

        world.spaces.refresh = fail  # type: ignore[method-assign]
        with caplog.at_level(logging.ERROR):
            world.enablers.refresh_later()
            world.kernel.timers.run(blocking=False)
        assert "no more descriptors" in caplog.text


def test_the_next_daemon_gets_all_registrations(world: World, daemon: Daemon) -> None:
    world.connections.reconnects = True
    spaces = [world.space(77), world.space(78)]
    enablers = [world.add(space, bit) for space in spaces for bit in range(2)]
    for channel in world.channels:
        channel.end()
    world.channels.clear()
    daemon.enabled = True
    world.enablers.daemon_came()
    assert [space.word(WORD) for space in spaces] == [3, 3]
    assert [token for channel in world.channels for _, token in registered(channel)] == [
        enabler.token for enabler in enablers
    ]


def test_a_child_born_without_a_daemon_gets_the_next(world: World, daemon: Daemon) -> None:
    world.connections.reconnects = True
    parent = world.space(77)
    world.add(parent, 0)
    world.channels[0].end()
    child = world.spaces.fork(parent, 78)
    daemon.enabled = True
    world.enablers.daemon_came()
    world.kernel.pass_time(0.01)
    assert (parent.word(WORD), child.word(WORD)) == (1, 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_bits_of_an_undiscovered_child_are_cleared(world: World, daemon: Daemon, is_known: bool) -> None:
    """Whether the mount has noticed already that the daemon went, or not."""
    world.connections.reconnects = True
    parent = world.space(77)
    daemon.enabled = True
    world.add(parent, 0)
    child = world.spaces.fork(parent, 78)
    if is_known:
        world.connections.is_away = True
    else:
        world.kernel.refused_connections = 1000
    world.channels[0].end()
    world.kernel.pass_time(0.1 if is_known else 2 * AWAY_S)
    assert (parent.word(WORD), child.word(WORD)) == (0, 0)


def test_so_they_are_at_the_end(world: World, daemon: Daemon) -> None:
    parent = world.space(77)
    daemon.enabled = True
    world.add(parent, 0)
    child = world.spaces.fork(parent, 78)
    world.enablers.close()
    assert (parent.word(WORD), child.word(WORD)) == (0, 0) and world.spaces.closed


def test_a_daemon_that_ends_during_a_notification(world: World, daemon: Daemon) -> None:
    world.connections.reconnects = True
    space = world.space()
    daemon.silent = True
    world.add(space, 0)
    daemon.silent = False
    daemon.enabled = True
    world.channels[0].end()
    world.kernel.pass_time(0.5)
    assert space.word(WORD) == 1 and len(world.channels) == 2
