"""A span for each request of a WSGI application (Flask, Django, ...).

    app.wsgi_app = utracefs.wsgi.Middleware(app.wsgi_app)

The span ends when the server closes the response (PEP 3333). `route` is the rule of Flask's route, else the
path. The application, and the iteration of its response, run in a copy of the caller's context. http_requests
has the other fields.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from utracefs.producer.tracing.http_requests import begin, request_span

__all__ = ["Middleware"]

Environ = Mapping[str, Any]


class Middleware:
    """Makes a span for each request. app: a WSGI application. name: of the span."""

    def __init__(self, app: Callable[..., Iterable[bytes]], name: str = "http_request") -> None:
        self._app = app
        self._requests = request_span(name)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        context = copy_context()
        return context.run(self._run, environ, start_response, context.run)

    def _run(self, environ: Environ, start_response: Callable[..., Any], run: Any) -> Iterable[bytes]:
        values, running = begin(
            self._requests,
            environ.get("REQUEST_METHOD", ""),
            _text(environ.get("PATH_INFO", "")),
            environ.get("HTTP_X_REQUEST_ID", ""),
            environ.get("HTTP_TRACEPARENT", ""),
        )
        values.__enter__()  # for good: the context is this request's

        def noting(status: str, *args: Any, **named: Any) -> Any:
            with suppress(TypeError, ValueError):
                running.set(status=int(status[:3]))
            return start_response(status, *args, **named)

        running.__enter__()
        try:
            body = self._app(environ, noting)
        except BaseException:
            running.set(status=500)
            running.__exit__(*sys.exc_info())
            raise
        rule = getattr(getattr(environ.get("werkzeug.request"), "url_rule", None), "rule", None)
        if isinstance(rule, str):
            running.set(route=rule)
        return (_SizedBody if hasattr(body, "__len__") else _Body)(body, running, run)


class _Body:
    """The response: ends the span when it is closed."""

    def __init__(self, body: Any, running: Any, run: Any) -> None:
        self._body = body
        self._iterator: Iterator[bytes] | None = None
        self._running = running
        self._run = run

    def __iter__(self) -> _Body:
        return self

    def __next__(self) -> bytes:
        if self._iterator is None:
            self._iterator = self._run(iter, self._body)
        try:
            return self._run(next, self._iterator)  # type: ignore[no-any-return]
        except StopIteration:
            raise
        except BaseException:
            self._run(self._running.__exit__, *sys.exc_info())
            raise

    def close(self) -> None:
        try:
            if hasattr(self._body, "close"):
                self._run(self._body.close)
        finally:
            self._run(self._running.__exit__, None, None, None)


class _SizedBody(_Body):
    """Servers know the Content-Length of a response of one chunk."""

    def __len__(self) -> int:
        return len(self._body)


def _text(path: str) -> str:
    """WSGI has the bytes of UTF-8 as latin-1."""
    return path.encode("latin-1", "replace").decode("utf-8", "replace")
