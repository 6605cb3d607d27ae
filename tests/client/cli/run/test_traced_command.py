"""The start of a traced command: environment, preload library, a mount of its own."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli, Eventually
from tests.integration.mount.mounting import must_mount
from utracefs import startup
from utracefs.cli import Failure, c_client
from utracefs.cli.run import traced_command
from utracefs.cli.run.traced_command import (
    ROOM_KB,
    Launch,
    Obstacle,
    environment,
    launched,
    obstacle,
)
from utracefs.mount.own_namespace import MOUNTPOINT
from utracefs.tree.rpc import Rpc
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.messages.data import OpenFor


def test_where_a_command_finds_the_daemon() -> None:
    env = environment("relative")
    assert env["UTRACEFS_DIR"] == os.path.abspath("relative")
    assert env["PATH"] == os.environ["PATH"]


def test_a_recorded_command_has_room_in_its_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UTRACEFS_RING_KB", raising=False)
    assert environment(".")["UTRACEFS_RING_KB"] == str(ROOM_KB)
    monkeypatch.setenv("UTRACEFS_RING_KB", "64")
    assert environment(".")["UTRACEFS_RING_KB"] == "64", "what somebody chose"


@pytest.mark.parametrize(
    ("library", "before", "preload", "after"),
    [
        ("/lib/ours.so", None, True, "/lib/ours.so"),
        ("/lib/ours.so", "a.so:/b.so", True, "/lib/ours.so:a.so:/b.so"),
        ("/lib/ours.so", "a.so /b.so", True, "/lib/ours.so:a.so:/b.so"),
        ("/lib/ours.so", "a.so:/lib/ours.so", True, "/lib/ours.so:a.so"),
        ("/lib/ours.so", "", True, "/lib/ours.so"),
        ("/lib/ours.so", "a.so", False, "a.so"),
        ("/lib/ours.so", "/lib/ours.so", False, None),
        (None, "a.so", True, "a.so"),
        (None, None, True, None),
        ("/with blank/ours.so", None, True, None),
        ("/with:colon/ours.so", "a.so", True, "a.so"),
    ],
)
def test_what_is_preloaded(
    library: str | None,
    before: str | None,
    preload: bool,
    after: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c_client, "preload_library", lambda: library)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if before is not None:
        monkeypatch.setenv("LD_PRELOAD", before)
    assert environment(".", preload=preload).get("LD_PRELOAD") == after


def test_a_library_that_ld_preload_cannot_name(
    traced: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = (
        "utracefs: {}: LD_PRELOAD cannot name it, for a blank or colon in its path; if true uses the"
        " kernel's user_events, try --kernel-abi\n"
    )
    for library, launch, command, is_told in (
        ("/with blank/ours.so", Launch(), ["true"], True),
        ("/with:colon/ours.so", Launch(), ["true"], True),
        ("/with blank/ours.so", Launch(preload=False), ["true"], False),
        ("/with blank/ours.so", Launch(), [], False),
        ("/lib/ours.so", Launch(), ["true"], False),
        (None, Launch(), ["true"], False),
    ):
        monkeypatch.setattr(c_client, "preload_library", lambda library=library: library)
        with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree, launched(launch, tree, command):
            pass
        assert capsys.readouterr().err == (said.format(library) if is_told else "")


def test_sanitizers_get_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_client, "preload_library", lambda: "/lib/ours.so")
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    monkeypatch.delenv("TSAN_OPTIONS", raising=False)
    env = environment(".")
    assert env["ASAN_OPTIONS"] == "verify_asan_link_order=0:detect_leaks=0"
    assert env["TSAN_OPTIONS"] == "die_after_fork=0"
    env = environment(".", preload=False)
    assert env["ASAN_OPTIONS"] == "detect_leaks=0" and "TSAN_OPTIONS" not in env


COMMANDS = [
    ["record", "--"],
    ["hist", "ev", "a", "--"],
    ["perf", "stat", "--"],
    ["perf", "record", "--"],
    ["perf", "trace", "--"],
    ["perf", "top", "--"],
    ["attach", "tally", "--"],
]


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_every_command_preloads(traced: Cli) -> None:
    traced.env.pop("LD_PRELOAD", None)
    script = ["sh", "-c", 'echo "LD_PRELOAD=$LD_PRELOAD"']
    for words in COMMANDS:
        done = traced.run(*words, *script, status=int("ev" in words))  # `ev` does not come
        assert f"LD_PRELOAD={c_client.preload_library()}\n".encode() in done.stdout, words


def test_no_preload(traced: Cli) -> None:
    traced.env.pop("LD_PRELOAD", None)
    words = ["record", "--no-preload", "--", "sh", "-c", 'echo "LD_PRELOAD=$LD_PRELOAD"']
    assert "LD_PRELOAD=\n" in traced.out(*words)


@pytest.fixture
def must_have_own_namespace(tmp_path: Path) -> None:
    must_mount(tmp_path / "probe")
    if not os.path.isdir(MOUNTPOINT):
        pytest.skip(f"no {MOUNTPOINT}")


@pytest.mark.usefixtures("must_have_own_namespace")
def test_every_command_can_give_a_mount(traced: Cli) -> None:
    script = ["sh", "-c", f"ls {MOUNTPOINT}/consumers; echo LD_PRELOAD=$LD_PRELOAD"]
    for words in COMMANDS:
        done = traced.run(*words[:-1], "--kernel-abi", "--", *script, status=int("ev" in words))
        assert b"tally\n" in done.stdout and b"LD_PRELOAD=\n" in done.stdout, words


PROVIDER = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

struct user_reg {
    uint32_t size;
    uint8_t enable_bit, enable_size;
    uint16_t flags;
    uint64_t enable_addr, name_args;
    uint32_t write_index;
} __attribute__((__packed__));

static volatile uint32_t enabled;

int main(void)
{
    struct user_reg reg = {sizeof reg, 31, 4, 0, (uintptr_t)&enabled, (uintptr_t)"provided u32 n", 0};
    int fd = open("/sys/kernel/tracing/user_events_data", O_WRONLY);

    if (fd < 0 || ioctl(fd, _IOWR('*', 0, struct user_reg *), &reg))
        return perror("provider"), 1;
    for (uint32_t n = 0; n < 100; n++) {
        struct iovec parts[2] = {{&reg.write_index, 4}, {&n, 4}};
        if (!enabled || writev(fd, parts, 2) != 8)
            return perror("writev"), 2;
    }
    return 5;
}
"""
"""Knows only the kernel's interface. Its event is enabled when it is registered."""


