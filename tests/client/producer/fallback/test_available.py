"""Where there can be tracing. The other cases need interpreters of their own: test_without_tracing.py."""

import subprocess
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import FakeDaemon
from tests.client.daemons.real_daemon import run_python
from tests.judges import needs
from utracefs.cli import c_client
from utracefs.producer.fallback import available


def test_in_the_main_interpreter() -> None:
    assert available.CAN_TRACE


def test_without_a_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    assert not available._can_trace()


OTHER = """
#include <stddef.h>
void *utracefs_declare(const char *command, unsigned flags) { return command && flags ? NULL : NULL; }
"""
USE = """
import ctypes, sys, warnings
ctypes.CDLL(sys.argv[1])
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import utracefs
event = utracefs.event("t u8 a")
event.emit(1)
assert not event and not utracefs.stats().connected
(said,) = warned
print(said.category.__name__, said.message)
"""


def other_library(tmp_path: Path) -> Path:
    library = tmp_path / "libutracefs.so.0"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libutracefs.so.0", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=OTHER, text=True, check=True)
    return library


@needs("gcc")
def test_a_library_of_another_version(tmp_path: Path) -> None:
    """It was loaded before, by its soname. The program runs, with a warning."""
    library = other_library(tmp_path)
    done = run_python("-c", USE, str(library))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("RuntimeWarning events are off, since libutracefs cannot be used: ")


@needs("gcc")
@pytest.mark.parametrize("close", ["", "os.close(2)", "sys.stderr = None"])
def test_a_library_of_another_version_where_warnings_are_exceptions(tmp_path: Path, close: str) -> None:
    """The import does not fail."""
    program = f"import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); {close}\nimport utracefs"
    done = run_python("-Werror", "-c", program, str(other_library(tmp_path)))
    assert done.returncode == 0, done.stderr
    text = "utracefs: events are off, since libutracefs cannot be used: "
    assert done.stderr == "" if close else done.stderr.startswith(text)


def test_the_library_is_the_one_beside_the_modules() -> None:
    with open("/proc/self/maps") as maps:
        (found,) = {line.split()[-1] for line in maps if "libutracefs.so" in line}
    assert c_client.preload_library() == str(Path(found).with_name("libutracefs-preload.so"))


TWO_SIDES = """
import ctypes, os, time, utracefs
event = utracefs.event("one u32 number")
declare = ctypes.CDLL(PATH).utracefs_declare
declare.restype = ctypes.c_void_p
assert declare(b"two u32 number", 0)
deadline = time.monotonic() + 60
while not (event and ctypes.CDLL(PATH).utracefs_flush(1000) == 0):
    assert time.monotonic() < deadline
event.emit(1)
assert utracefs.flush(60)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("preloaded", [False, True])
def test_c_code_of_the_program_has_the_same_connection_and_thread(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, preloaded: bool
) -> None:
    daemon.enabled_from_start.add(b"one u32 number")
    library = c_client.preload_library()
    assert library
    if preloaded:
        monkeypatch.setenv("LD_PRELOAD", library)
    path = str(Path(library).with_name("libutracefs.so.0"))
    done = run_python("-c", TWO_SIDES.replace("PATH", repr(path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    (client,) = daemon.clients
    assert sorted(client.names) == [b"one u32 number", b"two u32 number"]
    assert [command for command, _ in client.records] == [b"one u32 number"]
