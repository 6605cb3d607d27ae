"""The owner of memory: through fork, exec, vfork and the end, and for an ordinary user."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.mount.kernel.canary import Canary
from utracefs.mount.processes import address_space
from utracefs.mount.processes.address_space import AddressSpace, AddressSpaces, Enabler
from utracefs.mount.processes.procfs import stat_of

ROOT = Path(__file__).parents[4]


class Listener:
    """Makes them, and notes what they tell."""

    def __init__(self) -> None:
        self.now = 100.0
        self.spaces = AddressSpaces(lambda: self.now)
        self.spaces.on_born, self.spaces.on_gone = self.born, self.gone
        self.told: list[tuple[object, ...]] = []

    def born(self, child: AddressSpace, parent: AddressSpace) -> None:
        self.told.append(("born", child.pid, parent.pid))

    def gone(self, space: AddressSpace) -> None:
        self.told.append(("gone", space.pid))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told


@pytest.fixture
def listener() -> Iterator[Listener]:
    before = os.listdir("/proc/self/fd")
    listener = Listener()
    yield listener
    listener.spaces.close()
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= len(before))


@pytest.fixture
def spaces(listener: Listener) -> AddressSpaces:
    return listener.spaces


def enabler(command: bytes = b"event u32 a", token: int = 1) -> Enabler:
    return Enabler(8, command, 0, token)


def error_of(call: Callable[..., object], *args: object) -> OSError:
    with pytest.raises(OSError) as caught:
        call(*args)
    return caught.value


def word(pid: int, canary: Canary, place: str = "private") -> int:
    """As /proc says it, by another way than what is tested."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(canary.at[place])
        return int.from_bytes(file.read(8), "little")


def test_callers(spaces: AddressSpaces, canary: Canary) -> None:
    space = spaces.of_caller(canary.pid)
    assert (space.pid, space.uid, space.gid) == (canary.pid, os.geteuid(), os.getegid())
    assert space.start_time == int(
        Path(f"/proc/{canary.pid}/stat").read_text().rpartition(")")[2].split()[19]
    )
    assert space.read_string(canary.at["text"], 511) == b"u32 a; u32 b"
    assert space.is_alive()
    assert spaces.of_caller(canary.pid) is space
    assert list(spaces) == [space]


def test_any_thread_of_a_process_calls(spaces: AddressSpaces, canary: Canary) -> None:
    space = spaces.of_caller(canary.pid)
    canary.say("threads 2")
    tids = [int(tid) for tid in os.listdir(f"/proc/{canary.pid}/task")]
    assert len(tids) == 3
    assert {spaces.of_caller(tid) for tid in tids} == {space}


def test_enablers(spaces: AddressSpaces, canary: Canary) -> None:
    space = spaces.of_caller(canary.pid)
    at = canary.at["private"]
    one = enabler()
    space.add(at, 31, one)
    assert space.enablers == {(at, 31): one}
    assert error_of(space.add, at, 31, enabler()).errno == errno.EADDRINUSE
    space.add(at, 30, enabler(b"other"))
    assert space.remove(at, 31) is one
    assert error_of(space.remove, at, 31).errno == errno.ENOENT
    assert list(space.enablers) == [(at, 30)]


def test_children_inherit(listener: Listener, canary: Canary) -> None:
    """user_event_mm_dup(): what the parent has at the fork, in memory of their own."""
    spaces, at = listener.spaces, canary.at["private"]
    space = spaces.of_caller(canary.pid)
    space.add(at, 31, enabler(token=7))
    [first] = canary.fork()
    space.add(at, 30, enabler(token=8))
    assert listener.take() == [("born", first, canary.pid)]
    [second] = canary.fork()
    removed = space.remove(at, 31)
    assert removed.token == 7
    assert listener.take() == [("born", second, canary.pid)]
    by_pid = {space.pid: space for space in spaces}
    assert set(by_pid[first].enablers) == {(at, 31)}
    assert set(by_pid[second].enablers) == {(at, 31), (at, 30)}
    assert set(space.enablers) == {(at, 30)}
    assert by_pid[first].enablers[at, 31] == removed
    assert by_pid[first].enablers[at, 31] is not by_pid[second].enablers[at, 31]
    assert by_pid[second].set_bit(at, 8, 31, True)
    assert (word(canary.pid, canary), word(first, canary), word(second, canary)) == (0, 0, 1 << 31)
    assert spaces.of_caller(first) is by_pid[first]


def test_a_child_is_found_at_its_own_first_call(listener: Listener, canary: Canary) -> None:
    space = listener.spaces.of_caller(canary.pid)
    space.add(canary.at["private"], 31, enabler())
    [child] = canary.fork()
    found = listener.spaces.of_caller(child)
    assert (found.pid, set(found.enablers)) == (child, {(canary.at["private"], 31)})
    assert listener.take() == [("born", child, canary.pid)]


