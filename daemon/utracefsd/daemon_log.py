"""The daemon's log. Each kind of message has an id, which stays when its words change.

    daemon_log.warning("ring-lost", "a data ring of pid %(pid)d did not come back", pid=known.pid)

The values have names, so that `--log-format json` writes them as members. docs/operations.md has the table of
all ids.
"""

import logging

LOG = logging.getLogger("utracefsd")
"""For handlers and levels."""


class DaemonLog:
    """Writes to LOG. id: words joined by `-`. text: with `%(name)s` for each of the values."""

    def debug(self, id_: str, text: str, /, **values: object) -> None:
        _log(logging.DEBUG, id_, text, values)

    def info(self, id_: str, text: str, /, **values: object) -> None:
        _log(logging.INFO, id_, text, values)

    def warning(self, id_: str, text: str, /, **values: object) -> None:
        _log(logging.WARNING, id_, text, values)

    def error(self, id_: str, text: str, /, exc_info: BaseException | None = None, **values: object) -> None:
        """exc_info: write its traceback, too."""
        _log(logging.ERROR, id_, text, values, exc_info)


def _log(
    level: int, id_: str, text: str, values: dict[str, object], exc_info: BaseException | None = None
) -> None:
    # logging takes one mapping for the named values, but no empty one.
    LOG.log(level, text, *([values] if values else []), exc_info=exc_info, extra={"id": id_})


daemon_log = DaemonLog()
