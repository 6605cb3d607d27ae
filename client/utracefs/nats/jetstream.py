"""JetStream: streams, acknowledged messages.

Requests go to subjects `$JS.API.VERB`, with JSON in both directions (docs.nats.io, "JetStream wire API").
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from utracefs.nats.connection import Connection
from utracefs.nats.errors import ApiError, NotFound, WireError, WrongLastSequence
from utracefs.nats.wire import Message, Parser

NS: Final = 10**9
"""JetStream's times are in nanoseconds."""

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"

_WRONG_LAST_SEQUENCE: Final = 10071
_NO_MESSAGE: Final = 10037
"""Other numbers of NotFound are of a stream."""


@attrs.frozen
class Stored:
    """A message of a stream."""

    subject: str
    sequence: int
    """In the stream: from 1 on."""
    headers: Mapping[str, str]
    payload: bytes = attrs.field(repr=False)
    time_s: float = attrs.field(default=0.0, eq=False)
    """When it was stored, by the server's clock: seconds since 1970."""


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

    def end(self, number: str) -> int:
        """Wait until the message is stored: its sequence. WrongLastSequence: not the expected one.
        NoResponders: no stream takes the subject. TimeoutError: whether it is stored is unknown."""
        sequence = _checked(self.connection.end(number)).get("seq")
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

    def next(self, stream: str, subject: str, after: int) -> Stored | None:
        """The first message behind that sequence, of a subject or pattern; None: there is none. Needs no
        consumer, so a reader needs no permission to make one: it could have the server publish messages to
        any subject of the stream's account. NotFound: the stream."""
        try:
            return self._get(stream, {"seq": after + 1, "next_by_subj": subject})
        except NotFound as error:
            if error.err_code != _NO_MESSAGE:
                raise
            return None

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
            data = base64.b64decode(message.get("data", ""))
            return Stored(message["subject"], int(message["seq"]), headers, data, _time_s(message["time"]))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise WireError(f"no message in the answer: {error!r}") from None


def _time_s(text: str) -> float:
    """Seconds since 1970 of a time of the server's: UTC, also without a `Z`."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


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
        raise WrongLastSequence(text, number)
    raise (NotFound if code == 404 else ApiError)(text, number)
