"""Whether the time stamp counter may stand for the clock: where the kernel itself takes the time from it."""

import platform
from pathlib import Path

_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_CPUINFO = Path("/proc/cpuinfo")

_STEADY = {"constant_tsc", "nonstop_tsc"}
"""It ticks at one rate whatever the cpu's frequency is, and goes on while the cpu sleeps."""


def trusted(clocksource: Path = _CLOCKSOURCE, cpuinfo: Path = _CPUINFO) -> bool:
    """The kernel's own judgement, which it changes when its watchdog finds the counters of two cpus apart."""
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
