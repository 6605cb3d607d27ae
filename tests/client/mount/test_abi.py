"""Sizes and places are those of <linux/fuse.h>, which a C compiler says where that header is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from utracefs.mount import abi

STRUCTS = {
    "fuse_out_header": abi.OUT_HEADER,
    "fuse_entry_out": abi.ENTRY_OUT,
    "fuse_attr_out": abi.ATTR_OUT,
    "fuse_forget_in": abi.FORGET_IN,
    "fuse_batch_forget_in": abi.BATCH_FORGET_IN,
    "fuse_forget_one": abi.FORGET_ONE,
    "fuse_setattr_in": abi.SETATTR_IN,
    "fuse_mknod_in": abi.MKNOD_IN,
    "fuse_mkdir_in": abi.MKDIR_IN,
    "fuse_open_in": abi.OPEN_IN,
    "fuse_open_out": abi.OPEN_OUT,
    "fuse_read_in": abi.READ_IN,
    "fuse_write_in": abi.WRITE_IN,
    "fuse_write_out": abi.WRITE_OUT,
    "fuse_release_in": abi.RELEASE_IN,
    "fuse_statfs_out": abi.STATFS_OUT,
    "fuse_init_out": abi.INIT_OUT,
    "fuse_interrupt_in": abi.INTERRUPT_IN,
    "fuse_ioctl_in": abi.IOCTL_IN,
    "fuse_ioctl_out": abi.IOCTL_OUT,
    "fuse_poll_in": abi.POLL_IN,
    "fuse_poll_out": abi.POLL_OUT,
    "fuse_notify_poll_wakeup_out": abi.NOTIFY_POLL_OUT,
    "fuse_dirent": abi.DIRENT,
}
SIZES = [16, 128, 104, 8, 8, 16, 88, 16, 8, 8, 16, 40, 40, 8, 24, 80, 64, 8, 32, 16, 24, 8, 8, 24]


def test_sizes() -> None:
    assert [one.size for one in STRUCTS.values()] == SIZES


@pytest.mark.skipif(
    not (shutil.which("gcc") and Path("/usr/include/linux/fuse.h").exists()), reason="needs a compiler"
)
def test_the_header_agrees(tmp_path: Path) -> None:
    numbers = [f"FUSE_{one.name}" for one in abi.Opcode]
    numbers += [f"FUSE_{one.name}" for one in abi.InitFlag] + [f"FOPEN_{one.name}" for one in abi.OpenFlag]
    numbers += [f"FATTR_{one.name}" for one in abi.SetattrValid] + ["FUSE_IOCTL_COMPAT", "FUSE_IOCTL_32BIT"]
    lines = [f'printf("%ld ", (long)sizeof(struct {name}));' for name in STRUCTS]
    lines += [f'printf("%ld ", (long){name});' for name in numbers]
    source = tmp_path / "sizes.c"
    source.write_text("#include <stdio.h>\n#include <linux/fuse.h>\nint main() {" + "".join(lines) + "}\n")
    subprocess.run(["gcc", "-o", tmp_path / "sizes", source], check=True)
    found = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout
    ours = [*abi.Opcode, *abi.InitFlag, *abi.OpenFlag, *abi.SetattrValid, *abi.IoctlFlag]
    assert list(map(int, found.split())) == [*SIZES, *ours]


def test_header_of_a_request() -> None:
    request = (44).to_bytes(4, "little") + (15).to_bytes(4, "little") + (6).to_bytes(8, "little")
    request += (3).to_bytes(8, "little") + bytes(8) + (99).to_bytes(4, "little") + bytes(4) + b"body"
    assert abi.Header.from_request(request) == (abi.Header(15, 6, 3, 99), b"body")