def test_an_orphan_inherits(listener: Listener, canary: Canary) -> None:
    """Its parent came and went between two looks: a program that makes itself a daemon."""
    space = listener.spaces.of_caller(canary.pid)
    space.add(canary.at["private"], 31, enabler())
    orphan = int(canary.say("orphan"))
    listener.spaces.refresh()
    assert listener.take() == [("born", orphan, canary.pid)]


def test_an_orphan_of_several_gets_what_all_of_them_have(listener: Listener, canary: Canary) -> None:
    spaces, at = listener.spaces, canary.at["private"]
    space = spaces.of_caller(canary.pid)
    space.add(at, 31, enabler())
    [child] = canary.fork()
    spaces.of_caller(child).add(at, 30, enabler())
    space.add(at, 29, enabler())
    orphan = int(canary.say("orphan"))
    spaces.refresh()
    [found] = [space for space in spaces if space.pid == orphan]
    assert set(found.enablers) == {(at, 31)}


def test_relatives_from_before_inherit_nothing(listener: Listener, canary: Canary) -> None:
    """The workers of a server that register for themselves: nothing is written into each other's memory."""
    spaces, at = listener.spaces, canary.at["private"]
    first, second = canary.fork(2)
    spaces.of_caller(first).add(at, 31, enabler())
    other = spaces.of_caller(second)
    assert not other.enablers
    [third] = canary.fork()
    spaces.refresh()
    assert third not in {space.pid for space in spaces if space.enablers}
    assert not spaces.of_caller(canary.pid).enablers
    orphan = int(canary.say("orphan"))
    spaces.refresh()
    assert not [space for space in spaces if space.pid == orphan and space.enablers]
    assert listener.take() == []


def test_exec_takes_all_away(listener: Listener, canary: Canary) -> None:
    spaces, at = listener.spaces, canary.at["private"]
    space = spaces.of_caller(canary.pid)
    space.add(at, 31, enabler())
    canary.exec()
    assert not space.is_alive()
    spaces.refresh()
    assert listener.take() == [("gone", canary.pid)]
    assert not list(spaces)
    assert not space.set_bit(at, 8, 31, True)
    assert not spaces.of_caller(canary.pid).enablers


def test_exec_is_found_at_the_next_call(listener: Listener, canary: Canary) -> None:
    space = listener.spaces.of_caller(canary.pid)
    space.add(canary.at["private"], 31, enabler())
    canary.exec()
    again = listener.spaces.of_caller(canary.pid)
    assert again is not space
    assert not again.enablers
    assert listener.take() == [("gone", canary.pid)]


def test_an_orphan_is_found_after_the_end_of_its_family(listener: Listener, canary_program: Path) -> None:
    """The parent forked, and ended before the mount looked."""
    canary = Canary(canary_program)
    children = []
    try:
        listener.spaces.of_caller(canary.pid).add(canary.at["private"], 31, enabler())
        children = canary.fork(2)
        for child in children:
            os.kill(child, signal.SIGSTOP)  # it shall survive the end of its parent
        canary.kill()
        listener.spaces.refresh()
        assert listener.take() == [
            *(("born", child, canary.pid) for child in children),
            ("gone", canary.pid),
        ]
        for child in children:
            os.kill(child, signal.SIGKILL)
        wait_for(lambda: not any(space.is_alive() for space in listener.spaces))
        listener.spaces.refresh()
        assert sorted(listener.take()) == sorted(("gone", child) for child in children)
    finally:
        canary.close()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_a_child_of_vfork_is_its_parent(listener: Listener, canary: Canary) -> None:
    spaces = listener.spaces
    space = spaces.of_caller(canary.pid)
    space.add(canary.at["private"], 31, enabler())
    child = int(canary.say("vfork"))
    assert spaces.of_caller(child) is space
    spaces.refresh()
    assert len(space.processes) == 2
    canary.say("vend")
    spaces.refresh()
    assert len(space.processes) == 1
    assert listener.take() == []


