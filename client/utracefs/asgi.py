"""A span for each request of an ASGI application (FastAPI, Starlette, Django, ...).

    app.add_middleware(utracefs.asgi.Middleware)        # or: app = Middleware(app)

The span ends when the application returns, which may be after the response's last byte (background tasks of
Starlette). `route` is the path; FastAPI and Starlette replace it by the template of the route, so only the
record of the end has that. http_requests has the other fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any

from utracefs.producer.tracing.http_requests import begin, request_span

__all__ = ["Middleware"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Middleware:
    """Makes a span for each request. app: an ASGI application. name: of the span."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[Any]], name: str = "http_request"
    ) -> None:
        self._app = app
        self._requests = request_span(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if isinstance(headers := scope.get("headers", ()), Iterator):
            scope["headers"] = headers = list(headers)  # the application reads them, too
        values, running = begin(
            self._requests,
            scope.get("method", ""),
            scope.get("path", ""),
            _header(headers, b"x-request-id"),
            _header(headers, b"traceparent"),
        )
        with values:
            if not running:
                return await self._app(scope, receive, send)
            status = 0

            async def noting(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message.get("type") == "http.response.start":
                    status = message.get("status", 0)
                await send(message)

            with running:
                try:
                    return await self._app(scope, receive, noting)
                except BaseException:
                    status = status or 500
                    raise
                finally:
                    route = getattr(scope.get("route"), "path", None)
                    running.set(status=status)
                    if isinstance(route, str):
                        running.set(route=route)


def _header(headers: Iterable[Iterable[Any]], name: bytes) -> str:
    """Empty without one. Of several the first."""
    with suppress(TypeError, ValueError):  # no pair of bytes: it is for the application to complain
        for key, value in headers:
            if key == name:
                return bytes(value).decode("latin-1")
    return ""
