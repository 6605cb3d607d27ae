"""JetStream: streams, acknowledged messages, consumers.

Requests go to subjects `$JS.API.VERB`, with JSON in both directions (docs.nats.io, "JetStream wire API").
"""

import base64
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from utracefs.nats.connection import Connection, Subscription
from utracefs.nats.errors import ApiError, NotFound, WireError, WrongLastSequence
from utracefs.nats.wire import Message, Parser

NS: Final = 10**9
"""JetStream's times are in nanoseconds."""

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"

_WRONG_LAST_SEQUENCE: Final = 10071
_CONSUMER_NOT_FOUND: Final = 10014
_FETCH: Final = 256
"""Messages that a consumer requests at once."""

_FETCH_S: Final = 30.0
"""Time for which the server keeps such a request."""

_HEARTBEAT_S: Final = 5.0
"""Interval of the server's heartbeats while it has a request. After three missing ones the consumer is
considered lost: the server does not report unknown consumers."""

_IDLE_S: Final = 300.0
"""Time without requests after which the server deletes a consumer."""


@attrs.frozen
class Stored:
    """A message of a stream."""

    subject: str
    sequence: int
    """In the stream: from 1 on."""
    headers: Mapping[str, str]
    payload: bytes = attrs.field(repr=False)
    pending: int = 0
    """Messages that were behind it when a consumer sent it."""


class JetStream:
    """JetStream of one account. domain: of a leaf node; empty: that of the server."""

    def __init__(self, connection: Connection, domain: str = "") -> None:
        self.connection: Final = connection
        self._api: Final = f"$JS.{domain}.API" if domain else "$JS.API"

    def call(self, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A request of the API; the members of the answer. ApiError."""
        data = b"" if body is None else json.dumps(body).encode()
        return _checked(self.connection.request(f"{self._api}.{verb}", data))

    def stream(self, name: str) -> dict[str, Any]:
        """`config` and `state`. NotFound."""
        return self.call(f"STREAM.INFO.{name}")

    def create_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make a stream; one with the same configuration may exist. ApiError: one with another configuration
        exists."""
        return self.call(f"STREAM.CREATE.{config['name']}", config)

    def update_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self.call(f"STREAM.UPDATE.{config['name']}", config)

    def begin(
        self,
        subject: str,
        payload: bytes | memoryview,
        headers: Mapping[str, str] = {},
        *,
        expected: int | None = None,
    ) -> str:
        """Publish into the stream of the subject. Returns a number for `end`. expected: the sequence of the
        last message of the subject, 0: there is none."""
        if expected is not None:
            headers = {**headers, EXPECTED: str(expected)}
        return self.connection.begin(subject, payload, headers)

    def end(self, number: str, timeout_s: float | None = None) -> int:
        """Wait until the message is stored: its sequence. WrongLastSequence: not the expected one.
        NoResponders: no stream takes the subject. TimeoutError: whether it is stored is unknown."""
        sequence = _checked(self.connection.end(number, timeout_s)).get("seq")
        if not isinstance(sequence, int):
            raise WireError("an acknowledgement without a sequence")
        return sequence

    def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] = {}, *, expected: int | None = None
    ) -> int:
        """`begin` and `end`."""
        return self.end(self.begin(subject, payload, headers, expected=expected))

    def last(self, stream: str, subject: str) -> Stored:
        """The last message of a subject, from the leader of the stream. NotFound: there is none."""
        return self._get(stream, {"last_by_subj": subject})

    def get(self, stream: str, sequence: int) -> Stored:
        """The message with that sequence. NotFound: it does not exist, or no longer."""
        return self._get(stream, {"seq": sequence})

    def _get(self, stream: str, what: Mapping[str, Any]) -> Stored:
        found = self.call(f"STREAM.MSG.GET.{stream}", what)
        try:
            message = found["message"]
            headers = {}
            if message.get("hdrs"):
                data = base64.b64decode(message["hdrs"])
                parser = Parser()
                parser.feed(f"HMSG - 0 {len(data)} {len(data)}\r\n".encode() + data + b"\r\n")
                headers = {
                    key: value for m in parser if isinstance(m, Message) for key, value in m.headers.items()
                }
            return Stored(
                message["subject"], int(message["seq"]), headers, base64.b64decode(message.get("data", ""))
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise WireError(f"no message in the answer: {error!r}") from None


def _checked(answer: Message) -> dict[str, Any]:
    try:
        found = json.loads(answer.payload)
        error = found.get("error")
        if error is None:
            return dict(found)
        text, code, number = str(error.get("description")), int(error["code"]), int(error.get("err_code", 0))
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError):
        raise WireError(f"no answer of JetStream: {answer.payload[:80]!r}") from None
    if number == _WRONG_LAST_SEQUENCE:
        raise WrongLastSequence(text, code, number)
    raise (NotFound if code == 404 else ApiError)(text, code, number)


