"""Programs without events are unaffected by the preload library."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.c.building import preload_library
from tests.client.c.preload.programs import compiled, environment, run
from tests.client.daemons.real_daemon import Work
from tests.judges import needs

needs_strace = needs("strace")


def without_library(env: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if k != "LD_PRELOAD"}


def system_calls(program: Path, folder: Path, env: dict[str, str]) -> list[str]:
    """From the first getppid on, without what differs from run to run."""
    trace = folder / "strace"
    preload = ["-E", f"LD_PRELOAD={env.pop('LD_PRELOAD')}"] if "LD_PRELOAD" in env else []
    subprocess.run(["strace", *preload, "-o", trace, program, folder / "file"], env=env, check=True)
    lines = trace.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("getppid"))
    mine = [line for line in lines[first + 1 :] if not line.startswith(("---", "wait4", "+++"))]
    return [re.sub(r"0x[0-9a-f]+", "P", re.sub(r"= \d{3,}$", "", line)) for line in mine]


@needs_strace
def test_the_same_system_calls(work: Work, tmp_path: Path) -> None:
    program = compiled("preload_ordinary.c", tmp_path)
    calls = system_calls(program, tmp_path, without_library(environment()))
    assert len(calls) > 30
    assert system_calls(program, tmp_path, environment()) == calls


@needs_strace
def test_nothing_is_opened_or_started_before_there_is_a_file(work: Work, tmp_path: Path) -> None:
    """At start it only looks its functions up."""
    trace = tmp_path / "strace"
    env = environment()
    preload = f"LD_PRELOAD={env.pop('LD_PRELOAD')}"
    subprocess.run(["strace", "-f", "-E", preload, "-o", trace, "/bin/true"], env=env, check=True)
    text = trace.read_text()
    assert not re.search(r"\b(socket|connect|clone3?|memfd_create|eventfd2|kill)\(", text)
    opened = re.findall(r'openat\(AT_FDCWD, "([^"]*)"', text)
    assert [name for name in opened if "utracefs" in name] == [str(preload_library())]


def visible(library: Path) -> set[str]:
    lines = run("nm", "-D", "--defined-only", str(library), env=dict(os.environ)).splitlines()
    return {line.split()[-1] for line in lines}


def test_only_wrappers_are_visible() -> None:
    """Without a version: they stand in for the C library's. The core is for nobody else, who may be linked
    with another build of it."""
    names = visible(preload_library())
    assert all(hasattr(ctypes.CDLL(None), name) for name in names)
    assert {"open", "ioctl", "writev", "close", "syscall"} <= names


PROGRAMS = [
    ["bash", "-c", "echo a | cat; exec 5>/dev/null; echo b >&5; (exit 3); echo $?; x=$(seq 3); echo $x"],
    ["make", "-f", "/dev/stdin", "-s"],
    [sys.executable, "-c", "import subprocess as s; print(s.run(['echo', 'x'], stdout=-1).stdout)"],
    [sys.executable, "-c", "import multiprocessing as m; print(m.Pool(2).map(abs, [-1, -2]))"],
    [sys.executable, "-c", "open('/sys/kernel/tracing/user_events_dat')"],
    ["tar", "-c", "/etc/passwd", "--to-stdout"],
    ["find", "/etc/passwd", "/nowhere"],
]


@pytest.mark.parametrize("command", PROGRAMS, ids=[" ".join(c)[-40:] for c in PROGRAMS])
def test_programs_do_what_they_do(work: Work, command: list[str]) -> None:
    def outcome(env: dict[str, str]) -> tuple[int, bytes, bytes]:
        makefile = b"all:\n\t@echo hello; false\n"
        done = subprocess.run(command, env=env, input=makefile, capture_output=True, check=False, timeout=60)
        return done.returncode, done.stdout, done.stderr

    assert outcome(environment()) == outcome(without_library(environment()))


OPEN = """
import errno, os
for path in ("/sys/kernel/tracing/user_events_data", "/nowhere/user_events_data"):
    try:
        print(os.readlink(f"/proc/self/fd/{os.open(path, os.O_RDWR)}"))
    except OSError as e:
        print(errno.errorcode[e.errno])
"""


def test_without_a_daemon_all_is_passed_on(tmp_path: Path) -> None:
    """The kernel's file if there is one, else its error."""
    env = environment(UTRACEFS_DIR=str(tmp_path))
    answer = run(sys.executable, "-c", OPEN, env=env)
    assert answer == run(sys.executable, "-c", OPEN, env=without_library(env))
    assert answer.endswith("ENOENT\n")


