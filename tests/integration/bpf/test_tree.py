"""preload_tree.c: files of tracefs, as programs of all kinds open them, without a mount."""

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import utracefs
from tests.client.c.building import build
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for
from utracefs.tree.tracefs import Tracefs

TREE = "/sys/kernel/tracing"


@pytest.fixture(scope="module")
def library() -> Path:
    return build("all") / "libutracefs-bpf.so"


@pytest.fixture
def events(daemon: DaemonProcess) -> Iterator[Tracefs]:
    with utracefs.Session(daemon.directory) as session, daemon.tree() as tree:
        session.event("bt_one u8 a; u32 b; __rel_loc char[] s")
        session.event("bt_two u64 n")
        last = session.event(
            "bt_Head_L5K1 u8 eventheader_flags; u8 version; u16 id; u16 tag; u8 opcode; u8 level"
        )
        wait_for(lambda: last.registered, "registered")
        yield tree


def run(library: Path, directory: str, *command: str) -> tuple[int, str, str]:
    env = {**os.environ, "LD_PRELOAD": str(library), "UTRACEFS_DIR": directory}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("root", [TREE, "/sys/kernel/debug/tracing", f"{TREE}/"])
def test_files(library: Path, daemon: DaemonProcess, events: Tracefs, root: str) -> None:
    def cat(path: str) -> str:
        status, text, error = run(library, daemon.directory, "cat", f"{root}/{path}")
        assert (status, error) == (0, "")
        return text

    assert cat("available_events") == events.read_file("available_events").decode()
    assert cat("available_filter_functions") == ""
    assert cat("events/user_events/bt_one/id") == events.read_file("events/user_events/bt_one/id").decode()
    text = cat("events/user_events/bt_one/format")
    assert "\tfield:unsigned int b;\toffset:12;\tsize:4;\tsigned:0;\n" in text
    assert "\tfield:__data_loc char[] s;\toffset:16;\tsize:4;\tsigned:1;\n" in text


PYTHON = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
root = "/sys/kernel/tracing"
for path in ("", "/events", "/events/user_events/bt_two", "/events/user_events/bt_two/id", "/gone",
             "/trace_pipe", "/events/sched", "/events/user_events/gone/id"):
    try:
        kind = "d" if os.path.isdir(root + path) else "f" if os.stat(root + path) else ""
    except FileNotFoundError:
        kind = "-"
    print(path, kind, os.access(root + path, os.R_OK, effective_ids=True), os.access(root + path, os.W_OK))
for name in ("fopen", "fopen64"):
    call = getattr(libc, name)
    call.restype = ctypes.c_void_p
    print(name, bool(call(f"{root}/events/user_events/bt_two/id".encode(), b"re")),
          bool(call(f"{root}/events/user_events/bt_two/id".encode(), b"r+")), ctypes.get_errno())
fd = libc.open64(f"{root}/available_events".encode(), os.O_RDONLY | os.O_CLOEXEC)
print(os.get_inheritable(fd), os.path.exists("/etc/passwd"), len(open("/etc/passwd").read()) > 0)
try:
    os.open(f"{root}/available_events", os.O_RDWR)
except PermissionError:
    print("refused")
