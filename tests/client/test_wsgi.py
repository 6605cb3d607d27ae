"""Requests of a WSGI application, whose spans end when the server closes the response."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.requests_of import recorded

PROGRAM = """
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator
import utracefs
from utracefs.wsgi import Middleware

class Rule:
    rule = "/items/<id>"

class Request:
    url_rule = Rule

work = utracefs.event("work u8 n; __rel_loc char[] request_id")

def app(environ, start_response):
    if environ["PATH_INFO"] == "/broken":
        raise KeyError("text")
    environ["werkzeug.request"] = Request
    start_response("404 Not Found", [("Content-Type", "text/plain")])
    work.emit(0)
    return body(environ["PATH_INFO"])

def body(path):
    work.emit(1)
    yield b"one"
    if path == "/half":
        raise IndexError
    yield b"two"

def request(path, chunks=None):
    environ = {}
    setup_testing_defaults(environ)
    environ.update({"PATH_INFO": path, "HTTP_X_REQUEST_ID": path, "QUERY_STRING": ""})
    response = validator(Middleware(validator(app)))(environ, lambda *args: lambda data: None)
    assert utracefs.current_span() is None
    try:
        found = [chunk for chunk, _ in zip(response, range(chunks or 9))]
    finally:
        response.close()
    return found

assert request("/gr\\u00c3\\u00bcn") == [b"one", b"two"]
assert request("/early", 1) == [b"one"]
for path in ("/broken", "/half"):
    try:
        request(path)
    except (KeyError, IndexError):
        pass
assert utracefs.current_span() is None
"""


ODD = """
import contextvars
from utracefs.wsgi import Middleware

variable = contextvars.ContextVar("variable")

def app(environ, start_response):
    variable.set(b"set")
    start_response(environ["status"], [], exc_info=None)
    return [b"one"] if environ["one"] else (variable.get() for _ in "x")

def request(status, one):
    environ = {"REQUEST_METHOD": "GET", "status": status, "one": one}
    response = Middleware(app)(environ, lambda status, headers, exc_info=None: None)
    assert list(response) == [b"one" if one else b"set"]
    assert (len(response) if hasattr(response, "__len__") else 0) == one
    response.close()

for status in ("200 OK", "odd"):
    for one in (False, True):
        request(status, one)
"""


def test_a_response_is_the_same_on_and_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(recorded(tmp_path, ODD)) == 8
    monkeypatch.setenv("UTRACEFS_DIR", str(tmp_path / "none"))
    subprocess.run([sys.executable, "-c", ODD], check=True)


def test_requests(tmp_path: Path) -> None:
    records = recorded(tmp_path, PROGRAM)
    ends = [r.fields for r in records if r.name == "http_request_end"]
    assert [(e["route"], e["path"], e["status"], e["error"]) for e in ends] == [
        ("/items/<id>", "/grün", 404, ""),
        ("/items/<id>", "/early", 404, ""),
        ("/broken", "/broken", 500, "KeyError"),
        ("/items/<id>", "/half", 404, "IndexError"),
    ]
    work = [(r.fields["n"], r.fields["request_id"]) for r in records if r.name == "work"]
    paths = ["/gr\u00c3\u00bcn", "/early", "/half"]
    assert work == [(n, path) for path in paths for n in (0, 1)]
