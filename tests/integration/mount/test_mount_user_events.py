"""user_events_data of a mount, used by a C program in the same way as the kernel's."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

from tests.client.c.building import kernel_abi
from tests.integration.conftest import DaemonProcess
from tests.integration.mount import test_mount_life as life
from tests.integration.mount.mounting import MountProcess, mounted, must_mount, run, wait_for
from tests.judges import judge
from utracefs.mount.attaching import detach
from utracefs.mount.user_events_data import WRITE_S
from utracefsd.server.runtime import locate

SOURCE = Path(__file__).with_name("provider.c")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """provider.c, compiled."""
    judge("gcc")
    path = tmp_path_factory.mktemp("bin") / "provider"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", *kernel_abi()]
    subprocess.run(["gcc", *flags, "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def tree(shared_mount: tuple[str, Path]) -> Path:
    """The mount; no event is enabled, and nothing recorded."""
    _, path = shared_mount
    if (path / "events/user_events").exists():
        put(path / "events/enable", "0")
    wait_for(lambda: not events(path), "events of the test before went")
    put(path / "trace", "\n")
    return path


def put(path: Path, text: str) -> None:
    path.write_text(text)


def events(tree: Path) -> list[str]:
    """As user_events_status has them."""
    text = (tree / "user_events_status").read_text().partition("\nActive:")[0]
    return [line.partition(" ")[0] for line in text.splitlines() if line]


def is_there(tree: Path) -> bool:
    """Whether the daemon lives, and has events."""
    try:
        return bool(events(tree))
    except OSError as error:
        assert error.errno == errno.ENOTCONN
        return False


def lines(tree: Path) -> list[str]:
    return [line for line in (tree / "trace").read_text().splitlines() if not line.startswith("#")]


class Provider:
    """The program; `call` is one line to it and its response, a negative errno as that errno's name."""

    def __init__(self, program: Path, tree: Path, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, str(program), str(tree / "user_events_data")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self, line: str) -> int | str:
        self.send(line)
        return self.receive(line)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self, line: str) -> int | str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        number = int(answer, 16 if line.startswith("word") else 10)
        return errno.errorcode[-number] if number < 0 else number

    def word(self, number: int = 0) -> int:
        value = self.call(f"word {number}")
        assert isinstance(value, int)
        return value

    def has(self, value: int, number: int = 0) -> None:
        """A switch waits 1 s for programs that set bits themselves; a busy machine may need longer."""
        wait_for(lambda: self.word(number) == value, f"word {number} is {value}")


def test_from_registration_to_record(tree: Path, program: Path) -> None:
    """Only the way through; tests/integration/abi asks for each answer of the kernel."""
    with Provider(program, tree) as provider:
        assert provider.call("open") == 0
        assert provider.call("reg 0 0 3 4 0 shop u32 count; char[4] what") == 0
        provider.has(0)
        assert provider.call("write 0 0 0700000061620000") == "EBADF"
        put(tree / "events/user_events/shop/enable", "1")
        provider.has(8)
        assert provider.call("write 0 0 0700000061620000") == 12
        [line] = lines(tree)
        assert line.lstrip().startswith(f"provider-{provider.pid} ")
        assert line.endswith("shop: count=0x7 (7) what=ab")
        put(tree / "events/user_events/shop/enable", "0")
        provider.has(0)


def test_exec_ends_enablers(tree: Path, program: Path) -> None:
    with Provider(program, tree) as provider:
        provider.call("open")
        provider.call("reg 0 0 0 4 1 kept")
        provider.call("exec")
        provider.has(0)
        put(tree / "events/user_events/kept/enable", "1")
        provider.has(0)
        put(tree / "events/user_events/kept/enable", "0")
        assert provider.call("open") == 0
        assert provider.call("unreg 0 0 0") == "ENOENT"
    with Provider(program, tree) as provider:
        provider.call("open")
        assert provider.call("del 0 kept") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_drops_references(tree: Path, program: Path, number: signal.Signals) -> None:
    with Provider(program, tree) as provider:
        provider.call("open")
        provider.call("reg 0 0 0 4 0 shop")
        assert events(tree) == ["shop"]
        provider.process.send_signal(number)
        provider.process.wait()
        wait_for(lambda: events(tree) == [], "the event is gone")


