"""The log as text and as JSON."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from utracefsd.server.log_formats import JournalFormatter, JsonFormatter, TextFormatter


@pytest.fixture
def record() -> logging.LogRecord:
    """A message with values of a hostile program, and a traceback, as daemon_log makes it."""
    error = ValueError("a\x1b[2J\nb\udcff")
    values = {"name": "a\x1b[2J\nFORGED: \u202eno\udcff", "number": 7, "path": Path("/x"), "error": error}
    text = "%(name)s: %(number)d %(path)s %(error)s"
    made = logging.LogRecord(
        "utracefsd", logging.ERROR, __file__, 1, text, (values,), (ValueError, error, None)
    )
    made.id = "some-id"
    return made


def test_text(record: logging.LogRecord) -> None:
    lines = TextFormatter("utracefsd: %(message)s").format(record).split("\n")
    assert lines[0] == "utracefsd: a?[2J FORGED: ?no?: 7 /x a?[2J b?"
    assert lines[1].startswith("ValueError: a")
    assert JournalFormatter("%(message)s").format(record).startswith("<3>a?[2J FORGED")


def test_json(record: logging.LogRecord) -> None:
    line = JsonFormatter().format(record)
    assert line.isascii() and "\n" not in line and "\x1b" not in line
    found: dict[str, Any] = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("time"))
    assert found.pop("traceback").startswith("ValueError: a")
    name = "a\x1b[2J\nFORGED: \u202eno\ufffd"
    error = "a\x1b[2J\nb\ufffd"
    assert found == {
        "level": "error",
        "id": "some-id",
        "message": f"{name}: 7 /x {error}",
        "name": name,
        "number": 7,
        "path": "/x",
        "error": error,
    }


def test_json_of_other_records() -> None:
    """Without an id, and with values that are no mapping."""
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "%s %d", ("a", 1), None)
    found = json.loads(JsonFormatter().format(record))
    assert (found["id"], found["message"]) == ("", "a 1")
    assert list(found) == ["time", "level", "id", "message"]
