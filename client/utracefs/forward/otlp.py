"""OTLP over HTTP with protobuf: each record is a log record, the end of a span is a span.

| field | becomes |
|---|---|
| `severity_number`, `severity` beside `severity_text` | severity number; `severity_text`: its text |
| `level` of an event of EventHeader or of utracefs.LoggingHandler | severity number, and an attribute |
| `body`, and `message` of utracefs.LoggingHandler | body |
| `trace_id` (32 hexadecimal digits), `span_id` (16, or an integer beside `parent_id`) | those of the record |
| all others | attributes; integers from 2^63 on as texts |

NAME_end of `utracefs.span` is a span NAME, with the parent, and the status ERROR if `error` is not empty. A
trace without `trace_id` gets one from its oldest span that was seen here. Losses are log records
`utracefs.lost` with the attributes `event`, `cause` and, if it is known, `count`.

A status of 200 means that the collector has accepted records, not that it has stored them. The forwarder
cannot detect if it drops them later.
"""

import email.utils
import gzip
import http.client
import time
import urllib.parse
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

import utracefs
from utracefs.export._protobuf import message, tagged, utf8, varint
from utracefs.forward._otlp import OtlpRecords, Plan, Role, field_kinds
from utracefs.forward.batch import Batch
from utracefs.forward.losses import ANY, REFUSED, Loss, Losses
from utracefs.forward.otlp_metrics import MAX_BYTES, MAX_POINTS, Counted, metrics
from utracefs.forward.target import Limits, Refused, Sent, Settings, TryAgain, time_option
from utracefs.recordings._records import EventDecoder

MAX_RECORDS: Final = 2000
"""Limit of a request's records: collectors split larger requests, and some drop parts of them."""

_PORT: Final = 4318
_RENEW_S: Final = 300
"""Age at which a connection is made anew: names and certificates change."""
_MOST_ANSWER: Final = 64 << 10
_MOST_PLANS: Final = 4096
_AGAIN: Final = frozenset((401, 403, 404, 408, 429, 502, 503, 504))
"""Statuses after which records wait: by OTLP's specification, and errors that an operator can mend."""
_LONGEST_DELAY_S: Final = 300.0
_AGENT: Final = f"utracefs/{utracefs.__version__}"

_SPAN_END: Final = ("span_id", "parent_id", "duration_ns", "error")
"""The first fields of NAME_end."""
_LOGGING: Final = ("level", "line", "logger", "message")
"""The first fields of utracefs.LoggingHandler."""

_LOGS: Final = "v1/logs"
_SPANS: Final = "v1/traces"
_METRICS: Final = "v1/metrics"

# Numbers of messages: ExportLogsServiceRequest.resource_logs, ResourceLogs.resource and .scope_logs,
# ScopeLogs.scope, and the same of spans; Resource.attributes; InstrumentationScope.name.
_ONE, _TWO = 1 << 3 | 2, 2 << 3 | 2


# LogRecord: time_unix_nano, observed_time_unix_nano, severity_number, event_name, attributes.
# AnyValue: int_value.
_LOG_TIME, _LOG_OBSERVED, _LOG_SEVERITY = 1 << 3 | 1, 11 << 3 | 1, 2 << 3
_LOG_NAME, _LOG_ATTRIBUTE, _VALUE_INT = 12 << 3 | 2, 6 << 3 | 2, 3 << 3
_WARN: Final = 13
_LOSSES_AT_ONCE: Final = 1000
"""Limit of losses in a request; each takes some 150 bytes, 700 with the longest name of an event."""


@attrs.frozen
class _Request:
    path: str
    body: bytes
    counts: Mapping[str, int]
    """`SYSTEM:NAME` to number of records; empty for losses."""
    items: int
    losses: Sequence[Loss] = ()


