"""Whether the time stamp counter may replace the clock: where the kernel itself takes the time from it."""

import platform
from pathlib import Path

_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_CPUINFO = Path("/proc/cpuinfo")

_STEADY = {"constant_tsc", "nonstop_tsc"}
"""The counter has a constant rate at any cpu frequency, and counts while the cpu sleeps."""


def trusted(clocksource: Path = _CLOCKSOURCE, cpuinfo: Path = _CPUINFO) -> bool:
    """The kernel's own judgement; it changes when the kernel's watchdog finds the counters of two cpus
    apart."""
    if platform.machine() != "x86_64":
        return False
    try:
        if clocksource.read_text().strip() != "tsc":
            return False
        with cpuinfo.open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return set(flags.split()) >= _STEADY
