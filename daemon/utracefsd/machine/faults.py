"""Unexpected exceptions, that is bugs of the daemon: counted and logged.

An unexpected exception ends only the request, connection or step it occurred in; the daemon continues. The
file `daemon_stats` shows the count. A client may find a bug and trigger it repeatedly, so the traceback of
each place in the code is logged once.
"""

import traceback

from utracefsd.daemon_log import daemon_log

_MAX_PLACES = 256
"""Places whose traceback was logged; further places are not logged."""


class Faults:
    """One object per daemon."""

    def __init__(self) -> None:
        self.count = 0
        self._places: set[tuple[type[BaseException], str, int]] = set()

    def note(self, error: BaseException, what: str) -> None:
        """Count and log `error`, which was just caught. `what`: what failed, and its consequence."""
        self.count += 1
        place = _place(error)
        if place not in self._places and len(self._places) < _MAX_PLACES:
            self._places.add(place)
            daemon_log("fault", what=what, exc_info=error)
        else:
            daemon_log("fault-again", what=what, error=error)


def _place(error: BaseException) -> tuple[type[BaseException], str, int]:
    file = ""
    line = 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        file, line = frame.f_code.co_filename, number
    return type(error), file, line
