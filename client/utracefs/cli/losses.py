"""Losses in words: for the summary of `record`, for its file, and for `report` of the file. Also the refused
records."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from utracefs.cli import Failure

IN_RINGS: Final = (
    "in data rings (UTRACEFS_RING_KB of the program, without a ring UTRACEFS_BUFFER_KB; or forked children"
    " that could not connect, or ended before the daemon answered: docs/operations.md, Forked children)"
)
"""Text for two kinds of losses, for which the daemon has one number."""

AS_FAR_AS_REPORTED: Final = " as far as the daemon had reported before it ended"
"""After `lost_text`, if the daemon ended."""


class Loss(NamedTuple):
    """One way to lose records."""

    name: str
    """Names of members of `recorder.Summary`."""
    in_file: str
    """Text in `report --stat`."""
    said: str
    """Text after the number, in a summary."""


LOSSES: Final = (
    Loss("in_rings", "lost in data rings", IN_RINGS),
    Loss("dropped", "dropped, buffer full", "dropped by the full buffer (-b KB)"),
    Loss("too_large", "too large", "too large for a page of the buffer"),
    Loss("overwritten", "overwritten", "overwritten before they were read (-b KB), or taken away"),
    Loss("no_room", "no room on the disk", "without room on the disk"),
)
"""In the order of output."""

SHOWN_REASONS: Final = 3
"""Title of refused records, in one line."""


def lost_text(lost: Mapping[str, int]) -> str:
    """The total, then places and remedies."""
    if not any(lost.values()):
        return "nothing lost"
    parts = ", ".join(f"{lost[loss.name]} {loss.said}" for loss in LOSSES if lost.get(loss.name))
    return f"{sum(lost.values())} lost: {parts}"


def refused_text(refused: Mapping[str, int]) -> str:
    """Text after `lost_text`. refused: `EVENT.FIELD was float` and the like, to number."""
    reasons = sorted(refused.items(), key=lambda item: -item[1])
    if not reasons:
        return ""
    if len(reasons) == 1:
        return f", {reasons[0][1]} refused: {reasons[0][0]}"
    parts = ", ".join(f"{count} {reason}" for reason, count in reasons[:SHOWN_REASONS])
    more = f" and {len(reasons) - SHOWN_REASONS} other reasons" if len(reasons) > SHOWN_REASONS else ""
    return f", {sum(refused.values())} refused: {parts}{more}"


def lost_lines(lost: Mapping[str, int]) -> bytes:
    return b"".join(b"%s: %d\n" % (loss.in_file.encode(), lost[loss.name]) for loss in LOSSES)


def lost_in_file(texts: Iterable[str]) -> dict[str, int]:
    """Parse such lines."""
    text = "\n".join(texts)
    found = {loss: re.search(rf"^{loss.in_file}: (\d+)$", text, re.MULTILINE) for loss in LOSSES}
    return {loss.name: int(match[1]) for loss, match in found.items() if match is not None}


def no_room(output: str, error: OSError, count: int, what: str, status: int = 1) -> Failure:
    """Note for a file on a full disk."""
    return Failure(output, f"{error.strerror}; it has what fitted, {count} {what} did not", status)
