"""Programs that end at a bad moment, reused process ids, and open files passed to another user."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.abi.programs import VIA, World, built, world
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for

NOBODY = 65534
NS_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


class Provider:
    """tests/abi/provider.c as a process."""

    def __init__(self, program: Path, there: World, peer: socket.socket | None = None) -> None:
        fds = [peer.fileno()] if peer else []
        self.process = subprocess.Popen(
            [program, there.tree, *map(str, fds)],
            env=there.environment,
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def ask(self, line: str) -> int:
        self.say(line)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=60)


@contextlib.contextmanager
def provider(program: Path, there: World, peer: socket.socket | None = None) -> Iterator[Provider]:
    one = Provider(program, there, peer)
    try:
        yield one
    finally:
        one.process.kill()
        one.close()


def enable(there: World, event: str, on: bool) -> None:
    (there.tree / "events" / "user_events" / event / "enable").write_text(f"{on:d}")


def events(there: World) -> list[str]:
    return (there.tree / "dynamic_events").read_text().splitlines()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("who", ["daemon", "mount"])
@pytest.mark.parametrize("via", VIA)
def test_killed_between_ioctl_and_answer(via: str, who: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    """Its event is removed, the next program does not find it."""
    program = built("provider", tmp_path)
    with world(via, daemon, tmp_path) as there:
        pid = daemon.pid if who == "daemon" else there.mount.process.pid
        with provider(program, there) as dying:
            assert dying.ask("open") == 0
            with stopped(pid):
                dying.say("reg dies u32 n")
                time.sleep(0.05)  # it is in the call, or not yet: both must work
                dying.process.kill()
            dying.close()
        wait_for(lambda: "u:dies u32 n" not in events(there), "the event went with it")
        with provider(program, there) as other:
            assert other.ask("open") == 0
            assert other.ask("reg dies u64 other") == 0
            enable(there, "dies", True)
            wait_for(lambda: other.ask("word") == 1, "told")
            assert other.ask("look") == 0


@pytest.mark.parametrize("via", VIA)
def test_killed_while_its_words_change(via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    """A stopped process does not delay `echo`; a killed one is forgotten."""
    program = built("provider", tmp_path)
    with (
        world(via, daemon, tmp_path) as there,
        provider(program, there) as one,
        provider(program, there) as two,
    ):
        for each in one, two:
            assert each.ask("open") == 0
            assert each.ask("reg shared u32 n") == 0
        with stopped(one.process.pid):
            enable(there, "shared", True)
            wait_for(lambda: two.ask("word") == 1, "told")
            one.process.kill()
        one.close()
        enable(there, "shared", False)
        wait_for(lambda: two.ask("word") == 0, "told")
        assert two.ask("look") == 0
        assert two.ask("unreg") == 0
        assert two.ask("close") == 0
        wait_for(lambda: not events(there), "the last reference went")


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(NS_LAST_PID, os.W_OK), reason="pids are the kernel's to choose"
)
@pytest.mark.parametrize("via", VIA)
def test_pid_is_used_again(via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    """The next process of that number has the same memory at the same place, and keeps it."""
    program = built("provider", tmp_path)
    with world(via, daemon, tmp_path) as there, provider(program, there) as keeper:
        assert keeper.ask("open") == 0
        assert keeper.ask("reg again u32 n") == 0
        for _ in range(100):
            with provider(program, there) as first:
                assert first.ask("open") == 0
                assert first.ask("reg again u32 n") == 0
                number = first.process.pid
            NS_LAST_PID.write_text(str(number - 1))
            with provider(program, there) as second:
                if second.process.pid != number:
                    continue
                for on in (True, False, True):
                    enable(there, "again", on)
                    wait_for(lambda on=on: keeper.ask("word") == on, "told")  # type: ignore[misc]
                time.sleep(0.15)  # a late change would have arrived
                assert second.ask("word") == 0
                assert second.ask("look") == 0
                assert second.ask("open") == 0
                assert second.ask("unreg") == -errno.ENOENT  # it never registered
                assert second.ask("reg again u32 n") == 0
                assert second.ask("word") == 1
            return
    pytest.skip("others took that number each time")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(("via", "user"), [("mount", 0), ("mount", NOBODY), ("preload", 0)])
def test_passed_on(via: str, user: int, daemon: DaemonProcess, tmp_path: Path) -> None:
    """A passed open file writes; words belong to the process that registers them.

    With the preload library each process has a connection of its own, so its user must reach the daemon.
    """
    program = built("provider", tmp_path)
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        world(via, daemon, tmp_path, "--allow-other") as there,
        provider(program, there, ours) as giver,
        provider(program, there, theirs) as taker,
    ):
        assert giver.ask("open") == 0
        assert giver.ask("reg given u32 n") == 0
        enable(there, "given", True)
        wait_for(lambda: giver.ask("word") == 1, "told")
        if user:
            assert taker.ask(f"user {user}") == 0
        assert giver.ask("pass") == 0
        assert taker.ask("receive") == 0
        assert taker.ask("write 0 7") == 8
        assert giver.ask("write 0 8") == 8
        assert taker.ask("unreg") == -errno.ENOENT
        assert taker.ask("reg given u32 n") == 0
        wait_for(lambda: taker.ask("word") == 1, "told")
        lines = (there.tree / "trace").read_text().splitlines()
        records = [
            (line.split(": ")[-1], line.partition("[")[0].strip().rpartition("-")[2])
            for line in lines
            if "given" in line
        ]
        # (With the preload library the first may wait for its registration, and the second does not.)
        expected = [("n=0x7 (7)", str(taker.process.pid)), ("n=0x8 (8)", str(giver.process.pid))]
        assert (records if via == "mount" else sorted(records)) == expected
        assert taker.ask("unreg") == 0
        assert taker.ask("word") == 0
        assert giver.ask("word") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("via", VIA)
def test_passed_to_a_process_without_the_right(via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    """A process without access to daemon or mount gets an errno, and the giver is not affected."""
    program = built("provider", tmp_path)
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        world(via, daemon, tmp_path) as there,
        provider(program, there, ours) as giver,
        provider(program, there, theirs) as taker,
    ):
        assert giver.ask("open") == 0
        assert giver.ask("reg given u32 n") == 0
        enable(there, "given", True)
        assert taker.ask(f"user {NOBODY}") == 0
        assert giver.ask("pass") == 0
        assert taker.ask("receive") == 0
        assert taker.ask("reg given u32 n") in (-errno.EACCES, -errno.EPERM, -errno.ENOTTY)
        assert taker.ask("word") == 0
        assert taker.ask("close") == 0
        assert giver.ask("write 0 8") == 8
