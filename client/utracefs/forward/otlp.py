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

A status of 2xx means that the collector has accepted records, not that it has stored them. The forwarder
cannot detect if it drops them later. 413 halves a request, down to the record that is too large.
"""

import contextlib
import email.utils
import gzip
import http.client
import re
import ssl
import time
import urllib.parse
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import attrs

import utracefs
from utracefs.export._protobuf import message, tagged, utf8, varint
from utracefs.forward._otlp import OtlpRecords, Plan, Role, attribute, field_kinds
from utracefs.forward.batch import Batch
from utracefs.forward.losses import ANY, REFUSED, Loss, Losses
from utracefs.forward.otlp_metrics import MAX_BYTES, MAX_POINTS, Counted, metrics
from utracefs.forward.target import Limits, Refused, Sent, Settings, TryAgain, time_option
from utracefs.nats.sockets import connect, secured
from utracefs.recordings._records import EventDecoder

MAX_RECORDS: Final = 2000
"""Limit of a request's records: collectors split larger requests, and some drop parts of them."""

_PORT: Final = 4318
_RENEW_S: Final = 300
"""Age at which a connection is made anew: names and certificates change."""
_MOST_ANSWER: Final = 64 << 10
_EARLY_S: Final = 0.1
"""Time for the answer of a collector that does not read the whole request."""
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
_LOG_TIME, _LOG_OBSERVED, _LOG_SEVERITY = 1 << 3 | 1, 11 << 3 | 1, 2 << 3
_LOG_NAME, _LOG_ATTRIBUTE = 12 << 3 | 2, 6 << 3 | 2
_WARN: Final = 13
_HEAD: Final = 1 + len(varint(MAX_BYTES))
"""Bytes in front of a message: its tag and size."""
_MEMBER: Final = re.compile(rb"([\x80-\xff]{0,9}[^\x80-\xff])([\x80-\xff]{0,9}[^\x80-\xff])")
"""Two varints."""
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
    batches: Sequence[Batch] = attrs.field(default=(), repr=False)
    """Their losses, or of a single one the records from `begin` to `end` and more of the other path."""
    begin: int = 0
    end: int = 0


class _TooLarge(Refused):
    """413."""


