"""Where the time stamp counter may replace the clock."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from utracefsd.machine import tsc

STEADY = "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc avx\nprocessor\t: 1\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("clocksource", "cpuinfo", "machine", "expected"),
    [
        ("tsc\n", STEADY, "x86_64", True),
        ("hpet\n", STEADY, "x86_64", False),
        ("kvm-clock\n", STEADY, "x86_64", False),
        ("tsc-early\n", STEADY, "x86_64", False),
        ("tsc\n", STEADY.replace("nonstop_tsc", ""), "x86_64", False),
        ("tsc\n", STEADY.replace("constant_tsc", ""), "x86_64", False),
        ("tsc\n", "no flags here\n", "x86_64", False),
        ("tsc\n", STEADY, "aarch64", False),
        ("tsc\n", None, "x86_64", False),
        (None, STEADY, "x86_64", False),
    ],
)
def test_only_where_the_kernel_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clocksource: str | None,
    cpuinfo: str | None,
    machine: str,
    expected: bool,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for name, text in (("clocksource", clocksource), ("cpuinfo", cpuinfo)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert tsc.trusted(tmp_path / "clocksource", tmp_path / "cpuinfo") is expected


def test_this_machine_has_an_answer() -> None:
    assert tsc.trusted() in (True, False)