def provider(folder: Path, *flags: str) -> str:
    (folder / "provider.c").write_text(PROVIDER)
    command = ["gcc", "-O1", *flags, "-o", "provider", "provider.c"]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip(f"{' '.join(command)} does not work here")
    return "./provider"


def provided(cli: Cli) -> list[int]:
    lines = [json.loads(line) for line in cli.out("report", "--json").splitlines()]
    assert {(line["name"], line["comm"]) for line in lines} == {("provided", "provider")}
    return [line["fields"]["n"] for line in lines]


@pytest.mark.usefixtures("must_have_own_namespace")
@pytest.mark.parametrize("flags", [["-static"], []])
def test_a_program_that_uses_the_mount(flags: list[str], cli: Cli) -> None:
    program = provider(cli.home, *flags)
    done = cli.run("record", "--kernel-abi", "-e", "provided", "--", program, status=5)
    assert (done.stdout, done.stderr.count(b"\n")) == (b"", 1), done.stderr
    assert provided(cli) == list(range(100))


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_a_program_that_uses_the_preload_library(cli: Cli) -> None:
    program = provider(cli.home)
    done = cli.run("record", "-e", "provided", "--", program, status=5)
    assert (done.stdout, done.stderr.count(b"\n")) == (b"", 1), done.stderr
    assert provided(cli) == list(range(100))


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_a_program_with_the_address_sanitizer(cli: Cli) -> None:
    program = provider(cli.home, "-fsanitize=address")
    cli.run("record", "-e", "provided", "--", program, status=5)
    assert provided(cli) == list(range(100))


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_by_hand(traced: Cli) -> None:
    """As the help of c-client says it."""
    program = provider(traced.home)
    traced.run("enable", "--standing", "provided")
    env = {**traced.env, "LD_PRELOAD": traced.out("c-client", "--preload").strip()}
    assert subprocess.run([program], cwd=traced.home, env=env, check=False).returncode == 5
    assert "provided: n=0x63 (99)" in traced.out("cat", "trace")


