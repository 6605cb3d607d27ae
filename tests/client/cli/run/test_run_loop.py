"""Steps while a command runs: exit statuses, signals, the end of the time. Ctrl-C in a terminal:
test_record.py."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from tests.integration.mount.mounting import why_no_mount
from utracefs.cli import Failure
from utracefs.cli.run import run_loop
from utracefs.cli.run.run_loop import (
    ENDING,
    NOT_EXECUTABLE,
    NOT_FOUND,
    Surroundings,
    run_steps,
    signals_blocked,
)


def run(*command: str, step: Callable[[], float] = lambda: 0.01, duration_s: float | None = None) -> int:
    with signals_blocked() as blocked:
        return run_steps(command, step, blocked=blocked, duration_s=duration_s)


def to_us(number: signal.Signals) -> None:
    """To this thread; another one, of pytest, does not block it."""
    signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9), ("kill -15 $$", 128 + 15)]
)
def test_the_status_is_that_of_the_command(script: str, status: int) -> None:
    assert run("sh", "-c", script) == status


def test_a_script_without_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script").write_text('exit "$1"')
    (tmp_path / "script").chmod(0o755)
    assert run(str(tmp_path / "script"), "7") == 7
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")  # which has another program of that name
    assert run("script", "8") == 8


def test_a_command_that_cannot_be_run() -> None:
    for command, status in (("/nonexistent/program", NOT_FOUND), ("/", NOT_EXECUTABLE)):
        with pytest.raises(Failure) as caught:
            run(command)
        assert (caught.value.about, caught.value.status) == (command, status)


def test_steps_come_until_the_command_ends(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    steps = 0

    def step() -> float:
        nonlocal steps
        steps += 1
        if steps == 5:
            os.close(os.open(fifo, os.O_WRONLY))  # waits for cat, and lets it end
        return 0.001

    assert run("cat", str(fifo), step=step) == 0
    assert steps >= 5


@pytest.mark.parametrize("number", [0, -1574777808])
def test_a_wait_that_ends_with_no_signal(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """sigtimedwait of CPython returns what lay on its stack, or 0, when EINTR came after the time had
    passed."""
    nothing = signal.struct_siginfo((number, *[0] * 6))
    real = signal.sigtimedwait
    answers = [nothing] * 3
    monkeypatch.setattr(signal, "sigtimedwait", lambda *args: answers.pop() if answers else real(*args))
    assert run("sh", "-c", "sleep 0.1; exit 7") == 7
    assert not answers


def test_the_end_of_the_time_is_success() -> None:
    assert run(duration_s=0.01) == 0
    assert run("sleep", "60", duration_s=0.01) == 0


def test_a_signal_ends_steps_without_a_command() -> None:
    def step() -> float:
        to_us(signal.SIGINT)
        return 0.01

    assert run(step=step) == 0


def test_a_signal_is_passed_on() -> None:
    def step() -> float:
        to_us(signal.SIGTERM)
        return 0.01

    assert run("sleep", "60", step=step) == 128 + signal.SIGTERM


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """timeout(1) sends it to its child and to the group of both, in which the command has it already."""
    monkeypatch.setattr(run_loop, "TWICE_S", 60)
    came = tmp_path / "came"
    script = f"trap 'echo x >> {came}; sleep 0.2; exit 5' INT; echo > {came}; while :; do sleep 0.01; done"
    left = [2, 1]

    def step() -> float:
        if came.exists() and left:
            left.pop()
            to_us(signal.SIGINT)
        return 0.001

    assert run("sh", "-c", script, step=step) == 5
    assert (left, came.read_text()) == ([], "\nx\n")


def test_a_command_that_may_not_be_signalled(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As one of `sudo`: the loop ends in order, so that what is recorded is written."""
    children: list[subprocess.Popen[bytes]] = []

    def refuse(child: subprocess.Popen[bytes], _number: int) -> None:
        children.append(child)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "send_signal", refuse)
        assert run("sleep", "60", duration_s=0.01) == 128 + signal.SIGTERM
    (child,) = children
    child.kill()
    child.wait()
    assert capfd.readouterr().err == f"utracefs: the command continues unobserved (pid {child.pid})\n"


