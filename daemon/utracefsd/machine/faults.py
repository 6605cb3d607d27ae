"""Mistakes of ours: exceptions that nobody expected, counted and told in the log.

One costs what it was raised in (a request, a connection, a step) and never more; the daemon goes on. The file
`daemon_stats` shows how many there were. A client may find one and repeat it, so the traceback of each place
in the code is logged once.
"""

import logging

logger = logging.getLogger("utracefsd")

_MAX_PLACES = 256
"""Places whose traceback was logged; beyond them nothing new is logged."""


class Faults:
    """One for a daemon."""

    def __init__(self) -> None:
        self.count = 0
        self._places: set[tuple[type[BaseException], str, int]] = set()

    def note(self, error: BaseException, what: str) -> None:
        """Count `error`, which just was caught, and log it. `what` failed, and what that costs."""
        self.count += 1
        place = _place(error)
        if place not in self._places and len(self._places) < _MAX_PLACES:
            self._places.add(place)
            logger.error("%s: a mistake of ours", what, exc_info=error)
        else:
            logger.debug("%s: %r again", what, error)


def _place(error: BaseException) -> tuple[type[BaseException], str, int]:
    """Where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error), "", 0
    return type(error), trace.tb_frame.f_code.co_filename, trace.tb_lineno
