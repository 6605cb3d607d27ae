"""How the log is written: as text, as text for systemd's journal, as JSON lines."""

import datetime
import json
import logging
import os
import sys

from utracefs_protocol.terminal import harmless
from utracefs_protocol.text import clean
from utracefsd.daemon_log import LOG


class TextFormatter(logging.Formatter):
    """A message is one line, without control characters, which a program could use to steer a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return harmless(super().formatMessage(record).replace("\n", " "))


class JournalFormatter(TextFormatter):
    """Lines for a journal that reads our stderr: begin with the level, in the format of sd-daemon(3)."""

    def format(self, record: logging.LogRecord) -> str:
        level = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}.get(record.levelname, 6)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """A JSON object in each line, in ASCII: time (UTC), level, id, message, then the message's values, and
    `traceback` of a fault."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        members = {
            "time": time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "id": getattr(record, "id", ""),
            "message": clean(record.getMessage()),
        }
        if isinstance(record.args, dict):
            members |= {name: _plain(value) for name, value in record.args.items()}
        if record.exc_info:
            members["traceback"] = clean(self.formatException(record.exc_info))
        return json.dumps(members)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | None) else clean(str(value))


def set_up_log(level: str, log_format: str) -> None:
    """To stderr. log_format: `text`, `json`."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    elif os.environ.get("JOURNAL_STREAM"):
        handler.setFormatter(JournalFormatter("%(message)s"))
    else:
        handler.setFormatter(TextFormatter("utracefsd: %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(level.upper())
    LOG.propagate = False
