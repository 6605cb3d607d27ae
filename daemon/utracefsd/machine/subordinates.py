"""The user whose limits count a user id: itself, or the user to whom the id was given.

subuid(5): /etc/subuid gives ordinary users ranges of 65536 further user ids, for their containers. All ids of
a range count as that user, who could otherwise have each limit per user 65536 times. Ranges of root are for
containers that an administrator set up; there every id is a user of its own.

    NAME-OR-UID:FIRST:COUNT

Names are looked up in /etc/passwd itself and not through the C library, which may ask a server and block.
"""

import os
from pathlib import Path

SUBUID = Path("/etc/subuid")
PASSWD = Path("/etc/passwd")

FIRST_SUBORDINATE = 65536
"""Smaller ids are the system's and people's own (login.defs(5), SUB_UID_MIN); no file is read for them."""

_Ranges = list[tuple[int, int, int]]

_ranges: _Ranges = []
_read_of: tuple[float, int] | None = None
"""Modification time and size of the file that the ranges are from."""


def share_of(uid: int) -> int:
    """The user whose limits count `uid`."""
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
    except OSError:  # no such file: there are no ranges
        _ranges, _read_of = [], None
    return _ranges


def _parse(subuid: bytes, passwd: bytes) -> _Ranges:
    uids = {fields[0]: fields[2] for line in passwd.splitlines() if len(fields := line.split(b":")) > 2}
    ranges: _Ranges = []
    for line in subuid.splitlines():
        owner, *numbers = line.split(b":")
        try:
            first, count = map(int, numbers)
            # A user that only a server knows: then the range at least counts as one user.
            uid = int(uids.get(owner, owner)) if uids.get(owner, owner).isdigit() else first
        except ValueError:  # a comment, or not a line of this file
            continue
        if uid != 0:
            ranges.append((first, first + count, uid))
    return ranges
