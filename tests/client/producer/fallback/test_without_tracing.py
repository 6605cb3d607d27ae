"""A second interpreter, and no GIL: everything is there, and nothing is ever on."""

from __future__ import annotations

import sys

import pytest

from tests.client.daemons.real_daemon import run_python
from utracefs.producer._event import Event
from utracefs.producer._session import NativeSession
from utracefs.producer._span import Running, Span
from utracefs.producer.fallback import without_tracing

USE = """
import sys
import utracefs
event = utracefs.event("request u16 status; __rel_loc char[] path")
assert not event and not event.enabled
event.emit(200, "/")
for args, names in [((1,), {}), ((1, "/", 3), {}), ((1,), {"status": 2}), ((), {"status": 1, "way": "/"})]:
    try:
        event.emit(*args, **names)
    except TypeError:
        continue
    raise SystemExit("taken")
event.emit("anything", path=None)
assert utracefs.strict(True) is False and utracefs.strict(False) is True
assert utracefs.event("request u16 status;__rel_loc char[] path") is event
assert [one.name for one in utracefs.events(["one u8 a", b"two u8 a"])] == ["one", "two"]
assert utracefs.flush() and utracefs.stats().emitted == 0
with utracefs.Session("/nowhere") as session:
    assert not session.event("a u8 b")
import pickle
assert pickle.loads(pickle.dumps(event)) is event
@utracefs.define
def login(status: utracefs.u16, user: str = "") -> None: ...
login.emit(200)
with utracefs.span("shop.pay", order=7) as running:
    running.set(order=8)
    assert not running and utracefs.current_span() is None
@utracefs.span("job")
def job(): return 7
assert job() == 7
with utracefs.context(path="/"):
    event.emit(200)
import logging
logging.getLogger().addHandler(utracefs.LoggingHandler())
logging.getLogger("x").error("nobody hears it")
try:
    utracefs.event("wrong long a")
except ValueError as error:
    assert "unknown type" in str(error)
else:
    raise SystemExit("taken")
utracefs.close()
assert type(event).__module__ == "utracefs.producer.fallback.without_tracing"
"""

SECOND = """
import sys
try:
    import _interpreters as interpreters
    create = lambda: interpreters.create("legacy")
    def run(one, code):
        failed = interpreters.run_string(one, code)
        assert failed is None, failed
except ImportError:
    import _xxsubinterpreters as interpreters
    create = lambda: interpreters.create(isolated=False)
    run = interpreters.run_string
"""


def run(program: str) -> None:
    # (Coverage cannot begin in a second interpreter, and says so.)
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("first", ["the main interpreter", "the second", "the second, which ends"])
def test_a_second_interpreter(first: str) -> None:
    """Whichever interpreter is first: the main one traces."""
    main = "import utracefs\none = utracefs.event('main u8 a')\nassert 'Event' in str(type(one))\n"
    main += "assert type(one).__module__ == 'utracefs.producer._event'\n"
    program = SECOND + f"second, third = create(), create()\nUSE = {USE!r}\n"
    ends = "which ends" in first
    calls = "run(second, USE); run(third, USE)\n" + "interpreters.destroy(second)\n" * ends
    run(program + (main + calls if first == "the main interpreter" else calls + main))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="all share one GIL")
def test_an_interpreter_with_a_gil_of_its_own() -> None:
    program = """
try:
    import _interpreters as interpreters
    def run(one, code):
        failed = interpreters.run_string(one, code)
        assert failed is None, failed
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
"""
    run(program + f"import utracefs\nrun(interpreters.create(), {USE!r})\n")


def stand_in(flags: int = 0) -> without_tracing.Event:
    return without_tracing.Event(None, b"one", b"one u8 a", b"one u8 a", flags, [(b"a",)], 0)


def test_what_the_substitutes_have() -> None:
    """The public members of the compiled classes."""
    event = stand_in()
    session = without_tracing.NativeSession()
    span = without_tracing.Span("one", event, event, ())
    for substitute, real in ((event, Event), (session, NativeSession), (span, Span), (span, Running)):
        for name in vars(real):
            if not name.startswith("_") and name != "values":
                assert hasattr(substitute, name), name


def test_an_event_can_be_shown() -> None:
    event = stand_in(flags=2)
    assert (str(event), repr(event)) == ("one u8 a", "<utracefs.Event 'one u8 a', off>")
    assert (event.fields, event.flags, event.registered) == (("a",), 2, False)