PYTHON = """
import ctypes, fcntl, os, struct
word = ctypes.c_uint32()
command = ctypes.create_string_buffer(b"work u32 who; u32 number")
fd = os.open("/sys/kernel/tracing/user_events_data", os.O_RDWR)
reg = bytearray(struct.pack("=IBBHQQI", 28, 0, 4, 0, ctypes.addressof(word), ctypes.addressof(command), 9))
fcntl.ioctl(fd, 0xC0082A00, reg)
assert reg[24:] == bytes(4) and word.value == 1
name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
print(os.writev(fd, [struct.pack("=i", 0), struct.pack("=II", 1, 2)]), name)
"""


def test_python_speaks_the_abi(work: Work) -> None:
    assert run(sys.executable, "-c", PYTHON) == "12 memfd:user_events_data (deleted)\n"
    assert work.numbers() == {1: [2]}


def test_a_static_program_is_not_affected(work: Work, tmp_path: Path) -> None:
    program = compiled("preload_cases.c", tmp_path, "-static")
    done = subprocess.run([program, "vforks"], env=environment(), capture_output=True, check=False)
    assert done.returncode == 1 and b"fd >= 0" in done.stderr
    assert work.numbers() == {}


CASES = ["descriptors", "streams", "by_number", "threads", "wrong_pointers"]


@pytest.mark.parametrize("sanitizer", ["address first", "address", "thread"])
def test_programs_with_sanitizers(work: Work, tmp_path: Path, sanitizer: str) -> None:
    """AddressSanitizer wants to come first, or not to look; ThreadSanitizer sees no race."""
    program = compiled("preload_cases.c", tmp_path, f"-fsanitize={sanitizer.split()[0]}")
    library = run("gcc", "-print-file-name=libasan.so", env=dict(os.environ)).strip()
    env = environment(*([library] if "first" in sanitizer else []), ASAN_OPTIONS="verify_asan_link_order=0")
    for case in CASES:
        assert run(program, case, env=env) == ""
    assert {0, 1, 2, 3, 4, 5} <= set(work.numbers())


@pytest.mark.parametrize("allocator", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
@pytest.mark.parametrize("is_first", [True, False])
def test_other_allocators(work: Work, tmp_path: Path, allocator: str, is_first: bool) -> None:
    """They open files and ask for memory while our functions are looked up."""
    found = [path for path in Path("/usr/lib").glob(f"*/{allocator}") if path.exists()]
    if not found:
        pytest.skip(f"no {allocator}")
    program = compiled("preload_cases.c", tmp_path)
    env = environment(str(found[0])) if is_first else environment()
    env["LD_PRELOAD"] += "" if is_first else f":{found[0]}"
    for case in CASES:
        assert run(program, case, env=env) == ""


RUST = """
use std::io::Write;
use std::os::fd::AsRawFd;
extern "C" { fn ioctl(fd: i32, request: u64, argument: *mut u8) -> i32; }
#[repr(C, packed)]
struct UserReg { size: u32, bit: u8, enable_size: u8, flags: u16, addr: u64, name: u64, index: u32 }
static mut WORD: u32 = 0;
fn main() {
    let path = "/sys/kernel/tracing/user_events_data";
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let addr = &raw mut WORD as u64;
    let name = c"work u32 who; u32 number".as_ptr() as u64;
    let mut reg = UserReg { size: 28, bit: 0, enable_size: 4, flags: 0, addr, name, index: 9 };
    assert_eq!(unsafe { ioctl(file.as_raw_fd(), 0xC0082A00, &mut reg as *mut UserReg as *mut u8) }, 0);
    assert_eq!(unsafe { *(&raw const WORD) }, 1);
    let record = [0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0];
    std::thread::spawn(move || file.write_all(&record).unwrap()).join().unwrap();
}
"""


@needs("rustc")
def test_rust(work: Work, tmp_path: Path) -> None:
    (tmp_path / "main.rs").write_text(RUST)
    subprocess.run(
        ["rustc", "--edition", "2021", "-o", tmp_path / "main", tmp_path / "main.rs"],
        check=True,
        capture_output=True,
    )
    run(tmp_path / "main")
    assert work.numbers() == {3: [4]}
