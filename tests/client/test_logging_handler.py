"""The logging handler: log records become events while a consumer is attached, and cost nothing otherwise."""

from __future__ import annotations

import io
import json
import logging

import pytest

from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.protocol.events.plain_layout import Layout
from utracefs import LoggingHandler, Session, context
from utracefs.logging_handler import FIELDS, OFF
from utracefs.producer.declarations.checking import check_declaration
from utracefs_protocol.limits import MAX_FTRACE_PAYLOAD

DECLARATION = f"python_log {FIELDS}".encode()


@pytest.fixture
def logger() -> logging.Logger:
    """One without a parent, so that no other handler formats its records."""
    return logging.Logger("shop.checkout")  # noqa: LOG001


def entries(daemon: FakeDaemon, session: Session) -> list[dict[str, object]]:
    assert session.flush(60)
    layout = Layout(check_declaration(DECLARATION).fields)
    return [dict(layout.unpack(payload)) for payload in daemon.last.payloads(DECLARATION)]


def test_records_become_events_while_a_consumer_is_attached(
    daemon: FakeDaemon, session: Session, logger: logging.Logger
) -> None:
    handler = LoggingHandler(session=session)
    logger.addHandler(handler)
    logger.warning("no consumer for %s", "this")
    wait_for(lambda: handler.level == OFF)
    daemon.enable(DECLARATION)
    wait_for(lambda: handler.level == logging.NOTSET)
    logger.warning("%d items", 3, stacklevel=1)
    handler.setLevel(logging.ERROR)
    logger.warning("below the level")
    assert handler.level == logging.ERROR
    daemon.set_status(DECLARATION, 0)
    assert handler.level == OFF
    logger.error("no consumer again")
    (entry,) = entries(daemon, session)
    assert entry["level"] == logging.WARNING
    assert entry["logger"] == "shop.checkout"
    assert entry["message"] == "3 items"
    assert entry["pathname"] == __file__
    assert entry["func"] == "test_records_become_events_while_a_consumer_is_attached"
    assert "LoggingHandler" in repr(handler)


def test_nothing_is_formatted_while_it_is_off(session: Session, logger: logging.Logger) -> None:
    class Argument:
        def __str__(self) -> str:
            raise AssertionError("was formatted")

    logger.addHandler(LoggingHandler("other_log", session=session))
    logger.critical("%s", Argument())


def test_long_and_strange_texts(daemon: FakeDaemon, session: Session, logger: logging.Logger) -> None:
    daemon.enabled_from_start = {DECLARATION}
    handler = LoggingHandler(session=session)
    logger.addHandler(handler)
    logger.log(1 << 40, "é" * 5000)
    logger.error("half of a pair: \ud800, a NUL: \0.")
    try:
        raise KeyError("what was looked for")
    except KeyError:
        logger.exception("it failed")
    handler.handle(logging.LogRecord("n" * 1000, 10, "/x" * 500, -1, "m", (), None))
    long, strange, failed, named = entries(daemon, session)
    assert long["level"] == (1 << 31) - 1
    message = str(long["message"])
    assert message.endswith("é...")
    assert len(daemon.last.payloads(DECLARATION)[0]) in (MAX_FTRACE_PAYLOAD, MAX_FTRACE_PAYLOAD - 1)
    assert strange["message"] == "half of a pair: \\ud800, a NUL: \ufffd."
    assert "Traceback" in str(failed["message"])
    assert "what was looked for" in str(failed["message"])
    assert str(named["pathname"]).endswith("/x/x")
    assert named["func"] == ""
    assert named["line"] == 0


def test_an_error_while_formatting_is_the_handlers_own(
    daemon: FakeDaemon, session: Session, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.enabled_from_start = {DECLARATION}
    logger.addHandler(LoggingHandler(session=session))
    monkeypatch.setattr("sys.stderr", err := io.StringIO())
    logger.error("%d", "not a number")
    assert "--- Logging error ---" in err.getvalue()
    assert entries(daemon, session) == []


def test_the_sessions_own_warnings_may_go_through_it(daemon: FakeDaemon, session: Session) -> None:
    """The session thread logs that an event was refused, while the handler's event is pending: it must not
    wait for itself."""
    daemon.refuse[b"refused u8 a"] = (16, "busy")
    daemon.answering.clear()
    root = logging.getLogger("utracefs")
    handler = LoggingHandler(session=session)
    root.addHandler(handler)
    try:
        session.event("refused u8 a")
        wait_for(lambda: len(daemon.clients) and len(daemon.last.requests) == 3)
        daemon.answering.set()
        daemon.kick()
        event = session.event("refused u8 a")
        wait_for(lambda: event.error)
    finally:
        root.removeHandler(handler)


def test_the_default_session(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session() as session:
        monkeypatch.setattr("utracefs.producer.process_session._sessions", {"session": session})
        handler = LoggingHandler()
        assert session.event(DECLARATION) is handler.event


@pytest.mark.parametrize("name", ["", "a b", "a;b", "a\tb", "a:b"])
def test_what_is_no_name(name: str) -> None:
    """And not a complaint about a field that nobody wrote."""
    with pytest.raises(ValueError, match="':'" if ":" in name else "cannot be the name of an event"):
        LoggingHandler(name)


def test_values_of_the_context_and_of_extra(
    daemon: FakeDaemon, session: Session, logger: logging.Logger
) -> None:
    declaration = f"request_log {FIELDS}; __rel_loc char[] request_id; __rel_loc char[] user".encode()
    daemon.enabled_from_start = {declaration}
    logger.addHandler(LoggingHandler("request_log", fields=["request_id", "user"], session=session))
    logger.warning("before")
    with context(request_id="a1", number=5):
        logger.warning("within", extra={"user": "jo"})
        logger.warning("nearer", extra={"request_id": 7})
        with context(**{f"n{n}": "x" * 1000 for n in range(9)}):
            logger.warning("long")
        with context(**{f"n{n}": "x" * 1000 for n in range(99)}):
            logger.warning("m" * 5000)
    assert session.flush(60)
    layout = Layout(check_declaration(declaration).fields)
    found = [dict(layout.unpack(payload)) for payload in daemon.last.payloads(declaration)]
    rows = [(one["request_id"], one["user"], one["context"]) for one in found]
    values = '{"request_id": "a1", "number": 5}'
    assert rows[:3] == [("", "", ""), ("a1", "jo", values), ("7", "", values)]
    assert json.loads(str(rows[3][2]))["n8"] == "x" * 60
    assert rows[4] == ("a1", "", "")
    assert len(str(found[4]["message"])) > 3000
