"""Ids of messages, and their table in docs/operations.md."""

import ast
import logging
import re
from pathlib import Path

import pytest

from utracefsd.daemon_log import daemon_log

ROOT = Path(__file__).parents[2]
LEVELS = ("debug", "info", "warning", "error")
RESERVED = {"time", "level", "id", "message", "traceback"}
CALL = re.compile(r"daemon_log\.(\w+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def calls() -> list[tuple[str, str, str, set[str]]]:
    """Calls in all sources: level, id, text, names of the values."""
    found = []
    for path in sorted((ROOT / "daemon").rglob("*.py*")):
        if path.suffix not in (".py", ".pyx") or path.name == "daemon_log.py":
            continue
        for match in CALL.finditer(path.read_text()):
            call = ast.parse(match[0], mode="eval").body
            assert isinstance(call, ast.Call)
            id_, text = (ast.literal_eval(arg) for arg in call.args)
            found.append((match[1], id_, text, {str(keyword.arg) for keyword in call.keywords}))
    return found


def test_every_message_has_its_id() -> None:
    sites = sum(
        len(re.findall(r"\bdaemon_log\.\w+\(", path.read_text()))
        for path in (ROOT / "daemon").rglob("*.py*")
        if path.suffix in (".py", ".pyx") and path.name != "daemon_log.py"
    )
    assert sites == len(calls()) > 40
    for level, id_, text, names in calls():
        assert level in LEVELS
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", id_), id_
        assert set(re.findall(r"%\((\w+)\)", text)) == names - {"exc_info"}, text
        assert not names & RESERVED, text
        assert not re.search(r"%[^(%]", text), text


def test_nothing_else_logs() -> None:
    others = [
        str(path)
        for path in (ROOT / "daemon").rglob("*.py*")
        if path.suffix in (".py", ".pyx") and "getLogger(" in path.read_text()
    ]
    assert [Path(path).name for path in others] == ["daemon_log.py"]


def test_the_page_has_every_id() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (debug|info|warning|error) \| (.*?) \|", page, re.MULTILINE)
    documented = {(id_, level, frozenset(re.findall(r"`(\w+)`", values))) for id_, level, values in rows}
    assert len(documented) == len(rows)
    assert documented == {(id_, level, frozenset(names - {"exc_info"})) for level, id_, _, names in calls()}


@pytest.mark.parametrize("level", LEVELS)
def test_records(level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "utracefsd")
    write = getattr(daemon_log, level)
    write("an-id", "100% of %(what)s".replace("100%", "100%%"), what=b"x")
    write("plain-id", "no value: 100%")
    assert [record.getMessage() for record in caplog.records] == ["100% of b'x'", "no value: 100%"]
    assert [vars(record)["id"] for record in caplog.records] == ["an-id", "plain-id"]
    assert {record.levelname for record in caplog.records} == {level.upper()}