"""


def test_calls(library: Path, daemon: DaemonProcess, events: Tracefs) -> None:
    status, text, error = run(library, daemon.directory, sys.executable, "-c", PYTHON)
    assert (status, error) == (0, "")
    assert text.splitlines() == [
        " d True False",
        "/events d True False",
        "/events/user_events/bt_two d True False",
        "/events/user_events/bt_two/id f True False",
        "/gone - False False",
        "/trace_pipe - False False",  # reading it would consume
        "/events/sched - False False",
        "/events/user_events/gone/id - False False",
        "fopen True False 13",
        "fopen64 True False 13",
        "False True True",
        "refused",
    ]


def test_glob(library: Path, daemon: DaemonProcess, events: Tracefs) -> None:
    program = (
        "import ctypes\n"
        "class Found(ctypes.Structure):\n"
        "    _fields_ = [('count', ctypes.c_size_t), ('paths', ctypes.POINTER(ctypes.c_char_p)),\n"
        "                ('offset', ctypes.c_size_t), ('rest', ctypes.c_byte * 64)]\n"
        "libc = ctypes.CDLL(None)\n"
        "for pattern in ('user_events/bt_*/format', '*/bt_two', 'user_events/x*/id', 'sched/*/id'):\n"
        "    found = Found()\n"
        f"    print(libc.glob(('{TREE}/events/' + pattern).encode(), 0, None, ctypes.byref(found)),\n"
        "          [found.paths[i].decode() for i in range(found.count)])\n"
        "    libc.globfree(ctypes.byref(found))\n"
    )
    status, text, error = run(library, daemon.directory, sys.executable, "-c", program)
    assert (status, error) == (0, "")
    names = ("bt_Head_L5K1", "bt_one", "bt_two")
    assert text.splitlines() == [
        f"0 {[f'{TREE}/events/user_events/{name}/format' for name in names]}",
        f"0 {[f'{TREE}/events/user_events/bt_two']}",
        "3 []",
        "3 []",
    ]


@pytest.mark.skipif(not ctypes.util.find_library("bpf"), reason="libbpf")
def test_types(library: Path, daemon: DaemonProcess) -> None:
    """libbpf reads them, and finds all names of C's integers."""
    program = (
        "import ctypes\n"
        f"libbpf = ctypes.CDLL({ctypes.util.find_library('bpf')!r})\n"
        "load, find = libbpf.btf__load_vmlinux_btf, libbpf.btf__find_by_name\n"
        "load.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]\n"
        "size = libbpf.btf__resolve_size\n"
        "size.argtypes, size.restype = [ctypes.c_void_p, ctypes.c_uint], ctypes.c_longlong\n"
        "btf = load()\n"
        "for name in 'char', 'unsigned short', 'int', 'unsigned long', '_Bool', 'u8', 's16', 'u32', 's64':\n"
        "    print(size(btf, find(btf, name.encode())))\n"
        "print(find(btf, b'task_struct'))\n"
    )
    status, text, error = run(library, daemon.directory, sys.executable, "-c", program)
    assert (status, error) == (0, "")
    assert text.split() == ["1", "2", "4", "8", "1", "1", "2", "4", "8", "-2"]


def test_messages(library: Path, daemon: DaemonProcess, events: Tracefs, tmp_path: Path) -> None:
    header = f"{TREE}/events/user_events/bt_Head_L5K1/format"
    status, text, error = run(library, daemon.directory, "cat", header)
    assert status == 0
    assert "field:unsigned char level;\toffset:15;" in text
    assert error.startswith("utracefs: bt_Head_L5K1: its records describe themselves (EventHeader)")
    status, _, error = run(library, str(tmp_path), "cat", header)
    assert status == 1
    assert error.startswith(f"utracefs: no daemon in {tmp_path}: No such file or directory\n")


MANY = """
import ctypes, fcntl, struct
libc = ctypes.CDLL(None, use_errno=True)
for n in range(70):
    id = int(open(f"/sys/kernel/tracing/events/user_events/bt_{n}/id").read())
attr = struct.pack("IIQ104x", 2, 120, id)
fcntl.ioctl(libc.syscall(298, attr, -1, 0, -1, 0), 0x2400, 0)  # PERF_EVENT_IOC_ENABLE
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call's number")
def test_more_events_than_a_stream_can_name(library: Path, daemon: DaemonProcess) -> None:
    with utracefs.Session(daemon.directory) as session:
        events = session.events(f"bt_{n} u32 n" for n in range(70))
        wait_for(lambda: events[-1].registered, "registered")
        assert run(library, daemon.directory, sys.executable, "-c", MANY) == (0, "", "")
