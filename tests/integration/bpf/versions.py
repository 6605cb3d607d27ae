"""`make bpftrace-versions`: the programs of workload.py with bpftrace of newer Debians, each in a root.

    python -m tests.integration.bpf.versions [SUITE...]     trixie, sid

Needs root and debootstrap. The roots are kept in the user's cache; removing them makes new ones. Prints the
answers of each version, for docs/bpftrace-versions.txt; the status is 1 if one is not as expected.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import utracefs
from tests.integration.bpf.workload import PROGRAMS, REQUEST, Bpftrace, Program, plain
from tests.integration.conftest import own_directory, running
from utracefs.cli.c_client import bpf_library

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "utracefs", "bpftrace")
INSIDE = "/srv"
NEWER = {
    "a loop over a map": Program(
        f"{REQUEST} {{ @m[args.status] = count(); }} tracepoint:user_events:bt_end /args.id == 2/"
        ' { for ($kv : @m) { printf("%d %d\\n", $kv.0, (int64)$kv.1); } clear(@m); }',
        "200 10\n404 10\n500 10",
    ),
}
"""Not in 0.17."""


def root_of(suite: str) -> Path:
    root = CACHE / suite
    if not (root / "usr/bin/bpftrace").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        print(f"making {root}", file=sys.stderr, flush=True)
        words = ["debootstrap", "--variant=minbase", "--include=bpftrace", suite, str(root)]
        subprocess.run([*words, *mirror()], check=True, stdout=subprocess.DEVNULL)
    return root


def mirror() -> list[str]:
    """Where this machine has its bpftrace from: it may have sources of other makers, too."""
    policy = subprocess.run(["apt-cache", "policy", "bpftrace"], capture_output=True, text=True, check=False)
    return re.findall(r"^ +\d+ (https?://\S+)", policy.stdout, re.MULTILINE)[:1]


def command(root: Path, directory: str) -> list[str]:
    """As root: 0.27 looks for CAP_BPF. The library and the daemon's sockets are in /srv."""
    library = bpf_library()
    assert library
    mounts = f'mkdir -p "$1{INSIDE}/lib" "$1{INSIDE}/daemon" && mount --bind "$2" "$1{INSIDE}/lib" &&'
    mounts += (
        f' mount --bind "$3" "$1{INSIDE}/daemon" && mount -t proc proc "$1/proc" && root=$1 && shift 3 &&'
    )
    mounts += ' mount -t tmpfs none "$root/sys" && mkdir -p "$root/sys/devices/system" &&'
    mounts += ' mount --rbind /sys/devices/system "$root/sys/devices/system" 2>/dev/null;'
    environ = [f"LD_PRELOAD={INSIDE}/lib/{Path(library).name}", f"UTRACEFS_DIR={INSIDE}/daemon"]
    chroot = ' exec chroot "$root" env "$@"'
    return [
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", mounts + chroot, "sh"),
        *(str(root), str(Path(library).parent), directory, *environ, "bpftrace"),
    ]


def answer(root: Path, program: Program) -> tuple[int, str, str]:
    with (
        contextlib.redirect_stdout(sys.stderr),  # the daemon's log
        own_directory() as directory,
        running(directory),
        utracefs.Session(directory) as session,
        Bpftrace(command(root, directory), session, program.text) as tool,
    ):
        tool.attached().emit()
        return tool.end()


def run(suite: str) -> int:
    """Number of programs that answered otherwise than expected."""
    root = root_of(suite)
    version = subprocess.run(["chroot", root, "bpftrace", "--version"], capture_output=True, check=True)
    print(f"=== Debian {suite}: {version.stdout.decode().strip()}")
    wrong = 0
    for name, program in {**PROGRAMS, **NEWER}.items():
        status, out, error = answer(root, program)
        right = program.fits(plain(out)) and not (status or re.search(r"^utracefs:|ERROR|Lost", error))
        wrong += not right
        print(f"\n--- {name}: {'as expected' if right else 'OTHERWISE'}\n$ bpftrace -e '{program.text}'")
        print(plain(out), *([f"{error}status {status}"] if status or error else []), sep="\n", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(sum(map(run, sys.argv[1:] or ["trixie", "sid"])) > 0)
