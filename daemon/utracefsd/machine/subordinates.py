"""Whose share a user id is counted in: its own, or that of the user to whom it was given.

subuid(5): /etc/subuid gives ordinary users ranges of 65536 further user ids, for containers of their own. All
of them are that user, who could otherwise have each limit per user 65536 times. Ranges of root are for
containers that an administrator set up; there every id is a user of its own.

    NAME-OR-UID:FIRST:COUNT

Names are looked up in /etc/passwd itself and not through the C library, which may ask a server and wait for
it.
"""

import os
from pathlib import Path

SUBUID = Path("/etc/subuid")
PASSWD = Path("/etc/passwd")

FIRST_SUBORDINATE = 65536
"""Below are the system's and people's own ids (login.defs(5), SUB_UID_MIN), for which no file is read."""

_Ranges = list[tuple[int, int, int]]

_ranges: _Ranges = []
_read_of: tuple[float, int] | None = None
"""Time of change and size of the file that the ranges are from."""


def share_of(uid: int) -> int:
    """The user in whose share `uid` is counted."""
    if uid < FIRST_SUBORDINATE:
        return uid
    return next((owner for first, end, owner in _current_ranges() if first <= uid < end), uid)


def _current_ranges() -> _Ranges:
    global _ranges, _read_of
    try:
        found = os.stat(SUBUID)
        stamp = (found.st_mtime, found.st_size)
        if stamp != _read_of:
            _ranges = _parse(SUBUID.read_bytes(), PASSWD.read_bytes())
            _read_of = stamp
    except OSError:  # no such file: nobody has any
        _ranges, _read_of = [], None
    return _ranges


def _parse(subuid: bytes, passwd: bytes) -> _Ranges:
    uids = {fields[0]: fields[2] for line in passwd.splitlines() if len(fields := line.split(b":")) > 2}
    ranges: _Ranges = []
    for line in subuid.splitlines():
        owner, *numbers = line.split(b":")
        try:
            first, count = map(int, numbers)
            # Somebody who is known to a server only: all of a range is one user at least.
            uid = int(uids.get(owner, owner)) if uids.get(owner, owner).isdigit() else first
        except ValueError:  # a comment, or not a line of this file
            continue
        if uid != 0:
            ranges.append((first, first + count, uid))
    return ranges