class TestDaemons:
    def test_without_one_bits_are_clear(self, daemon: DaemonProcess, place: Path, program: Path) -> None:
        with mounted(daemon.directory, place) as mount, Provider(program, place) as provider:
            self.enable(place, provider)
            daemon.stop(kill=True)
            assert mount.ended() == 0
            provider.has(0)
            assert provider.call("write 0 0") in ("ENOTCONN", "ECONNABORTED")

    def test_the_end_of_the_mount_clears_bits(
        self, daemon: DaemonProcess, place: Path, program: Path
    ) -> None:
        with mounted(daemon.directory, place) as mount, Provider(program, place) as provider:
            self.enable(place, provider)
            mount.process.terminate()
            assert mount.ended() == 0
            provider.has(0)

    @pytest.mark.parametrize("who", ["daemon", "mount"])
    def test_bits_of_children_are_cleared_as_well(
        self, daemon: DaemonProcess, place: Path, program: Path, who: str
    ) -> None:
        """No event was switched since the fork, so the mount has not looked for children."""
        with mounted(daemon.directory, place, "--wait") as mount, Provider(program, place) as provider:
            self.enable(place, provider)
            assert provider.call("fork") != provider.pid
            provider.has(1)
            if who == "daemon":
                daemon.stop(kill=True)
                provider.has(0)
                daemon.start()
                provider.has(1)
            else:
                mount.process.terminate()
                assert mount.ended() == 0
                provider.has(0)

    @pytest.mark.parametrize("kill", [True, False])
    def test_files_continue_with_the_next_daemon(
        self, daemon: DaemonProcess, place: Path, program: Path, kill: bool
    ) -> None:
        with mounted(daemon.directory, place, "--wait"), Provider(program, place) as provider:
            self.enable(place, provider)
            assert provider.call("reg 0 0 1 4 0 other") == 1
            daemon.stop(kill=kill)
            provider.has(0)
            assert provider.call("write 0 0") == "EBADF"
            daemon.start()
            wait_for(lambda: is_there(place), "the events are back")
            put(place / "events/user_events/other/enable", "1")
            wait_for(lambda: provider.word() & 2, "bits are set again")
            assert provider.call("write 0 1") == 4
            assert provider.call("reg 0 0 3 4 0 third") == 2
            assert f"provider-{provider.pid} " in lines(place)[-1]

    def test_an_event_that_its_command_does_not_find_continues(
        self, daemon: DaemonProcess, place: Path, program: Path
    ) -> None:
        """Neither another registration nor the next daemon would find it by that name."""
        with mounted(daemon.directory, place, "--wait"), Provider(program, place) as provider:
            provider.call("open")
            assert provider.call("reg 0 0 0 4 0 odd u32 a;; u32 b") == 0
            put(place / "events/user_events/odd/enable", "1")
            daemon.stop(kill=True)
            provider.has(0)
            daemon.start()
            provider.has(1)
            wait_for(lambda: is_there(place), "so does the tree")
            assert provider.call(f"write 0 0 {'01000000' * 2}") == 12
            assert lines(place)[-1].endswith(" odd: a=0x1 (1) b=0x1 (1)")

    def enable(self, place: Path, provider: Provider) -> None:
        provider.call("open")
        provider.call("reg 0 0 0 4 0 shop")
        put(place / "events/user_events/shop/enable", "1")
        provider.has(1)

    def test_one_that_is_stopped_holds_up_writers_once(
        self, daemon: DaemonProcess, place: Path, program: Path
    ) -> None:
        """All of them together, not one after the other."""
        with mounted(daemon.directory, place), contextlib.ExitStack() as stack:
            providers = [stack.enter_context(Provider(program, place)) for _ in range(8)]
            for provider in providers:
                provider.call("open")
                provider.call("reg 0 0 0 4 0 shop")
            put(place / "events/user_events/shop/enable", "1")
            daemon.signal(signal.SIGSTOP)
            began = time.monotonic()
            try:
                for provider in providers:
                    provider.send("write 0 0")
                assert [provider.receive("write") for provider in providers] == ["EBADF"] * 8
                assert [provider.call("write 0 0") for provider in providers] == ["EBADF"] * 8
            finally:
                daemon.signal(signal.SIGCONT)
            assert time.monotonic() - began < 8 * WRITE_S
            wait_for(lambda: providers[0].call("write 0 0") == 4, "it answers again")

    @pytest.mark.parametrize("line", ["write 0 0", "reg 0 0 1 4 0 other"])
    def test_a_waiter_for_a_stopped_process_can_be_killed(
        self, daemon: DaemonProcess, place: Path, program: Path, line: str
    ) -> None:
        with mounted(daemon.directory, place), Provider(program, place) as provider:
            self.enable(place, provider)
            with daemon.paused():
                provider.send(line)
                wait_for(lambda: _is_asking(provider.pid), "it waits for the mount")
                provider.process.kill()
                began = time.monotonic()
                provider.process.wait(60)
                assert time.monotonic() - began < 20, "30 s is what an answer may take"
            with Provider(program, place) as other:
                other.call("open")
                assert other.call("reg 0 0 0 4 0 shop") == 0
                other.has(1)

    def test_one_that_is_stopped_holds_up_writers_alone(
        self, daemon: DaemonProcess, place: Path, program: Path
    ) -> None:
        with mounted(daemon.directory, place), Provider(program, place) as provider:
            self.enable(place, provider)
            with daemon.paused():
                provider.has(1)
            assert provider.call("write 0 0") == 4


