"""Programs that close descriptors, change rights or end oddly: whatever happens to tracing, they are
unaffected."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.daemons.real_daemon import PROLOGUE, Work

FILES = """
folder = os.path.dirname(os.path.abspath(__file__))
def files(count):
    return [os.open(f"{folder}/file{i}", os.O_CREAT | os.O_RDWR) for i in range(count)]
def check(fds):
    "Each is what it was, and holds what the program has written."
    for i, fd in enumerate(fds):
        os.write(fd, b"theirs")
        assert os.fstat(fd).st_ino == os.stat(f"{folder}/file{i}").st_ino
        assert os.pread(fd, 100, 0) == b"theirs", os.pread(fd, 100, 0)
def ours():
    "Numbers of what this program did not open."
    found = {}
    for fd in range(200):
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if link.startswith(("socket:", "/memfd:", "anon_inode:[eventfd")):
            found[fd] = link
    return found
"""


def test_a_daemonized_double_fork_that_closes_all(work: Work) -> None:
    work.run(
        """
    emit(1)
    end, begin = os.pipe()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os.close(begin)
        assert os.read(end, 1) == b"x"
        sys.exit()
    os.setsid()
    if os.fork():
        os._exit(0)
    os.dup2(begin, 10)
    os.closerange(0, 10)
    os.closerange(11, 1000)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    fds = files(80)
    emit(2)
    assert min(ours()) > 2
    pid = os.fork()
    if not pid:
        emit(3)
        os._exit(0)
    os.waitpid(pid, 0)
    check(fds)
    os.write(10, b"x")
    os._exit(0)
    """,
        FILES,
    )
    wait_for(lambda: work.numbers() == {who: list(range(10)) for who in (1, 2, 3)}, what=work.numbers)


def test_a_program_without_standard_input_output_and_error(work: Work) -> None:
    script = work.folder / "program.py"
    script.write_text(
        PROLOGUE
        + FILES
        + """
emit(1)
assert len(ours()) == 5 and min(ours()) > 2
"""
    )
    command = f"exec {sys.executable} {script} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=60, check=False).returncode == 0
    assert work.numbers() == {1: list(range(10))}


def test_numbers_that_a_program_gets_are_the_same_with_and_without_events(work: Work) -> None:
    out = work.run(
        """
    emit(1)
    print(os.open("/dev/null", 0))
    """
    )
    assert out == "3\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
@pytest.mark.parametrize("action", ["os.setresuid(65534, 65534, 65534)", "os.chroot('/var/empty')"])
def test_a_program_that_gives_up_rights(work: Work, action: str) -> None:
    """It keeps what it has open; it cannot reach the next daemon, and continues."""
    work.run(
        f"""
    import logging, tempfile
    os.makedirs("/var/empty", exist_ok=True)
    {action}
    emit(1)
    assert utracefs.flush(60)
    os.closerange(3, 1000)
    wait_for(lambda: not event)
    emit(2)
    pid = os.fork()
    if not pid:
        emit(3)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    """
    )
    assert work.numbers()[1] == list(range(10))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
@pytest.mark.parametrize("action", ["os.setresuid(65534, 65534, 65534)", "os.chroot('/var/empty')"])
def test_a_child_that_connects_before_it_gives_up_rights(work: Work, action: str) -> None:
    """By the test of an event of its own, as docs/operations.md says."""
    work.run(
        f"""
    os.makedirs("/var/empty", exist_ok=True)
    emit(1)
    for who in range(2, 5):
        pid = os.fork()
        if not pid:
            bool(utracefs.event("worker_began u32 pid"))
            {action}
            emit(who)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """
    )
    assert work.numbers() == {who: list(range(10)) for who in range(1, 5)}


def test_nothing_is_imported_after_the_first_event(work: Work) -> None:
    """All that a program that emits may call. (Who reads recordings or streams imports that first.)"""
    work.run(
        """
    import logging, pickle
    from utracefs import LoggingHandler
    logging.getLogger("utracefs").addHandler(logging.NullHandler())
    class Refuse:
        def find_spec(self, name, path=None, target=None):
            found.append(name)
            raise ImportError(name)
    found = []
    sys.meta_path.insert(0, Refuse())
    def use():
        other = utracefs.event("other u32 a")
        utracefs.events(["third u32 a", "other u32 a"])
        wait_for(lambda: other.registered)
        assert utracefs.default_session() is utracefs.event("other u32 a").session
        assert pickle.loads(pickle.dumps(other)) is other
        handler = LoggingHandler("log")
        logging.getLogger("a").addHandler(handler)
        logging.getLogger("a").warning("text")
        assert str(utracefs.event("work u64 other_fields")) and handler.event is not None
        assert isinstance(utracefs.stats(), utracefs.Stats)
        with utracefs.Session(os.environ["UTRACEFS_DIR"]) as session:
            mine = session.event("mine u32 a")
            mine.emit(1)
            assert session.flush(60) and session.stats().events
        emit(1)
        assert utracefs.flush(60)
        utracefs.__version__
    use()
    assert children(lambda who: (emit(2 + who), use(), os._exit(0)), 1) == [0]
    os.closerange(3, 1000)
    event.emit(9, 0)
    wait_for(lambda: event.registered and event)
    utracefs.close()
    utracefs.stats()
    assert found in ([], ["importlib.metadata"]), found
    """
    )


def test_a_program_whom_sigpipe_kills(work: Work) -> None:
    """As of every filter on a command line; the daemon is killed in the middle of it."""
    process = work.daemon.process
    assert process is not None
    work.run(
        f"""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    emit(1)
    os.kill({process.pid}, signal.SIGKILL)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        emit(2, 1000)
        utracefs.flush(0)
    wait_for(lambda: not event)
    """
    )
    # A killed daemon leaves its state, and one that ends in order takes it with it.
    work.daemon.stop()
    work.daemon.start()
