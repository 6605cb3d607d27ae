"""A span for each request of an ASGI application (FastAPI, Starlette, Django, ...).

    app.add_middleware(utracefs.asgi.Middleware)        # or: app = Middleware(app)

The span ends when the application returns, which may be after the response's last byte (background tasks of
Starlette). `route` is the path; FastAPI and Starlette replace it by the template of the route, so only the
record of the end has that. http_requests has the other fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from utracefs.tracing.http_requests import begin, request_span

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # of several the first
        values, running = begin(
            self._requests,
            scope["method"],
            scope["path"],
            headers.get(b"x-request-id", b"").decode("latin-1"),
            headers.get(b"traceparent", b"").decode("latin-1"),
        )
        with values:
            if not running:
                await self._app(scope, receive, send)
                return
            status = 0

            async def noting(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            with running:
                try:
                    await self._app(scope, receive, noting)
                except BaseException:
                    status = status or 500
                    raise
                finally:
                    route = getattr(scope.get("route"), "path", None)
                    running.set(status=status)
                    if isinstance(route, str):
                        running.set(route=route)
