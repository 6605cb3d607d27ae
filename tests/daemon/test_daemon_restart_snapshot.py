"""Snapshots, and what the next daemon finds of them."""

from __future__ import annotations

import re

from tests.daemon.restarting import read
from utracefsd.daemon import Daemon


def numbers(daemon: Daemon, path: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb" n=0x[0-9a-f]+ \((\d+)\)", read(daemon, path))]
