"""A collector on loopback: answers as a test says, and keeps what it accepted."""

from __future__ import annotations

import gzip
import http.server
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.judges import library

logs_service = library("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
metrics_service = library("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
trace_service = library("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

KINDS = {
    "/v1/logs": (logs_service.ExportLogsServiceRequest, logs_service.ExportLogsServiceResponse),
    "/v1/metrics": (
        metrics_service.ExportMetricsServiceRequest,
        metrics_service.ExportMetricsServiceResponse,
    ),
    "/v1/traces": (trace_service.ExportTraceServiceRequest, trace_service.ExportTraceServiceResponse),
}


def value_of(value: Any) -> Any:
    """Python's value of an AnyValue."""
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [value_of(one) for one in found.values] if kind == "array_value" else found


def attributes(item: Any) -> dict[str, Any]:
    found = {one.key: value_of(one.value) for one in item.attributes}
    assert len(found) == len(item.attributes)
    return found


def items(message: Any) -> list[tuple[str, Any]]:
    """Scope and log record or span."""
    found = []
    for resource in getattr(message, "resource_logs", None) or message.resource_spans:
        for scope in getattr(resource, "scope_logs", None) or resource.scope_spans:
            found += [(scope.scope.name, one) for one in getattr(scope, "log_records", None) or scope.spans]
    return found


Answer = tuple[int, dict[str, str], bytes]


class Collector:
    """answer: called with path and message before it is kept; None: 200. Raises to close the connection."""

    def __init__(self) -> None:
        self.answer: Callable[[str, Any], Answer | None] = lambda _path, _message: None
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.sizes: list[int] = []
        self.connections = 0
        self.closes_after = 0
        """So many requests are kept and not answered."""
        self.lock = threading.Lock()

    @property
    def arrived(self) -> Counter[str]:
        """Records by name; spans as NAME_end."""
        found: Counter[str] = Counter()
        for path, _, message in self.requests:
            for _, one in items(message) if path != "/v1/metrics" else ():
                if path == "/v1/traces":
                    found[f"{one.name}_end"] += 1
                elif one.event_name != "utracefs.lost":
                    found[one.event_name] += 1
        return found

    @property
    def lost(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for path, _, message in self.requests:
            for _, one in items(message) if path == "/v1/logs" else ():
                if one.event_name == "utracefs.lost":
                    told = attributes(one)
                    found[told["event"], told["cause"]] += told.get("count", 0)
        return found


@contextmanager
def collecting(collector: Collector, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[int]:
    """The port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def setup(self) -> None:
            super().setup()
            with collector.lock:
                collector.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            asked, answered = KINDS[self.path]
            message = asked.FromString(body)
            try:
                told = collector.answer(self.path, message)
            except ConnectionError:
                self.close_connection = True
                return
            with collector.lock:
                collector.sizes.append(len(body))
                if told is None or told[0] == 200:
                    collector.requests.append((self.path, dict(self.headers), message))
                if collector.closes_after:
                    collector.closes_after -= 1
                    self.close_connection = True
                    return
            status, headers, answer = told or (200, {}, answered().SerializeToString())
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        block_on_close = False
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that goes away, or refuses our certificate."""

    with Server(("127.0.0.1", port), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