class Encoder:
    """Encodes batches as requests. resource: attributes of all requests."""

    def __init__(self, resource: Mapping[str, str] = {}) -> None:
        self._resource: Final = resource
        self._plans: dict[EventDecoder, Plan] = {}
        self._scopes: list[str] = []
        self.roots: Final[dict[int, int]] = {}
        """Span id to that of the root of its trace, bounded."""
        self._records: Final = OtlpRecords(self._plan, self.roots)

    def requests(self, batch: Batch) -> Iterator[_Request]:
        """The requests of batches, with losses first. ValueError: a batch is invalid; the requests for all
        records before that are returned first."""
        resource = self._resource_of(batch.host, batch.boot_id)
        for at in range(0, len(batch.losses), _LOSSES_AT_ONCE):
            losses = batch.losses[at : at + _LOSSES_AT_ONCE]
            items = [_loss_item(batch, loss) for loss in losses]
            alone = attrs.evolve(batch, body=b"", counts={}, losses=losses)
            body = self._body(resource, {"utracefs": items})
            yield _Request(_LOGS, body, {}, len(items), losses, [alone])
        self._records.begin(
            batch.records(),
            offset_ns=batch.unix_offset_ns,
            observed_ns=batch.clock.unix_ns,
            trace=bytes.fromhex(batch.forwarder),
        )
        begin = end = 0
        while True:
            runs, counts = self._records.next_request(MAX_RECORDS, max(0, MAX_BYTES - len(resource) - _HEAD))
            if not runs:
                return
            begin, end = end, end + sum(counts.values())
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
                    body = self._body(resource, by_scope)
                    yield _Request(
                        path, body, numbers, sum(numbers.values()), batches=[batch], begin=begin, end=end
                    )

    def halves(self, request: _Request) -> list[_Request]:
        """The same items in more requests; empty: it has only one."""
        batches, begin, end = request.batches, request.begin, request.end
        halves: list[Sequence[Batch]] = []
        if request.items < 2:
            pass
        elif not request.losses:
            bare = attrs.evolve(batches[0], losses=())
            halves = [[bare.cut(begin, (begin + end) // 2)], [bare.cut((begin + end) // 2, end)]]
        elif len(batches) > 1:
            halves = [batches[: len(batches) // 2], batches[len(batches) // 2 :]]
        else:
            middle = request.items // 2
            parts = request.losses[:middle], request.losses[middle:]
            halves = [[attrs.evolve(batches[0], losses=losses)] for losses in parts]
        found: list[_Request] = []
        for half in halves:
            requests = [one for batch in half for one in self.requests(batch) if one.path == request.path]
            found += _joined(requests) if request.losses else requests
        return found

    def metrics(
        self, host: str, boot_id: str, counted: Sequence[Counted], now_ns: int, limit: int = MAX_POINTS
    ) -> Iterator[_Request]:
        """Histograms, as they were at `now_ns`; at most `limit` data points in each request."""
        resource = self._resource_of(host, boot_id)
        around = len(resource) + _HEAD + max((_envelope(one.system) for one in counted), default=0)
        scopes: dict[str, list[bytes]] = {}
        points = size = 0
        for one in counted:
            for metric, more in metrics(one, now_ns, limit, MAX_BYTES - around - _HEAD):
                part = message(_TWO, metric)
                added = len(part) + (0 if one.system in scopes else _envelope(one.system))
                if scopes and (points + more > limit or size + added > MAX_BYTES):
                    yield _Request(_METRICS, self._body(resource, scopes), {}, points)
                    scopes = {}
                if not scopes:
                    points, size = 0, len(resource) + _HEAD
                    added = len(part) + _envelope(one.system)
                scopes.setdefault(one.system, []).append(part)
                points += more
                size += added
        if scopes:
            yield _Request(_METRICS, self._body(resource, scopes), {}, points)

    def _resource_of(self, host: str, boot_id: str) -> bytes:
        about = {**self._resource, "host.name": host, "utracefs.boot_id": boot_id}
        return message(_ONE, b"".join(attribute(_ONE, *one) for one in about.items()))

    def _body(self, resource: bytes, scopes: Mapping[str, Sequence[bytes]]) -> bytes:
        """Joins once: items may have a megabyte."""
        parts = [b"", resource]
        size = len(resource)
        for name, items in scopes.items():
            scope = _scope(name)
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
                envelope=_envelope(event.system),
            )
        return found


def _scope(name: str) -> bytes:
    return message(_ONE, message(_ONE, utf8(name)) + message(_TWO, utf8(utracefs.__version__)))


def _envelope(scope: str) -> int:
    """Bytes around the items of a scope."""
    return _HEAD + len(_scope(scope))


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
    parts.append(message(_LOG_NAME, b"utracefs.lost"))
    for key, value in {"event": loss.event, "cause": loss.cause, "count": loss.count}.items():
        if value is not None:
            parts.append(attribute(_LOG_ATTRIBUTE, key, value))
    return message(_TWO, b"".join(parts))


def _counts(losses: Sequence[Loss]) -> dict[str, int | None]:
    found = Losses(attrs.evolve(loss, cause=REFUSED) for loss in losses)
    return {loss.event: loss.count for loss in found}


def _refused(request: _Request) -> Mapping[str, int | None]:
    return request.counts or _counts(request.losses)


def _joined(requests: Sequence[_Request]) -> Iterator[_Request]:
    """Requests with losses, as many in each as allowed."""
    begin = 0
    for end in range(1, len(requests) + 1):
        more = requests[begin : end + 1]
        if (
            end == len(requests)
            or sum(one.items for one in more) > _LOSSES_AT_ONCE
            or sum(len(one.body) for one in more) > MAX_BYTES
        ):
            some = requests[begin:end]
            losses = [loss for one in some for loss in one.losses]
            batches = [batch for one in some for batch in one.batches]
            yield _Request(_LOGS, b"".join(one.body for one in some), {}, len(losses), losses, batches)
            begin = end


def rejected(answer: bytes) -> int:
    """The number in partial_success of an Export...ServiceResponse. 0: it has none, or one below 0."""
    number: int = _members(_members(answer).get(_ONE, b"")).get(1 << 3, 0)
    return number if number >> 63 == 0 else 0


def _members(data: bytes) -> dict[int, Any]:
    """Tags, and values: numbers, or bytes; up to one of another type, or one that is cut off."""
    found: dict[int, Any] = {}
    at = 0
    while member := _MEMBER.match(data, at):
        tag, value = (sum((byte & 127) << 7 * n for n, byte in enumerate(part)) for part in member.groups())
        at = member.end()
        if tag & 7 == 2:
            found[tag] = data[at : at + value]
            at += value
        elif tag & 7 == 0:
            found[tag] = value
        else:
            break
    return found


class _Response(http.client.HTTPResponse):
    def _read_status(self) -> tuple[str, int, str]:
        """The answer's. 1xx come before it (RFC 9110, 15.2); http.client skips only 100."""
        found: tuple[str, int, str]
        while 100 <= (found := super()._read_status())[1] < 200:  # type: ignore[misc]
            http.client.parse_headers(self.fp)
        return found


class _Connection(http.client.HTTPConnection):
    response_class = _Response

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self.default_port = 80 if tls is None else 443
        self.deadline = 0.0
        self._tls: Final = tls

    def until(self, deadline: float) -> None:
        self.deadline = deadline
        if self.sock is not None:
            cast(Any, self.sock).deadline = deadline

    def connect(self) -> None:
        self.sock = connect(self.host, self.port, self.deadline)
        if self._tls is not None:
            self.sock = secured(self.sock, self._tls, self.host)


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
        self.note = ""
        """Why records were refused by the last `send`."""
        self._connection: _Connection | None = None
        self._headers: dict[str, str] = {}
        self._renew_at = 0.0
        self._is_used = False
        self._sending: tuple[str, int, int] | None = None
        self.pending: deque[_Request] = deque()
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
            self.note = ""
            self._refused.clear()
            requests = [request for batch in batches for request in self._encoded(batch)]
            losses = [request for request in requests if not request.counts]
            # In front: if the first are refused, all batches are, so no record may have arrived. Bodies one
            # behind the other are one message.
            self.pending = deque(_joined(losses))
            self.pending.extend(request for request in requests if request.counts)
            self._is_first = True
        deadline = time.monotonic() + self._settings.timeout_s
        while self.pending:
            request = self.pending[0]
            try:
                refused = self._post(request, deadline)
            except _TooLarge as error:
                try:
                    halves = self._encoder.halves(request)
                except ValueError:  # a damaged batch
                    refused, self.note = _refused(request), f"records are refused: {error}"
                else:
                    self.pending.popleft()
                    self.pending.extendleft(reversed(halves))
                    continue
            self._refuse(refused)
            self.pending.popleft()
            self._is_first = False
        self._sending = None
        return dict(self._refused)

    def send_metrics(self, host: str, boot_id: str, counted: Sequence[Counted], now_ns: int) -> str:
        """Send metrics. Only for a thread that has its own target. Returns the collector's text about refused
        data points; empty: it accepted all. TryAgain, OSError."""
        limit = MAX_POINTS
        while True:
            refused = ""
            for request in self._encoder.metrics(host, boot_id, counted, now_ns, limit):
                try:
                    self._post(request, time.monotonic() + self._settings.timeout_s)
                except _TooLarge:  # send all again: points with the time that a collector has are no others
                    limit = request.items // 2
                    break
                except Refused as error:
                    refused = str(error)
            else:
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
        was refused, which a part of it may not be if it is _TooLarge."""
        status, reason, headers, answer = self._exchange(self._prefix + request.path, request.body, deadline)
        if status // 100 == 2:
            number = min(rejected(answer), request.items)
            if number and request.path == _METRICS:
                raise Refused(f"{number} of {request.items} data points")
            if not number:
                return {}
            self.note = f"{self._host}:{self._port} refuses {number} of {request.items} records"
            if not request.counts:  # the answer does not say which of several losses are refused
                return _counts(request.losses) if number == request.items else {ANY: None}
            return {next(iter(request.counts)) if len(request.counts) == 1 else ANY: number}
        what = f"{status} {reason} from {self._host}:{self._port}{self._prefix}{request.path}"
        if status in _AGAIN or status // 100 == 3:
            raise TryAgain(what, _delay(headers.get("Retry-After")))
        if status == 413 and request.items > 1:
            raise _TooLarge(what)
        if not request.counts and (self._is_first or request.path == _METRICS):
            raise Refused(what)
        self.note = f"records are refused: {what}"
        return _refused(request)

    def _exchange(
        self, path: str, body: bytes, deadline: float
    ) -> tuple[int, str, http.client.HTTPMessage, bytes]:
        """A request and its answer; over a new connection if the kept one is closed."""
        headers = dict(self._headers)
        if self._is_gzip and len(packed := gzip.compress(body, 1)) < len(body):
            body, headers["Content-Encoding"] = packed, "gzip"
        while True:
            was_used = self._is_used
            connection = self._connected(deadline)
            try:
                if connection.sock is None:
                    connection.connect()
                failed = self._send(connection, path, body, headers)
                answer = connection.getresponse()
                content = answer.read(_MOST_ANSWER)
                if failed is not None and answer.status // 100 == 2:
                    raise failed  # it has not read the records
                if failed is not None or not answer.isclosed():
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
            except TimeoutError:
                self.close()
                raise self._too_late() from None
            except BaseException as error:
                self.close()
                if isinstance(error, OSError) and error.errno is not None:
                    error.filename = f"{self._host}:{self._port}"
                raise

    @staticmethod
    def _send(connection: _Connection, path: str, body: bytes, headers: Mapping[str, str]) -> OSError | None:
        """Returns the error of a collector that does not take all: it may have answered already."""
        try:
            connection.request("POST", path, body, headers)
        except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
            connection.until(max(connection.deadline, time.monotonic() + _EARLY_S))
            return error
        return None

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"{self._host}:{self._port}: no answer within {self._settings.timeout_s:g} s")

    def _connected(self, deadline: float) -> _Connection:
        now = time.monotonic()
        if now >= deadline:
            raise self._too_late()
        if self._connection is None or now >= self._renew_at:
            self.close()
            self._read_headers()
            self._is_used = False
            self._renew_at = now + _RENEW_S
            tls = self._settings.tls() if self._is_tls else None
            self._connection = _Connection(self._host, self._port, tls)
        self._connection.until(deadline)
        return self._connection

    def _read_headers(self) -> None:
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": _AGENT}
        for line in (self._settings.secret("headers") or "").splitlines():
            name, colon, value = line.partition(":")
            if not colon or not name.strip().isascii() or not value.strip().isprintable():
                raise ValueError("secret `headers`: a line is not `Name: value`")  # never its text
            self._headers[name.strip()] = value.strip()


def _delay(text: str | None) -> float | None:
    """Seconds of a header Retry-After, which has seconds or a date."""
    if text is None:
        return None
    if text.isascii() and text.strip().isdigit():
        return min(float(text), _LONGEST_DELAY_S)
    with contextlib.suppress(TypeError, ValueError, IndexError, OverflowError):
        at = email.utils.parsedate_to_datetime(text).timestamp()
        return min(max(0.0, at - time.time()), _LONGEST_DELAY_S)
    return None
