"""The table of messages, its callers, and the table in docs/operations.md."""

import logging
import re
from pathlib import Path

import pytest

from utracefsd.daemon_log import MESSAGES, daemon_log

ROOT = Path(__file__).parents[2]
RESERVED = {"time", "level", "id", "message", "traceback", "exc_info"}
CALL = re.compile(r"\bdaemon_log\(\s*\"([a-z-]+)\"((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def sources() -> list[str]:
    return [path.read_text() for path in (ROOT / "daemon").rglob("*.py*") if path.suffix in (".py", ".pyx")]


def values_of(id_: str) -> frozenset[str]:
    return frozenset(re.findall(r"%\((\w+)\)", MESSAGES[id_][1]))


def test_the_table() -> None:
    assert len(MESSAGES) > 40
    for id_, (level, text) in MESSAGES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", id_), id_
        assert level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR), id_
        assert not values_of(id_) & RESERVED, text
        assert not re.search(r"%[^(%]", text), text


def test_every_call_gives_the_values_of_a_message() -> None:
    calls = [match for text in sources() for match in CALL.finditer(text)]
    sites = sum(len(re.findall(r"\bdaemon_log\(", text)) for text in sources())
    assert sites == len(calls) + 1, "beside the function itself"
    assert {match[1] for match in calls} == MESSAGES.keys()
    for match in calls:
        names = set(re.findall(r"[,\s](\w+)=(?!=)", match[2]))
        assert names - {"exc_info"} == values_of(match[1]), match[0]


def test_nothing_else_logs() -> None:
    assert sum("getLogger(" in text for text in sources()) == 1


def test_the_page_has_every_id() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (debug|info|warning|error) \| (.*?) \|", page, re.MULTILINE)
    documented = {id_: (level, frozenset(re.findall(r"`(\w+)`", values))) for id_, level, values in rows}
    assert len(documented) == len(rows)
    assert documented == {
        id_: (logging.getLevelName(level).lower(), values_of(id_)) for id_, (level, _) in MESSAGES.items()
    }


def test_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "utracefsd")
    daemon_log("hist-lost", reason=b"x")
    daemon_log("parent-gone")
    records = [(vars(record)["id"], record.levelname, record.getMessage()) for record in caplog.records]
    assert records == [
        ("hist-lost", "WARNING", "the counts of a histogram are lost: b'x'"),
        ("parent-gone", "INFO", "ending: the parent process is gone"),
    ]
