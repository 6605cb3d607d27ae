from __future__ import annotations

import pytest

from utracefsd.consumers.ftrace.hist.syscalls import syscall_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, b"sys_read"),
        (1, b"sys_write"),
        (4, b"sys_newstat"),
        (10, b"sys_mprotect"),
        (166, b"sys_umount"),
        (334, b"sys_rseq"),
        (424, b"sys_pidfd_send_signal"),
        (435, b"sys_clone3"),
        (462, b"sys_mseal"),
        (335, b"unknown_syscall"),
        (156, b"unknown_syscall"),
        ((1 << 64) - 1, b"unknown_syscall"),
    ],
)
def test_x86_64(number: int, name: bytes) -> None:
    assert syscall_name(number, "x86_64") == name


def test_elsewhere() -> None:
    assert syscall_name(1, "aarch64") == b"unknown_syscall"
