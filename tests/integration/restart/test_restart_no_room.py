"""/dev/shm is too small for the ring buffer: tracing continues in memory, and a restart loses only that
buffer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.integration.restart.test_restart import Producer, numbers, read, write
from utracefsd.server.runtime import locate

WARNING = b"will not survive a restart"


def restart(daemon: DaemonProcess, producer: Producer) -> bytes:
    log = daemon.stop(kill=True)
    daemon.start()
    producer.come_back()
    return log


INSIDE = """
import os, subprocess, sys, tempfile
import tests.integration.restart.test_restart_no_room as module
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2560k", "tmpfs", "/dev/shm"], check=True)
module.in_a_small_dev_shm(sys.argv[1])
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
        with pytest.raises(OSError, match="no room for a trigger: No space left on device"):
            write(daemon, events__user_events__a__trigger=b"hist:keys=1")
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


def test_in_a_small_dev_shm() -> None:
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
            ["unshare", "-m", "--propagation", "private", sys.executable, "-c", INSIDE, directory],
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[3],
        )
