"""A span for each HTTP request, for `asgi` and `wsgi`.

    http_request   method, route, path, request_id, trace_id; at the end also status

The header `traceparent` (W3C Trace Context) gives trace_id and the parent's span id, `x-request-id` gives
request_id. Without its header an id is random. `trace_id` and `request_id` are values of the context.
"""

from __future__ import annotations

import os

from utracefs import context, current_span, span
from utracefs.producer.tracing.contexts import present
from utracefs.producer.tracing.texts import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from utracefs.producer._span import Running, Span


# Of what the client sends: a larger record would have no room in the ring buffer.
MAX_ID = 128
"""Limit of characters of `x-request-id`."""

MAX_METHOD = 32
"""Characters."""

MAX_PATH = 1024
"""Bytes."""

_FIELDS = (
    "__rel_loc char[] method; __rel_loc char[] route; __rel_loc char[] path; "
    "__rel_loc char[] request_id; __rel_loc char[] trace_id"
)
_HEX = frozenset("0123456789abcdef")


def request_span(name: str) -> Span:
    return span(f"{name} {_FIELDS}", "u16 status")


def begin(
    requests: Span, method: str, path: str, request_id: str, traceparent: str
) -> tuple[context, Running]:
    """The context of a request and its span, to be entered in this order. Headers: empty without one."""
    trace_id, parent_id = parsed(traceparent) or (os.urandom(16).hex(), 0)
    request_id = request_id[:MAX_ID] or os.urandom(8).hex()
    if len(path) > MAX_PATH // 4:
        path = cut(path.encode("utf-8", "backslashreplace"), MAX_PATH).decode()
    running = requests(method[:MAX_METHOD], path, path, request_id, trace_id, parent_id=parent_id)
    return context(request_id=request_id, trace_id=trace_id), running


def traceparent() -> str:
    """The header for requests to other services; empty: no request is being traced here."""
    running, trace_id = current_span(), present().get("trace_id")
    return f"00-{trace_id}-{running.span_id:016x}-01" if running and trace_id else ""


def parsed(traceparent: str) -> tuple[str, int] | None:
    """trace_id and the parent's span id. None: it is invalid, or of version ff, and is ignored as the
    specification wants it. Members of later versions are ignored."""
    parts = traceparent.strip().split("-")
    if len(parts) < 4 or (parts[0] == "00" and len(parts) != 4) or parts[0] == "ff":
        return None
    version, trace_id, parent_id, flags = parts[:4]
    if [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    if not _HEX.issuperset(version + trace_id + parent_id + flags) or not trace_id.strip("0"):
        return None
    return (trace_id, int(parent_id, 16)) if parent_id.strip("0") else None