class Consumer:
    """Messages of a stream in their order, each once, also over new connections: a pull consumer that the
    server need not store, made again behind the last message when it is gone.

    subject: of the messages, also a pattern. after: begin behind this sequence. is_last: begin with the last
    message of each subject. headers_only: without payloads."""

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        subject: str = ">",
        *,
        after: int = 0,
        is_last: bool = False,
        headers_only: bool = False,
    ) -> None:
        self.sequence = after
        """Sequence of the last message that `next` returned."""
        self.pending = 0
        """Messages that are stored and were not returned: as the server last reported."""
        self.restarts = 0
        """Number of times that the stream was found empty and new: it was read from its begin then."""
        self._jetstream: Final = jetstream
        self._stream: Final = stream
        self._subject: Final = subject
        self._is_last = is_last
        self._headers_only: Final = headers_only
        self._created = ""
        """The stream."""
        self._name = ""
        """Empty: there is none."""
        self._answers: Subscription | None = None
        self._delivered = self._requested = 0
        self._silent_s = 0.0
        """Time that was spent waiting since the last message."""
        self._until = 0.0
        """The end of the last request at the server."""

    def __enter__(self) -> Self:
        self._create()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the consumer. (The server also does that by itself after a while.)"""
        name, self._name = self._name, ""
        try:
            if self._answers is not None:
                self._answers.end()
            if name and self._jetstream.connection.is_open:
                self._jetstream.call(f"CONSUMER.DELETE.{self._stream}.{name}")
        except (OSError, ApiError):
            pass

    def _create(self) -> None:
        jetstream = self._jetstream
        created = str(jetstream.stream(self._stream).get("created"))
        if self._created not in ("", created):
            self.sequence = 0
            self.restarts += 1
        self._created = created
        name = secrets.token_hex(8)
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_waiting": 4,
            "inactive_threshold": int(_IDLE_S * NS),
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subject": self._subject,
            "headers_only": self._headers_only,
        }
        if self._is_last and not self.sequence:
            config["deliver_policy"] = "last_per_subject"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.sequence + 1}
        if self._answers is not None:
            self._answers.end()
        answer = jetstream.call(
            f"CONSUMER.CREATE.{self._stream}.{name}.{self._subject}",
            {"stream_name": self._stream, "config": config},
        )
        pending = answer.get("num_pending")
        self.pending = pending if isinstance(pending, int) else 0
        self._answers = jetstream.connection.subscribe(jetstream.connection.new_inbox())
        self._name = name
        self._delivered = self._requested = 0
        self._silent_s = 0.0

    def look(self) -> None:
        """Update `pending`: messages may vanish."""
        if self._name:
            answer = self._jetstream.call(f"CONSUMER.INFO.{self._stream}.{self._name}")
            self.pending = int(answer.get("num_pending", 0))

    def next(self, timeout_s: float) -> Stored | None:
        """The next message; None: none came in time. OSError, ApiError: call again later, nothing is
        missed."""
        deadline = time.monotonic() + timeout_s
        while True:
            if not self._name:
                self._create()
            assert self._answers is not None
            begun = time.monotonic()
            if self._requested <= 0 or begun >= self._until:
                self._fetch()
            until = min(deadline, self._until, begun + 3 * _HEARTBEAT_S - self._silent_s)
            try:
                message = self._answers.next(max(0.0, until - begun))
            except ConnectionError:
                self._name = ""
                if time.monotonic() >= deadline:
                    raise
                continue
            now = time.monotonic()
            self._silent_s = 0.0 if message is not None else self._silent_s + now - begun
            if message is None:
                if self._silent_s >= 3 * _HEARTBEAT_S:
                    self._name = ""
            elif message.status:
                self._take_status(message)
            elif (stored := self._take(message)) is not None:
                return stored
            if now >= deadline:
                return None

    def _fetch(self) -> None:
        assert self._answers is not None
        body = {
            "batch": _FETCH,
            "expires": int(_FETCH_S * NS),
            "idle_heartbeat": int(_HEARTBEAT_S * NS),
        }
        self._jetstream.connection.publish(
            f"{self._jetstream._api}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}",
            json.dumps(body).encode(),
            reply=self._answers.subject,
        )
        self._requested = _FETCH
        self._until = time.monotonic() + _FETCH_S

    def _take_status(self, message: Message) -> None:
        match message.status:
            case 100:
                pass
            case 404 | 408:
                self._requested = 0
            case _:  # 409: it was deleted, or its server is going; 503: it is gone
                self._name = ""

    def _take(self, message: Message) -> Stored | None:
        """None: a message was missed, so the consumer is made again."""
        self._requested -= 1
        words = message.reply.split(".")
        if len(words) > 9:  # a domain and an account's hash
            words = words[2:]
        try:
            sequence, delivered, pending = int(words[5]), int(words[6]), int(words[8])
        except (IndexError, ValueError):
            raise WireError(f"no message of a consumer: {message.reply[:80]!r}") from None
        self._delivered += 1
        if delivered != self._delivered:
            self._name = ""
            return None
        self.sequence, self.pending = sequence, pending
        return Stored(message.subject, sequence, message.headers, message.payload, pending)