@pytest.fixture
def from_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal of to_us is as one that a terminal has sent to us and the command."""
    with signals_blocked() as blocked:
        to_us(signal.SIGINT)
        info = signal.sigtimedwait(blocked.taken, 0)
    assert info
    monkeypatch.setattr(run_loop, "_SI_KERNEL", info.si_code)


@pytest.mark.usefixtures("from_terminal")
def test_an_interrupt_before_the_start_prevents_it(tmp_path: Path) -> None:
    """Ctrl-C while the daemon starts: the command would not have it."""
    with signals_blocked() as blocked:
        to_us(signal.SIGINT)
        assert run_steps(["touch", str(tmp_path / "x")], lambda: 0.01, blocked=blocked) == 128 + signal.SIGINT
    with signals_blocked() as blocked:
        to_us(signal.SIGUSR2)
        dump = list[None]().clear
        assert run_steps(["false"], lambda: 0.01, blocked=blocked, dump=dump) == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.usefixtures("from_terminal")
def test_an_interrupt_before_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        to_us(signal.SIGINT)
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert run("sleep", "2") == 128 + signal.SIGINT


def test_an_interrupt_before_the_command_is_executed() -> None:
    def enter() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with signals_blocked() as blocked:
        surroundings = Surroundings(enter=enter)
        status = run_steps(["true"], lambda: 0.01, blocked=blocked, surroundings=surroundings)
    assert status == 128 + signal.SIGINT


def test_signals_are_as_before_afterwards() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with signals_blocked() as blocked:
        assert {*ENDING, signal.SIGCHLD} >= blocked.taken > {signal.SIGCHLD, signal.SIGUSR1}
        to_us(signal.SIGTERM)  # comes too late: it is taken, and ends nothing
        to_us(signal.SIGUSR2)
    to_us(signal.SIGUSR2)  # it does not kill a recorder that ends
    assert signal.sigtimedwait({signal.SIGUSR2}, 0)
    assert signal.pthread_sigmask(signal.SIG_SETMASK, before) == before | {signal.SIGUSR2}


def test_what_a_command_is_started_in(tmp_path: Path) -> None:
    """`enter` is called in the child, `started` before it is waited for, however soon it ends."""
    out = tmp_path / "out"
    pids: list[int] = []
    pidfds: list[int] = []

    def enter() -> None:
        out.write_text(str(os.getpid()))

    def started(pid: int) -> None:
        pids.append(pid)
        pidfds.append(os.pidfd_open(pid))

    with signals_blocked() as blocked:
        status = run_steps(
            ["sh", "-c", "echo $WORD; exit 3"],
            lambda: 0.01,
            blocked=blocked,
            surroundings=Surroundings({"WORD": "x"}, enter, started),
        )
    assert status == 3
    assert [int(out.read_text())] == pids != [os.getpid()]
    os.close(pidfds[0])


INHERITED = """
import os
print(*[fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")])
print(*[line for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn"))])
"""


@pytest.mark.parametrize(
    "words",
    [
        ["record", "-o", "t.dat"],
        ["record", "--kernel-abi", "-o", "t.dat"],
        ["mount", "m"],
        ["perf", "record", "-o", "t.data"],
        ["hist", "x", "n"],
    ],
    ids=" ".join,
)
def test_a_command_inherits_what_we_did(cli: Cli, words: list[str]) -> None:
    """No descriptor more, and none less; ignored signals; the signal mask."""
    (cli.home / "m").mkdir()
    if {"mount", "--kernel-abi"} & set(words) and (reason := why_no_mount(cli.home / "m")):
        pytest.skip(reason)
    inherited = os.memfd_create("inherited", 0)

    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGWINCH})

    def out(*command: str) -> str:
        done = subprocess.run(
            command,
            env=cli.env,
            cwd=cli.home,
            stdout=subprocess.PIPE,
            pass_fds=[inherited],
            preexec_fn=prepare,
            check=False,
        )
        return done.stdout.decode().partition("\n\n")[0]

    python = [sys.executable, "-c", INHERITED]
    alone = out(*python)
    traced = out(*cli.command(*words, "--", *python))
    os.close(inherited)
    assert str(inherited) in alone.split()
    assert traced == alone


ORPHANS = """
for i in 1 2 3; do (sh -c 'exit 5' &); done
until test -z "$(ps -eo stat= | grep '^Z')"; do sleep 0.01; done
(sh -c 'kill -9 $$' &)
exit 7
"""


def test_the_first_process_of_a_container_reaps(cli: Cli) -> None:
    unshare = ["unshare", *(["-Ur"] if os.geteuid() else []), "-pf", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no pid namespace can be made")
    record = cli.command("record", "-o", "t.dat", "--", "sh", "-c", ORPHANS)
    done = subprocess.run([*unshare, *record], env=cli.env, cwd=cli.home, timeout=60, check=False)
    assert done.returncode == 7


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGALRM]
)
def test_signals_that_would_end_the_process_end_it_in_order(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # a shell in the background ignores SIGQUIT
    steps: list[None] = []

    def step() -> float:
        steps.append(None)
        to_us(number)
        return 10.0

    try:
        assert run(step=step) == 0
    finally:
        signal.signal(number, before)
    assert steps == [None]


def test_sigusr2_where_something_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise it is ignored."""
    dumps: list[int] = []
    steps: list[None] = []

    def step() -> float | None:
        steps.append(None)
        to_us(signal.SIGUSR2)
        return 10.0 if len(steps) < 4 else None

    def dump() -> None:
        dumps.append(len(steps))
        if len(steps) == 2:
            raise OSError(errno.ENOSPC, "No space", "x")
        if len(steps) == 3:
            raise Failure("y", "no")

    with signals_blocked() as blocked:
        status = run_steps((), step, blocked=blocked, dump=dump)
    assert (status, dumps) == (0, [1, 2, 3])
    assert capsys.readouterr().err == "utracefs: x: No space\nutracefs: y: no\n"
