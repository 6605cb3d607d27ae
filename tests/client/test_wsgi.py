"""Requests of a WSGI application, whose spans end when the server closes the response."""

from pathlib import Path

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
