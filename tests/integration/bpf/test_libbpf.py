"""A program built with clang and libbpf: maps, a ring buffer, global data, a packed record."""

import subprocess
import sys
from pathlib import Path

import utracefs
from tests.forked import Popen
from tests.integration.bpf.workload import REQUESTS
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for
from tests.judges import judge

HERE = Path(__file__).parent
clang, gcc = judge("clang"), judge("gcc")
judge("libbpf")


def built(folder: Path) -> list[str]:
    target = subprocess.run([gcc, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    made, program = str(folder / "requests.bpf.o"), str(folder / "requests")
    words = [clang, "-O2", "-g", "-target", "bpf", f"-I/usr/include/{target}", "-c"]
    subprocess.run([*words, str(HERE / "requests.bpf.c"), "-o", made], check=True)
    words = [gcc, "-Wall", "-Werror", str(HERE / "requests.c"), "-o", program, "-lbpf"]
    subprocess.run(words, check=True)
    return [program, made]


def test_an_unchanged_program(daemon: DaemonProcess, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "utracefs.cli", "--dir", daemon.directory, "bpf", "--", *built(tmp_path)]
    with utracefs.Session(daemon.directory) as session:
        request = session.event("bt_request u16 status; u32 usec; __rel_loc char[] path")
        wait_for(lambda: request.registered, "registered")
        with Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
            try:
                wait_for(lambda: request.enabled or tool.poll() is not None, "attached")
                for values in REQUESTS:
                    request.emit(*values)
                out, error = tool.communicate(timeout=60)
            finally:
                tool.kill()
    slow = [f"slow {usec} {path}" for _, usec, path in REQUESTS if usec >= 410]
    assert (tool.returncode, error.decode()) == (0, "")
    assert out.decode().splitlines() == [*slow, "200: 10", "404: 10", "500: 10"]
