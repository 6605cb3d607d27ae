"""Program files that the preload library cannot be used with."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from utracefs.cli.run import preload_check
from utracefs.cli.run.preload_check import Obstacle, obstacle


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
    monkeypatch.setattr(preload_check, "_our_byte_order", lambda: 3)
    assert obstacle(program) is None