def test_pids_begin_anew(listener: Listener, canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one given out is lower than before, or not, after all were; or so many were that /proc is
    listed."""
    spaces = listener.spaces
    spaces.of_caller(canary.pid).add(canary.at["private"], 31, enabler())
    [child] = canary.fork()
    spaces.last_pid = 2**22
    spaces.refresh()
    assert listener.take() == [("born", child, canary.pid)]
    [child] = canary.fork()
    spaces.last_pid = address_space.last_pid()
    forks = address_space.fork_count()
    monkeypatch.setattr(address_space, "fork_count", lambda: forks + address_space.pid_max())
    spaces.refresh()
    assert listener.take() == []
    listener.now += 0.2
    spaces.refresh()
    assert listener.take() == [("born", child, canary.pid)]
    [child] = canary.fork()
    monkeypatch.setattr(address_space, "_MAX_SPAN", 0)
    spaces.refresh()
    assert listener.take() == [("born", child, canary.pid)]


def test_a_pid_is_given_out_before_its_process_is_there(
    listener: Listener, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = listener.spaces
    spaces.of_caller(canary.pid).add(canary.at["private"], 31, enabler())
    [child] = canary.fork()
    with monkeypatch.context() as patched:
        patched.setattr(address_space, "stat_of", lambda pid: None if pid == child else stat_of(pid))
        spaces.refresh()
        assert listener.take() == []
    listener.now += 0.01
    spaces.refresh()
    assert listener.take() == [("born", child, canary.pid)]


def test_a_number_without_an_owner(spaces: AddressSpaces) -> None:
    assert "pid namespace" in str(error_of(spaces.of_caller, 0))
    assert error_of(spaces.of_caller, 0).errno == errno.EPERM
    assert error_of(spaces.of_caller, 2**22 - 1).errno == errno.ESRCH


def test_limits(
    spaces: AddressSpaces, new_canary: Callable[..., Canary], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = new_canary(), new_canary()
    space = spaces.of_caller(one.pid)
    monkeypatch.setattr(address_space, "MAX_ENABLERS", 2)
    space.add(one.at["private"], 0, enabler())
    space.add(one.at["private"], 1, enabler())
    assert error_of(space.add, one.at["private"], 2, enabler()).errno == errno.ENOMEM
    monkeypatch.setattr(address_space, "MAX_OF_USER", 1)
    assert error_of(spaces.of_caller, other.pid).errno == errno.EMFILE
    assert spaces.of_caller(one.pid) is space
    monkeypatch.setattr(address_space, "MAX_OF_USER", 9)
    monkeypatch.setattr(address_space, "MAX_ADDRESS_SPACES", 1)
    assert error_of(spaces.of_caller, other.pid).errno == errno.EMFILE


def test_too_many_children_are_said_once(
    listener: Listener,
    canary: Canary,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener.spaces.of_caller(canary.pid).add(canary.at["private"], 0, enabler())
    monkeypatch.setattr(address_space, "MAX_OF_USER", 2)
    canary.fork(3)
    listener.spaces.refresh()
    assert len(list(listener.spaces)) == 2
    [record] = caplog.records
    assert f"[Errno {errno.EMFILE}] more than 2 address spaces with enablers of user id" in record.message


def test_hanging_memory_is_looked_at_a_few_times_only(
    canary: Canary, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    spaces = AddressSpaces(lambda: now[0])
    for _ in range(address_space.MAX_HANGS):
        spaces.note_hang(os.geteuid())
    assert error_of(spaces.of_caller, canary.pid).errno == errno.EFAULT
    now[0] += address_space.HANGS_S
    assert spaces.of_caller(canary.pid)
    assert len(caplog.records) == address_space.MAX_HANGS
    spaces.close()
    spaces.close()


REUSED = """
import os, subprocess, sys
from pathlib import Path
from tests.client.mount.kernel.canary import Canary
from utracefs.mount.processes.address_space import AddressSpaces, Enabler

gone = []
spaces = AddressSpaces()
spaces.on_gone = gone.append
one = Canary(Path(sys.argv[1]), "setarch", "-R")
space = spaces.of_caller(one.pid)
at = one.at["private"]
space.add(at, 31, Enabler(4, b"event", 0))
one.kill()
one.close()
Path("/proc/sys/kernel/ns_last_pid").write_text(str(one.pid - 1))
other = Canary(Path(sys.argv[1]), "setarch", "-R")
try:
    assert (other.pid, other.at["private"]) == (one.pid, at), (one.at, other.at)
    assert not space.set_bit(at, 4, 31, True)
    assert not space.is_alive()
    if sys.argv[2] == "call":
        assert spaces.of_caller(other.pid) is not space
    spaces.refresh()
    assert gone == [space]
    assert not spaces.of_caller(other.pid).enablers
    assert set(other.words().values()) == {0}
finally:
    other.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace")
@pytest.mark.parametrize("what", ["call", "refresh"])
def test_a_pid_is_given_out_again(canary_program: Path, what: str) -> None:
    """In a namespace of its own, where the next pid can be chosen."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no pid namespaces here")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", REUSED, canary_program, what],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "client", "protocol")),
        },
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