def _is_asking(pid: int) -> bool:
    """Whether it sleeps in a call to a file of FUSE."""
    where = Path(f"/proc/{pid}/wchan").read_text()
    return "request_wait" in where or "fuse" in where


def test_a_mount_that_is_stopped_does_not_hold_up_the_daemon(
    daemon: DaemonProcess, place: Path, program: Path
) -> None:
    """Enabling waits for 1 s; the bit follows when the mount continues."""
    with mounted(daemon.directory, place) as mount, Provider(program, place) as provider:
        provider.call("open")
        provider.call("reg 0 0 0 4 0 shop")
        mount.process.send_signal(signal.SIGSTOP)
        try:
            with daemon.tree() as client:
                began = time.monotonic()
                client.write_file("events/user_events/shop/enable", b"1")
                assert time.monotonic() - began < 10
        finally:
            mount.process.send_signal(signal.SIGCONT)
        provider.has(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
class TestForOthers:
    def test_an_ordinary_user(self, program: Path) -> None:
        """Daemon, mount and program belong to the user `nobody`."""
        judge("fusermount3")
        session = (
            life.TestForWhom.SESSION.partition('cd "$1/tree"')[0]
            + """
cd "$1"
coproc P { ./provider tree/user_events_data; }
provider=$P_PID  # bash takes the variable away when the process ends
call() { echo "$*" >&"${P[1]}"; read -r answer <&"${P[0]}"; echo "$answer"; }
call open
call reg 0 0 3 4 0 shop u32 count
echo 1 > tree/events/user_events/shop/enable
call word 0
call write 0 0 07000000
call reg 0 0 4 4 1 kept
tail -n 1 tree/trace | sed 's/.*: shop/shop/'
echo quit >&"${P[1]}"
wait "$provider"
cd /
fusermount3 -u "$1/tree"
"""
        )
        with tempfile.TemporaryDirectory(prefix="utracefs-test-") as path:
            os.chmod(path, 0o755)
            for name in ("d", "tree"):
                os.mkdir(f"{path}/{name}")
                os.chown(f"{path}/{name}", 65534, 65534)
            shutil.copy(program, f"{path}/provider")
            try:
                device = ["unshare", "-m", "bash", "-c", life.TestForWhom.OPEN_DEVICE, "bash", path]
                words = [*device, *life.NOBODY, "bash", "-c", session, "bash", path]
                done = run(words, Path("/"), PYTHON=sys.executable, HOME="/")
            finally:
                detach(f"{path}/tree")
                shutil.rmtree(locate(f"{path}/d").status_folder, ignore_errors=True)
            assert done.stdout.split("\n") == ["0", "0", "8", "8", "1", "shop: count=0x7 (7)", ""], (
                done.stderr
            )
            assert done.returncode == 0, done.stderr

    def test_an_unprivileged_program_on_roots_mount(self, daemon: DaemonProcess, program: Path) -> None:
        """It may use its own events, but not persistent ones or the tree."""
        with tempfile.TemporaryDirectory(prefix="utracefs-test-") as path:
            os.chmod(path, 0o755)
            must_mount(Path(path) / "tree")
            shutil.copy(program, f"{path}/provider")
            tree = Path(path) / "tree"
            with mounted(daemon.directory, tree, "--allow-other"):
                os.chmod(tree, 0o755)
                os.chmod(tree / "user_events_data", 0o666)
                prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
                with Provider(Path(path) / "provider", tree, *prefix) as provider:
                    assert provider.call("open") == 0
                    assert provider.call("reg 0 0 0 4 1 kept") == "EPERM"
                    assert provider.call("reg 0 0 0 4 0 shop") == 0
                    put(tree / "events/user_events/shop/enable", "1")
                    provider.has(1)
                    assert provider.call("write 0 0") == 4
                    assert provider.call("del 0 shop") == "EBUSY"
                    assert f"provider-{provider.pid} " in lines(tree)[0]


def test_descriptors_of_the_mount_are_given_back(
    tree: Path, program: Path, shared_mount_process: tuple[str, MountProcess]
) -> None:
    pid = shared_mount_process[1].process.pid

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    before = descriptors()
    providers = [Provider(program, tree) for _ in range(10)]
    try:
        for number, provider in enumerate(providers):
            provider.call("open")
            assert provider.call(f"reg 0 0 0 4 0 event_{number}") == 0
        assert descriptors() >= before + 50
    finally:
        for provider in providers:
            provider.__exit__()
    wait_for(lambda: descriptors() <= before, "all are closed")


def test_one_switch_notifies_many(tree: Path, program: Path) -> None:
    providers = [Provider(program, tree) for _ in range(30)]
    try:
        for provider in providers:
            provider.call("open")
            assert provider.call("reg 0 0 0 4 0 shop") == 0
        put(tree / "events/user_events/shop/enable", "1")
        for provider in providers:
            provider.has(1)
    finally:
        for provider in providers:
            provider.__exit__()