class Encoder:
    """Encodes batches as requests. resource: attributes of all requests."""

    def __init__(self, resource: Mapping[str, str] = {}) -> None:
        self._resource: Final = resource
        self._plans: dict[EventDecoder, Plan] = {}
        self._scopes: list[str] = []
        self._roots: Final[dict[int, int]] = {}
        """Span id to that of the root of its trace, bounded."""
        self._records: Final = OtlpRecords(self._plan, self._roots)

    def requests(self, batch: Batch) -> Iterator[_Request]:
        """The requests of batches, with losses first. ValueError: a batch is invalid; the requests for all
        records before that are returned first."""
        around = {**self._resource, "host.name": batch.host, "utracefs.boot_id": batch.boot_id}
        resource = message(_ONE, b"".join(_text_attribute(_ONE, *one) for one in around.items()))
        if batch.losses:
            for at in range(0, len(batch.losses), _LOSSES_AT_ONCE):
                losses = batch.losses[at : at + _LOSSES_AT_ONCE]
                items = [_loss_item(batch, loss) for loss in losses]
                yield _Request(_LOGS, self._body(resource, {"utracefs": items}), {}, len(items), losses)
        self._records.begin(
            batch.records(),
            offset_ns=batch.unix_offset_ns,
            observed_ns=batch.clock.unix_ns,
            trace=bytes.fromhex(batch.forwarder),
        )
        while True:
            runs, counts = self._records.next_request(MAX_RECORDS, MAX_BYTES)
            if not runs:
                return
            for path, is_span in ((_LOGS, False), (_SPANS, True)):
                by_scope: dict[str, list[bytes]] = {}
                for of_spans, scope, data, _ in runs:
                    if of_spans == is_span:
                        by_scope.setdefault(self._scopes[scope], []).append(data)
                if by_scope:
                    numbers: Counter[str] = Counter()
                    for plan, n in counts.items():
                        if plan.is_span == is_span:
                            numbers[plan.name] += n  # of all layouts of the event
                    yield _Request(path, self._body(resource, by_scope), numbers, sum(numbers.values()))

    def metrics(self, host: str, boot_id: str, counted: Sequence[Counted], now_ns: int) -> Iterator[_Request]:
        """Histograms, as they were at `now_ns`."""
        around = {**self._resource, "host.name": host, "utracefs.boot_id": boot_id}
        resource = message(_ONE, b"".join(_text_attribute(_ONE, *one) for one in around.items()))
        scopes: dict[str, list[bytes]] = {}
        points = size = 0
        for system, metric, more in ((one.system, *each) for one in counted for each in metrics(one, now_ns)):
            if scopes and (points + more > MAX_POINTS or size + len(metric) > MAX_BYTES):
                yield _Request(_METRICS, self._body(resource, scopes), {}, points)
                scopes, points, size = {}, 0, 0
            scopes.setdefault(system, []).append(message(_TWO, metric))
            points += more
            size += len(metric)
        if scopes:
            yield _Request(_METRICS, self._body(resource, scopes), {}, points)

    def _body(self, resource: bytes, scopes: Mapping[str, Sequence[bytes]]) -> bytes:
        """Joins once: items may have a megabyte."""
        parts = [b"", resource]
        size = len(resource)
        for name, items in scopes.items():
            scope = message(_ONE, message(_ONE, utf8(name)) + message(_TWO, utf8(utracefs.__version__)))
            head = varint(_TWO) + varint(len(scope) + sum(map(len, items))) + scope
            parts += [head, *items]
            size += len(head) + sum(map(len, items))
        parts[0] = tagged(_ONE, size)
        return b"".join(parts)

    def _plan(self, event: EventDecoder) -> Plan:
        found = self._plans.get(event)
        if found is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            if event.system not in self._scopes:
                self._scopes.append(event.system)
            is_span = event.names[:4] == _SPAN_END and event.name.endswith("_end")
            found = self._plans[event] = Plan(
                event,
                name=event.name.removesuffix("_end") if is_span else event.name,
                is_span=is_span,
                roles=[
                    _role(event.names, number, kind, is_span=is_span, is_header=event.opcode >= 0)
                    for number, kind in enumerate(field_kinds(event))
                ],
                scope=self._scopes.index(event.system),
            )
        return found


