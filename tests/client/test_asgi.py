"""Requests of an ASGI application: route, status, ids and parents; without any framework."""

import os
import subprocess
import sys
from pathlib import Path

from tests.client.requests_of import recorded

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

PROGRAM = f"""
import asyncio
import utracefs
from utracefs.asgi import Middleware
from utracefs.producer.tracing.http_requests import traceparent

class Route:
    path = "/items/{{id}}"

work = utracefs.event("work __rel_loc char[] request_id; __rel_loc char[] header")

async def app(scope, receive, send):
    if scope["path"] == "/broken":
        raise KeyError("text")
    if scope["path"] == "/late":
        await send({{"type": "http.response.start", "status": 200}})
        raise KeyError("text")
    if scope["type"] == "http":
        work.emit(header=traceparent())
        scope["route"] = Route
        await send({{"type": "http.response.start", "status": 201}})
        await send({{"type": "http.response.body", "body": b""}})

async def send(message):
    pass

async def main():
    wrapped = Middleware(app)
    for path, headers in [
        ("/items/1", [(b"traceparent", b"00-{TRACE}-{SPAN}-01"), (b"x-request-id", b"first")]),
        ("/items/2", [(b"x-request-id", b"x" * 1000)]),
        ("/broken", []),
        ("/late", []),
        ("/" + "\\u20ac" * 9999, []),
    ]:
        scope = {{"type": "http", "method": "GET", "path": path, "headers": headers}}
        try:
            await wrapped(scope, None, send)
        except KeyError:
            pass
    await wrapped({{"type": "lifespan", "path": "/lifespan"}}, None, send)
    assert traceparent() == "" and utracefs.current_span() is None

asyncio.run(main())
"""


def test_requests(tmp_path: Path) -> None:
    records = recorded(tmp_path, PROGRAM)
    begins = [r.fields for r in records if r.name == "http_request_begin"]
    ends = [r.fields for r in records if r.name == "http_request_end"]
    work = [r.fields for r in records if r.name == "work"]
    assert [(e["method"], e["route"], e["path"], e["status"], e["error"]) for e in ends] == [
        ("GET", "/items/{id}", "/items/1", 201, ""),
        ("GET", "/items/{id}", "/items/2", 201, ""),
        ("GET", "/broken", "/broken", 500, "KeyError"),
        ("GET", "/late", "/late", 200, "KeyError"),
        ("GET", "/items/{id}", "/" + "\u20ac" * 341, 201, ""),
    ]
    assert [b["span_id"] for b in begins] == [e["span_id"] for e in ends]
    assert [e["parent_id"] for e in ends] == [int(SPAN, 16), 0, 0, 0, 0]
    assert ends[0]["trace_id"] == TRACE
    assert len({e["trace_id"] for e in ends} | {e["request_id"] for e in ends}) == 10
    assert [w["request_id"] for w in work][:2] == ["first", "x" * 128]
    assert work[0]["header"] == f"00-{TRACE}-{ends[0]['span_id']:016x}-01"


ANY_SCOPE = """
import asyncio, copy, types
import utracefs
from utracefs.asgi import Middleware
from utracefs.producer.tracing.contexts import present

HEADERS = [(b"x-request-id", b"a"), [bytearray(b"accept"), memoryview(b"*/*")]]

async def app(scope, receive, send):
    await send(types.MappingProxyType({"type": "http.response.start", "status": 200}))
    return present()["request_id"] == "a", list(scope.get("headers") or ())

async def send(message):
    assert message["status"] == 200

middleware = Middleware(app)
for strict in (False, True):  # as if on
    utracefs.strict(strict)
    for headers in (HEADERS, tuple(HEADERS), dict(HEADERS[:1]).items(), [b"", 5], None):
        got = asyncio.run(middleware({"type": "http", "headers": headers}, None, send))
        assert got == (headers not in ([b"", 5], None), list(headers or ())), got
    for headers in (iter(HEADERS), map(tuple, HEADERS), (pair for pair in HEADERS)):
        found, rest = asyncio.run(middleware({"type": "http", "headers": headers}, None, send))
        assert found and len(rest) == 2
"""


def test_the_application_gets_the_scope_of_the_server() -> None:
    """With any iterable as headers, also a wrong one; and its result is the middleware's."""
    subprocess.run(
        [sys.executable, "-c", ANY_SCOPE], env={**os.environ, "UTRACEFS_DIR": "/nonexistent"}, check=True
    )
