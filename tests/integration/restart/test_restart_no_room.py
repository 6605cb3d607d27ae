"""/dev/shm is too small for the ring buffer: tracing continues in memory, and a restart loses only that
buffer."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.integration.restart.test_restart import Producer, numbers, producer, read, write
from utracefsd.server.runtime import locate

__all__ = ["producer"]

WARNING = b"will not survive a restart"
LIMIT = 1 << 20


def limit_files(daemon: DaemonProcess) -> None:
    """Let none of its files grow beyond 1 MiB: EFBIG, instead of the ENOSPC of a small /dev/shm."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def restart(daemon: DaemonProcess, producer: Producer) -> bytes:
    log = daemon.stop(kill=True)
    daemon.start()
    producer.sock.close()
    producer.connect()
    return log


def test_what_was_not_taken_in_is_recorded_by_the_next(daemon: DaemonProcess, producer: Producer) -> None:
    write(daemon, buffer_subbuf_size_kb=b"8", options__overwrite=b"0")
    limit_files(daemon)
    write(daemon, events__user_events__a__enable=b"1")
    assert producer.enabled()
    producer.emit(500)
    settings = ["set_event", "buffer_size_kb", "buffer_subbuf_size_kb", "trace_options", "user_events_status"]
    trace, *before = read(daemon, "trace", *settings)
    assert numbers(trace) == list(range(500))
    old_id = producer.id
    log = daemon.stop(kill=True)
    assert log.count(WARNING) == 1
    assert str(locate(daemon.directory).status_folder).encode() in log
    producer.emit(500)
    daemon.start()
    producer.sock.close()
    producer.connect()
    assert producer.id == old_id
    assert producer.enabled()
    producer.emit(100)
    trace, *after = read(daemon, "trace", *settings)
    assert after == before
    assert numbers(trace) == list(range(500, 1100))

    # This one had space: everything is kept again.
    assert WARNING not in restart(daemon, producer)
    assert numbers(read(daemon, "trace")[0]) == list(range(500, 1100))


INSIDE = """
import os, subprocess, sys, tempfile
import tests.integration.restart.test_restart_no_room as module
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2560k", "tmpfs", "/dev/shm"], check=True)
getattr(module, sys.argv[2])(sys.argv[1])
"""


def take_all_room() -> None:
    with open("/dev/shm/filler", "ab", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))


def in_a_small_dev_shm(directory: str) -> None:
    """With a private /dev/shm of 2.5 MiB."""
    daemon = DaemonProcess(directory)
    daemon.start()
    producer = Producer(directory)
    try:
        write(daemon, buffer_size_kb=b"64", events__enable=b"1")
        producer.emit(300)
        restart(daemon, producer)
        folder = locate(directory).status_folder
        assert list(folder.glob("buffer.*"))
        assert numbers(read(daemon, "trace")[0]) == list(range(300)), "small enough for files"
        write(daemon, buffer_size_kb=b"4096")
        assert not list(folder.glob("buffer.*"))
        producer.emit(300)
        assert numbers(read(daemon, "trace")[0]) == list(range(600))
        assert WARNING in restart(daemon, producer)
        trace, size = read(daemon, "trace", "buffer_size_kb")
        assert numbers(trace) == []
        assert size == b"4099\n"
        take_all_room()
        write(daemon, buffer_subbuf_size_kb=b"16", trace_clock=b"boot", buffer_size_kb=b"100")
        producer.emit(300)
        assert numbers(read(daemon, "trace")[0]) == list(range(600, 900))
        daemon.stop(kill=True)
        shutil.rmtree(folder)
        take_all_room()
        for more in [], ["--exit-with-parent"]:
            failed = subprocess.run(
                [sys.executable, "-m", "utracefsd", "--dir", directory, *more],
                check=False,
                capture_output=True,
                timeout=60,
            )
            assert failed.returncode == 1
            assert failed.stderr.count(b"\n") == 1, failed.stderr
            assert os.fsencode(folder) in failed.stderr
            assert b": No space left on device; free space there, or mount a larger one" in failed.stderr
    finally:
        producer.close()
        daemon.stop()
    assert b"Traceback" not in daemon.log, daemon.log.decode()


def refused(daemon: DaemonProcess, path: str, data: bytes) -> str:
    """The error of a write that appends; empty if it succeeds."""
    with daemon.tree() as tree:
        try:
            tree.write_file(path, data, truncate=False)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return str(error.strerror)
    return ""


def features_in_a_small_dev_shm(directory: str) -> None:
    """Without any space left histograms, triggers, snapshots and instances are refused with the reason or are
    in memory; existing ones keep working, and the next daemon has everything that the log has."""
    event = "events/user_events/a/"
    daemon = DaemonProcess(directory)
    daemon.start()
    producer = Producer(directory)
    try:
        write(daemon, buffer_size_kb=b"64", events__enable=b"1")
        write(daemon, events__user_events__a__trigger=b"stacktrace:1000")
        write(daemon, events__user_events__a__trigger=b"hist:keys=1:vals=n")
        producer.emit(10)
        assert b"Hits: 10\n" in read(daemon, event + "hist")[0], "its table has its memory"
        take_all_room()
        # A file of cells has 128 of them; a trigger that finds none free needs space.
        texts = [refused(daemon, event + "trigger", b"hist:keys=%d" % n) for n in range(2, 200)]
        texts += [refused(daemon, event + "trigger", b"traceoff:5 if n == 999999")]
        assert set(texts) <= {"", "no room for a trigger: No space left on device"}
        with daemon.tree() as tree:
            tree.mkdir("instances/i")
        write(daemon, instances__i__events__user_events__a__enable=b"1", snapshot=b"1")
        write(daemon, events__user_events__a__filter=b"n < 15")
        producer.emit(10)
        before = read(daemon, event + "trigger", event + "filter", "instances/i/trace")
        hist, trace, snapshot = read(daemon, event + "hist", "trace", "snapshot")
        assert b"Hits: 20\n" in hist
        assert numbers(snapshot) == list(range(10)) and numbers(trace) == list(range(10, 15))
        assert numbers(before[2]) == list(range(10, 20))
        assert b"stacktrace:count=980\n" in before[0]
        os.unlink("/dev/shm/filler")
        restart(daemon, producer)
        after = read(daemon, event + "trigger", event + "filter")
        assert after == before[:2]
        (hist,) = read(daemon, event + "hist")
        assert b"n:        190\n" in hist, "the first one had a file"
        producer.emit(5)
        assert b"stacktrace:count=975\n" in read(daemon, event + "trigger")[0]
        assert refused(daemon, event + "trigger", b"hist:keys=200") == ""
    finally:
        producer.close()
        daemon.stop()
    assert b"Traceback" not in daemon.log, daemon.log.decode()


@pytest.mark.parametrize("what", ["in_a_small_dev_shm", "features_in_a_small_dev_shm"])
def test_in_a_small_dev_shm(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, for a mount namespace of its own")
    probe = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-m", "sh", "-c", probe], check=False).returncode
    ):
        pytest.skip("unshare -m and mount are forbidden here")
    with tempfile.TemporaryDirectory(prefix="utracefs-test-") as directory:
        subprocess.run(
            ["unshare", "-m", "--propagation", "private", sys.executable, "-c", INSIDE, directory, what],
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[3],
        )