def _role(names: Sequence[str], number: int, kind: str, *, is_span: bool, is_header: bool) -> Role:
    """The role of a field; see the head of the module."""
    name = names[number]
    if is_span and number < len(_SPAN_END):
        return (Role.SPAN_ID_NUMBER, Role.PARENT_ID, Role.DURATION, Role.ERROR_TEXT)[number]
    found: dict[str, Role] = {}
    if kind == "integer":
        found = {"severity_number": Role.SEVERITY}
        if "parent_id" in names or "trace_id" in names:
            found["span_id"] = Role.SPAN_ID_NUMBER
        if "span_id" in names:
            found["parent_id"] = Role.PARENT_ID
        if "severity_text" in names:
            found["severity"] = Role.SEVERITY
        if is_header or tuple(names[:4]) == _LOGGING:
            found["level"] = Role.HEADER_LEVEL if is_header else Role.LOGGING_LEVEL
    elif kind == "text":
        found = {"trace_id": Role.TRACE_ID}
        if is_span:
            found["span_name"] = Role.SPAN_NAME_TEXT
        else:
            found |= {"severity_text": Role.SEVERITY_TEXT, "body": Role.BODY, "span_id": Role.SPAN_ID_TEXT}
            if tuple(names[:4]) == _LOGGING:
                found["message"] = Role.BODY
    return found.get(name, Role.ATTRIBUTE)


def _loss_item(batch: Batch, loss: Loss) -> bytes:
    """A log record, as ScopeLogs.log_records."""
    now = batch.clock.unix_ns.to_bytes(8, "little")
    parts = [varint(_LOG_TIME), now, varint(_LOG_OBSERVED), now, tagged(_LOG_SEVERITY, _WARN)]
    parts += [message(_LOG_NAME, b"utracefs.lost"), _text_attribute(_LOG_ATTRIBUTE, "event", loss.event)]
    parts.append(_text_attribute(_LOG_ATTRIBUTE, "cause", loss.cause))
    if loss.count is not None:
        parts.append(_attribute(_LOG_ATTRIBUTE, "count", tagged(_VALUE_INT, loss.count)))
    return message(_TWO, b"".join(parts))


def _counts(losses: Sequence[Loss]) -> dict[str, int | None]:
    found = Losses(attrs.evolve(loss, cause=REFUSED) for loss in losses)
    return {loss.event: loss.count for loss in found}


def _joined(requests: Sequence[_Request]) -> Iterator[_Request]:
    """Requests with losses, as many in each as allowed."""
    begin = 0
    for end in range(1, len(requests) + 1):
        if end == len(requests) or sum(one.items for one in requests[begin : end + 1]) > _LOSSES_AT_ONCE:
            some = requests[begin:end]
            losses = [loss for one in some for loss in one.losses]
            yield _Request(_LOGS, b"".join(one.body for one in some), {}, len(losses), losses)
            begin = end


def _attribute(tag: int, key: str, value: bytes) -> bytes:
    return message(tag, message(_ONE, utf8(key)) + message(_TWO, value))


def _text_attribute(tag: int, key: str, value: str) -> bytes:
    return _attribute(tag, key, message(_ONE, utf8(value)))


def rejected(answer: bytes) -> int:
    """The number in partial_success of an Export...ServiceResponse. ValueError: it is none."""
    for number, value in _fields(answer):
        if number == 1 and isinstance(value, bytes):
            for inner, content in _fields(value):
                if inner == 1 and isinstance(content, int) and content < 1 << 63:
                    return content
    return 0


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message; fixed ones as bytes. ValueError: it is none."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 64, 7):
            if at == len(data):
                raise ValueError("the message ends within a number")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number has too many bytes")

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or (varint() if tag & 7 == 2 else -1)
        if not 0 <= size <= len(data) - at:
            raise ValueError("the message ends within a value, or has one of an unknown type")
        yield tag >> 3, data[at : at + size]
        at += size


