"""A second interpreter, and no GIL: everything is there, and nothing is ever on."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys

import pytest

from utracefs.producer._event import Event
from utracefs.producer.fallback import without_tracing
from utracefs.producer.session import Session

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
    # Coverage cannot begin in a second interpreter, and says so.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=env
    )
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


def test_what_an_event_and_a_session_have() -> None:
    """The substitutes have the public members of the real classes, with the same parameters."""
    session = without_tracing.Session()
    event = session.event("one u8 a")
    for stand_in, real in ((event, Event), (session, Session)):
        for name, member in vars(real).items():
            if not name.startswith("_"):
                assert hasattr(stand_in, name), name
                if inspect.isfunction(member):
                    parameters = list(inspect.signature(member).parameters)[1:]
                    assert list(inspect.signature(getattr(stand_in, name)).parameters) == parameters, name


def test_an_event_can_be_pickled_and_shown() -> None:
    event = without_tracing.process_session().event("one u8 a", multi_format=True)
    assert pickle.loads(pickle.dumps(event)) is event
    assert repr(event) == "<utracefs.Event 'one u8 a', off>"
    assert (event.fields, event.flags, event.registered) == (("a",), 2, False)