@pytest.mark.usefixtures("must_have_own_namespace")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv")
def test_without_the_right_to_mount(cli: Cli) -> None:
    """Then a user namespace is made, where it is allowed."""
    drop = ["setpriv", "--bounding-set=-sys_admin"] if os.geteuid() == 0 else []
    probe = ["unshare", "--user", "--mount", "--map-root-user", "true"]
    if subprocess.run([*drop, *probe], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    ours = os.readlink("/proc/self/ns/user")
    script = f"readlink /proc/self/ns/user; pwd; id -u; ls {MOUNTPOINT}/instances"
    command = [*drop, *cli.command("record", "--kernel-abi", "--", "sh", "-c", script)]
    done = subprocess.run(command, env=cli.env, cwd=cli.home, capture_output=True, text=True, check=False)
    if done.returncode and "/dev/fuse" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    theirs, cwd, uid, instance = done.stdout.splitlines()
    assert theirs != ours
    assert (cwd, uid, instance[:7]) == (str(cli.home), str(os.geteuid()), "record-")


def refused(cli: Cli, *prefix: str) -> str:
    """One line, status 1, and nothing was recorded."""
    command = [*prefix, *cli.command("record", "--kernel-abi", "--", "touch", "ran")]
    done = subprocess.run(command, env=cli.env, cwd=cli.home, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("utracefs: "), done.stderr
    assert {path.name for path in cli.home.iterdir()} <= {"d"}
    return done.stderr


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="hides directories from a process"
)


@needs_root
def test_where_there_is_no_such_directory(cli: Cli) -> None:
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted")
    assert f"{MOUNTPOINT}: there is no such directory" in refused(cli, *hide)


@needs_root
def test_where_there_is_no_fuse(cli: Cli) -> None:
    script = 'mount -t tmpfs none /dev && mkdir /dev/shm && mknod -m 666 /dev/null c 1 3 && exec "$@"'
    hide = ["unshare", "-m", "sh", "-c", script, "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted")
    assert "this machine has no FUSE" in refused(cli, *hide)


@needs_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv")
def test_where_namespaces_are_not_allowed(traced: Cli) -> None:
    """A container's seccomp filter answers EPERM; here their number is 0, in a user namespace of our own."""
    limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin "$@"'
    inside = ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", limit, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    said = refused(traced, *inside)
    assert "no user namespace for the command" in said and "max_user_namespaces" in said


def test_options_that_need_a_command(traced: Cli) -> None:
    for option in ("--kernel-abi", "--asgi"):
        assert f"{option} goes with a COMMAND" in traced.fails("record", option, status=2)


def test_a_folder_that_pythonpath_cannot_name(traced: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "__path__", ["/with:colon"])
    with (
        Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree,
        pytest.raises(Failure, match="colon"),
        launched(Launch(asgi=True), tree, ["true"]),
    ):
        pass


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EPERM, "not for you; run this as root or as the daemon's user"),
        (errno.ESRCH, "in a pid namespace of its own and sees none of our processes: .*--pid=host"),
    ],
)
def test_a_daemon_that_does_not_trust_us(
    number: int, says: str, traced: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(rpc: Rpc, params: OpenFor, about: str) -> None:
        raise OSError(number, "not for you", about)

    monkeypatch.setattr(Rpc, "call", call)
    with (
        Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree,
        pytest.raises(Failure, match=says),
        launched(Launch(kernel_abi=True), tree, ["true"]),
    ):
        pass


@pytest.mark.usefixtures("must_have_own_namespace")
def test_the_mount_goes_with_the_command(traced: Cli, eventually: Eventually) -> None:
    """Also where the recorder was killed: as long as the command runs it is there."""
    process = traced.start(
        "record",
        "--kernel-abi",
        "--",
        "sh",
        "-c",
        f"readlink /proc/self/ns/mnt; read x; ls {MOUNTPOINT}/events",
        stdin=subprocess.PIPE,
    )
    assert process.stdout and process.stdin
    namespace = process.stdout.readline().decode().strip()
    process.kill()
    process.wait()
    assert inside(namespace), "the command, and who serves the mount"
    process.stdin.write(b"\n")
    process.stdin.close()
    assert b"header_page" in process.stdout.read()
    process.stdout.close()
    if process.stderr:
        process.stderr.close()
    eventually(lambda: not inside(namespace), "both are gone")


def inside(namespace: str) -> list[str]:
    """Processes of a mount namespace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/mnt") == namespace:
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_a_static_program_without_a_mount(cli: Cli) -> None:
    program = provider(cli.home, "-static")
    hint = "./provider is statically linked; if it uses the kernel's user_events, try --kernel-abi\n"
    done = cli.run("record", "-e", "provided", "--", program, status=1)
    assert done.stderr.decode().endswith(
        f"utracefs: provided: no such event came; trace.dat is not written; {hint}"
    )
    done = cli.run("record", "--", program, status=1)
    assert done.stderr.decode().endswith(f"no record came from the command; {hint}")
    assert "statically" not in cli.run("record", "--no-preload", "--", program, status=1).stderr.decode()


TELLS_PRELOAD = r"""
#include <stdio.h>
#include <stdlib.h>
int main(void) { return puts(getenv("LD_PRELOAD") ? "yes" : "no") < 0; }
"""


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_a_program_that_would_not_start_is_not_preloaded(cli: Cli) -> None:
    """Its loader is glibc's by another name, so that there is one."""
    loader = cli.home / "ld-musl-x86_64.so.1"
    found = re.search(r"interpreter: ([^]]*)]", headers_of_python())
    if found is None:
        pytest.skip("no readelf, or no interpreter")
    loader.symlink_to(found[1])
    program = cli.home / "program"
    (cli.home / "program.c").write_text(TELLS_PRELOAD)
    words = ["gcc", f"-Wl,--dynamic-linker={loader}", "-o", str(program), "program.c"]
    if subprocess.run(words, cwd=cli.home, capture_output=True, check=False).returncode:
        pytest.skip("no gcc")
    cli.env.pop("LD_PRELOAD", None)
    assert cli.run("record", "--", str(program)).stdout == b"no\n"


def headers_of_python() -> str:
    """readelf's output for this Python."""
    readelf = shutil.which("readelf")
    if readelf is None:
        return ""
    return subprocess.run([readelf, "-l", sys.executable], capture_output=True, text=True, check=False).stdout


def build(folder: Path, *flags: str) -> str:
    (folder / "program.c").write_text("int main(void) { return 0; }\n")
    command = ["gcc", *flags, "-o", "program", "program.c"]
    if (
        shutil.which("gcc") is None
        or subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{' '.join(command)} does not work here")
    return str(folder / "program")


def text_of(program: str) -> str:
    found = obstacle(program)
    assert found is not None
    return found.text


def test_an_ordinary_program(tmp_path: Path) -> None:
    assert obstacle(build(tmp_path)) is None
    assert obstacle("sh") is None


@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_a_static_program(flag: str, tmp_path: Path) -> None:
    program = build(tmp_path, flag)
    assert text_of(program) == "is statically linked; if it uses the kernel's user_events, try --kernel-abi"


def test_a_program_of_musl(tmp_path: Path) -> None:
    found = obstacle(build(tmp_path, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"))
    assert found is not None and found.ends_program and found.text.startswith("is linked with musl; ")


def test_a_program_of_32_bits(tmp_path: Path) -> None:
    program = Path(build(tmp_path))
    data = bytearray(program.read_bytes())
    data[4] = 1
    program.write_bytes(data)
    assert text_of(str(program)).startswith("is a program of 32 bits; ")


@pytest.mark.parametrize(("bit", "owner"), [(stat.S_ISUID, "geteuid"), (stat.S_ISGID, "getegid")])
def test_a_program_with_rights_of_its_own(
    bit: int, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = build(tmp_path)
    os.chmod(program, 0o755 | bit)
    assert obstacle(program) is None, "rights that we have"
    monkeypatch.setattr(os, owner, lambda: 54321)
    assert "more rights" in text_of(program) and "as root" in text_of(program)


def test_file_capabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = build(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"\1")
    assert "more rights" in text_of(program)


@pytest.mark.parametrize("keep", [0, 3, 63, 64, 100])
def test_what_is_no_program(keep: int, tmp_path: Path) -> None:
    """An unreadable file gives no reason; exec reports its error."""
    whole = Path(build(tmp_path)).read_bytes()
    short = tmp_path / "short"
    short.write_bytes(whole[:keep])
    short.chmod(0o755)
    found = obstacle(str(short))
    assert found is None or found.text.startswith("is statically linked")
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert obstacle(str(script)) is None
    assert obstacle(str(tmp_path / "none")) is None
    assert obstacle(str(tmp_path)) is None


def test_headers_that_lie(tmp_path: Path) -> None:
    program = Path(build(tmp_path))
    data = program.read_bytes()
    for places in ((32, 40), (54, 56), (56, 58)):
        changed = bytearray(data)
        changed[slice(*places)] = b"\xff" * (places[1] - places[0])
        program.write_bytes(changed)
        assert isinstance(obstacle(str(program)), Obstacle | None)


def test_the_other_byte_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = build(tmp_path, "-static")
    monkeypatch.setattr(traced_command, "our_byte_order", lambda: 3)
    assert obstacle(program) is None