class OtlpTarget:
    """`otlp://HOST[:4318]`, `http://HOST:PORT[/PATH]`, `https://...`. Options: `service.name`, of the
    resource (utracefs); `compression` (none, gzip); `metrics`, time from one send of histograms to the
    next (0: none). The secret `headers` has lines `Name: value`."""

    limits = Limits(MAX_RECORDS, MAX_BYTES)
    options = ("compression", "metrics", "service.name")
    secrets = ("headers",)

    def __init__(self, address: str, settings: Settings) -> None:
        """ValueError: the address, an option, the headers. OSError: a file cannot be read."""
        url = urllib.parse.urlsplit(address)
        self._is_tls: Final = url.scheme == "https"
        try:
            self._host: Final = url.hostname or ""
            self._port: Final = url.port or (443 if self._is_tls else 80 if url.scheme == "http" else _PORT)
        except ValueError as error:
            raise ValueError(f"{url.scheme}://HOST:PORT: {error}") from None
        if not self._host or url.query or url.fragment or url.username is not None:
            raise ValueError(f"the address is not {url.scheme}://HOST:PORT")  # it may have a password
        if not self._is_tls and (settings.ca or settings.cert or settings.key):
            raise ValueError(f"{address}: --ca, --cert and --key need https://")
        compression = settings.options.get("compression", "none")
        if compression not in ("none", "gzip"):
            raise ValueError(f"option compression is none or gzip, not {compression!r}")
        self._is_gzip: Final = compression == "gzip"
        self.metrics_s: Final = time_option("metrics", settings.options.get("metrics", "0"))
        self._prefix: Final = url.path.rstrip("/") + "/"
        self._settings: Final = settings
        self._encoder: Final = Encoder({"service.name": settings.options.get("service.name", "utracefs")})
        self._connection: http.client.HTTPConnection | None = None
        self._headers: dict[str, str] = {}
        self._renew_at = 0.0
        self._is_used = False
        self._sending: tuple[str, int, int] | None = None
        self._requests: deque[_Request] = deque()
        """Requests with the batches `_sending` that are not accepted yet."""
        self._refused: dict[str, int | None] = {}
        self._is_first = True
        """Whether no request of the batches has been accepted yet."""
        self._read_headers()
        if self._is_tls:
            settings.tls()

    def send(self, batches: Sequence[Batch]) -> Sent:
        which = (batches[0].forwarder, batches[0].sequence, batches[-1].sequence)
        if self._sending != which:
            self._sending = which
            self._refused.clear()
            requests = [request for batch in batches for request in self._encoded(batch)]
            losses = [request for request in requests if not request.counts]
            # In front: if the first are refused, all batches are, so no record may have arrived. Bodies one
            # behind the other are one message.
            self._requests = deque(_joined(losses))
            self._requests.extend(request for request in requests if request.counts)
            self._is_first = True
        deadline = time.monotonic() + self._settings.timeout_s
        while self._requests:
            self._refuse(self._post(self._requests[0], deadline))
            self._requests.popleft()
            self._is_first = False
        self._sending = None
        return dict(self._refused)

    def send_metrics(self, host: str, boot_id: str, counted: Sequence[Counted], now_ns: int) -> str:
        """Send metrics. Only for a thread that has its own target. Returns the collector's text about refused
        data points; empty: it accepted all. TryAgain, OSError."""
        refused = ""
        for request in self._encoder.metrics(host, boot_id, counted, now_ns):
            try:
                self._post(request, time.monotonic() + self._settings.timeout_s)
            except Refused as error:
                refused = str(error)
        return refused

    def _refuse(self, counts: Mapping[str, int | None]) -> None:
        some = [Loss(event, REFUSED, count) for event, count in (*self._refused.items(), *counts.items())]
        self._refused = _counts(some)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _encoded(self, batch: Batch) -> list[_Request]:
        """All that is valid; the rest is refused."""
        found: list[_Request] = []
        try:
            found.extend(self._encoder.requests(batch))
        except ValueError:
            left = Counter(batch.counts)
            for request in found:
                left.subtract(request.counts)
            self._refuse(+left)
        return found

    def _post(self, request: _Request, deadline: float) -> Mapping[str, int | None]:
        """Returns the numbers of refused records and losses. TryAgain, OSError; Refused: the whole request
        was refused."""
        body = gzip.compress(request.body, 1) if self._is_gzip else request.body
        status, reason, headers, answer = self._exchange(request.path, body, deadline)
        if status == 200:
            try:
                number = min(rejected(answer), request.items)
            except ValueError:
                number = 0
            if number and request.path == _METRICS:
                raise Refused(f"{number} of {request.items} data points")
            if not number:
                return {}
            if not request.counts:  # the answer does not say which of several losses are refused
                return _counts(request.losses) if number == request.items else {ANY: None}
            return {next(iter(request.counts)) if len(request.counts) == 1 else ANY: number}
        what = f"{status} {reason} from {self._host}:{self._port}{self._prefix}{request.path}"
        if status in _AGAIN or status // 100 == 3:
            raise TryAgain(what, _delay(headers.get("Retry-After")))
        if not request.counts and (self._is_first or request.path == _METRICS):
            raise Refused(what)
        return request.counts or _counts(request.losses)

    def _exchange(
        self, path: str, body: bytes, deadline: float
    ) -> tuple[int, str, http.client.HTTPMessage, bytes]:
        """A request and its answer; over a new connection if the kept one is closed."""
        while True:
            was_used = self._is_used
            connection = self._connected(deadline)
            try:
                connection.request("POST", self._prefix + path, body, self._headers)
                answer = connection.getresponse()
                content = answer.read(_MOST_ANSWER)
                if not answer.isclosed():
                    self.close()
                self._is_used = True
                return answer.status, answer.reason, answer.headers, content
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.close()
                if not was_used:
                    raise
                self._is_used = False
            except http.client.HTTPException as error:
                self.close()
                raise TryAgain(f"{self._host}:{self._port} does not speak HTTP: {repr(error)[:60]}") from None
            except BaseException as error:
                self.close()
                if isinstance(error, OSError) and error.errno is not None:
                    error.filename = f"{self._host}:{self._port}"
                raise

    def _connected(self, deadline: float) -> http.client.HTTPConnection:
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"no answer within {self._settings.timeout_s:g} s")
        if self._connection is None or now >= self._renew_at:
            self.close()
            self._read_headers()
            self._is_used = False
            self._renew_at = now + _RENEW_S
            if self._is_tls:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, context=self._settings.tls()
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port)
        self._connection.timeout = deadline - now
        if self._connection.sock is not None:
            self._connection.sock.settimeout(deadline - now)
        return self._connection

    def _read_headers(self) -> None:
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": _AGENT}
        if self._is_gzip:
            self._headers["Content-Encoding"] = "gzip"
        for line in (self._settings.secret("headers") or "").splitlines():
            name, colon, value = line.partition(":")
            if not colon or not name.strip().isascii() or not value.strip().isprintable():
                raise ValueError("secret `headers`: a line is not `Name: value`")  # never its text
            self._headers[name.strip()] = value.strip()


def _delay(text: str | None) -> float | None:
    """Seconds of a header Retry-After, which has seconds or a date."""
    if text is None:
        return None
    if text.strip().isdigit():
        return min(float(text), _LONGEST_DELAY_S)
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None
    return min(max(0.0, at - time.time()), _LONGEST_DELAY_S)
