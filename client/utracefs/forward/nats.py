"""NATS JetStream: `nats://[USER@]HOST[:4222][,HOST...]/STREAM`. Needs pyarrow.

Each forwarder has a subject, `utracefs.records.HOST.FORWARDER`, on which it alone publishes, and each batch
is a message there (nats_messages). A message states the sequence that the last message of its subject must
have, so the server refuses duplicates, however late:

    publish ── acknowledged ─────────────────────────▶ stored
       ├────── no answer, or a new connection ──┐
       └────── wrong last sequence (10071) ─────┴──▶ read the last message of the subject: it says which
                                                      batch was stored; send those behind it

The server acknowledges before fsync(2): see its `sync_interval`. Readers notice batches that it lost so,
since each message has the number of the batch before it.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from utracefs.forward.batch import Batch
from utracefs.forward.nats_messages import COMPRESSIONS, Encoder, Part, Position, headers, position
from utracefs.forward.target import Limits, Sent, Settings, TryAgain, time_option
from utracefs.nats.connection import Connection, servers
from utracefs.nats.errors import ApiError, NoResponders, NotFound, WireError, WrongLastSequence
from utracefs.nats.jetstream import NS, JetStream
from utracefs.nats.login import SECRETS, Login, inbox_of, split_user
from utracefs.nats.wire import checked_subject
from utracefs_protocol.text import size_of

SUBJECT: Final = "utracefs.records"

_STREAM: Final = re.compile(r"[A-Za-z0-9_-]+")

_HEADER_BYTES: Final = 2 << 10
"""Room for the headers of a message."""
_LEAST_PAYLOAD: Final = 16 << 10
_TRIES: Final = 3
"""Number of attempts: a subject has one writer, so its last message changes at most once without our
knowledge."""


class NatsTarget:
    """See `utracefs.forward.target`."""

    options = (
        *("compression", "domain", "inbox", "max_age", "max_bytes", "replicas", "subject", "tls", "user"),
    )
    secrets = SECRETS

    def __init__(self, address: str, settings: Settings) -> None:
        options = settings.options
        parts = urlsplit(address)
        self._stream: Final = unquote(parts.path.lstrip("/"))
        if not _STREAM.fullmatch(self._stream) or parts.query or parts.fragment:
            raise ValueError("the address is not nats://[USER@]HOST[:PORT][,HOST...]/STREAM")
        user, hosts = split_user(parts.netloc)
        self._settings: Final = settings
        self._subject: Final = checked_subject(options.get("subject", SUBJECT))
        if {"*", ">"} & set(self._subject.split(".")):
            raise ValueError(f"option subject: {self._subject!r} is a pattern of subjects")
        self._config: Final = _config(self._stream, self._subject, options)
        compression = options.get("compression", COMPRESSIONS[0])
        if compression not in COMPRESSIONS:
            raise ValueError(f"option compression: {compression!r} is none of {', '.join(COMPRESSIONS)}")
        if options.get("tls", "yes") != "yes":
            raise ValueError("option tls: only `yes`; without it, TLS is for servers that require it")
        is_tls = "tls" in options or settings.ca is not None or settings.cert is not None
        # Raw records become a quarter in Arrow's tables, or stay as large without compression. So nearly all
        # batches are one message of the server's default size; cutting them costs much.
        self.limits: Final = Limits(records=50_000, bytes=1 << (18 if compression == "none" else 20))
        self._encoder: Final = Encoder(compression)
        login = partial(Login.read, options.get("user", user), settings.secret)
        self.connection: Final = Connection(
            servers(hosts),
            login=login,
            tls=settings.tls if is_tls else None,
            timeout_s=settings.timeout_s,
            name="utracefs forward",
            inbox=options.get("inbox", inbox_of(user)),
        )
        self._jetstream: Final = JetStream(self.connection, options.get("domain", ""))
        self._generation = 0
        """The connection on which the stream was last examined."""
        self._limit = 0
        """Bytes of a payload."""
        self._at = ""
        """The subject."""
        self._last: int | None = None
        """Sequence of the last message of the subject; None: unknown."""
        self._stored = Position(0, 0, 0)
        """Position of the message with that sequence."""
        self.note = ""
        self._foreign = self._foreign_to = 0
        """Number of messages of others on the subject, and the sequence up to which they are counted."""
        self._acked = 0
        """Sequence of the last batch whose storing the server has acknowledged."""
        self._unacked: tuple[str, Position] | None = None
        """Number of a request without an answer so far, and its message."""
        self._refused: dict[int, Counter[str]] = {}
        """Batch to records that cannot be sent."""
        with contextlib.suppress(OSError):  # secrets are read again, and may be there then
            login().members("")

    def close(self) -> None:
        self.connection.close()

    def send(self, batches: Sequence[Batch]) -> Sent:
        self.note = ""
        with self.connection.within(self._settings.timeout_s):
            return self._try(batches)

    def _try(self, batches: Sequence[Batch]) -> Sent:
        for _ in range(_TRIES):
            try:
                self._send(batches)
            except WrongLastSequence:
                self._forget()
            except ApiError as error:
                self._forget()
                self._generation = 0  # the stream may have other limits now, or be gone
                raise TryAgain(self._explained(error)) from None
            except OSError as error:
                self._forget()
                if isinstance(error, TimeoutError):  # it may hang, and keep the connection for ever
                    self.connection.give_up()
                raise
            else:
                refused: Counter[str] = Counter()
                for one in self._refused.values():
                    refused += one
                self._refused.clear()
                return refused
        raise TryAgain(f"another writer uses the subject {self._at}")

    def _forget(self) -> None:
        self._last = self._unacked = None

    def _send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            if (subject := self._subject_of(batch)) != self._at:  # also if the host has another name now
                self._finish()
                self._at, self._last = subject, None
            self._prepare()
            if self._stored.is_of_a_copy(batch):
                self._forget()
                raise TryAgain(
                    f"{self._at} has batch {self._stored.sequence} of another copy of this spool: stop this "
                    "forwarder and remove spool.sqlite: its records are in the original, too"
                )
            is_same = batch.sequence == self._stored.sequence
            is_stored = batch.sequence < self._stored.sequence or (is_same and self._stored.is_whole)
            if is_stored and batch.sequence in self._refused:
                continue
            parts, self._refused[batch.sequence] = self._encoder.parts(
                batch,
                self._limit,
                (self._stored.end, self._stored.losses) if is_same and not is_stored else (0, 0),
            )
            for part in () if is_stored else parts:
                self._finish()
                self._begin(batch, part)
        self._finish()

    def _begin(self, batch: Batch, part: Part) -> None:
        about = headers(batch, part, self._acked)
        try:
            number = self._jetstream.begin(
                self._at,
                memoryview(part.payload),
                {**about, "Nats-Expected-Stream": self._stream},
                expected=self._last,
            )
        except ValueError as error:  # its limit has changed
            self._generation = 0
            raise TryAgain(str(error)) from None
        self._unacked = number, position(about)

    def _finish(self) -> None:
        """Wait for the answer."""
        if self._unacked is not None:
            number, position = self._unacked
            self._last = self._jetstream.end(number)
            self._unacked = None
            self._stored = position
            if position.is_whole:
                self._acked = position.sequence

    def _subject_of(self, batch: Batch) -> str:
        host = re.sub(r"[^A-Za-z0-9_-]", "_", batch.host) or "_"
        return f"{self._subject}.{host}.{batch.forwarder}"

    # Connecting

    def _prepare(self) -> None:
        """A connection, the stream, and the last message of the subject."""
        if self._unacked is not None:
            return
        try:
            self.connection.open()
        except (ValueError, ImportError) as error:
            raise TryAgain(f"cannot log in: {error}") from None
        if self._generation != self.connection.generation:
            self._last = None
            self._look_at_stream()
            self._generation = self.connection.generation
        if self._last is None:
            try:
                last = self._jetstream.last(self._stream, self._at)
            except NotFound:
                self._last, self._stored = 0, Position(0, 0, 0)
            else:
                self._stored = self._position(last.sequence)
                self._last = last.sequence
            self._acked = max(self._acked, self._stored.sequence - (not self._stored.is_whole))

    def _position(self, last: int) -> Position:
        """Position of this forwarder's last message on the subject; others are skipped, and counted.
        Looks back twice as far each time, since the server finds only the next message of a subject."""
        found = Position(0, 0, 0)
        end, back = last + 1, 1
        while end > 1 and not found.sequence:
            begin = max(1, last + 1 - back)
            at, back = begin - 1, 2 * back
            while (one := self._jetstream.next(self._stream, self._at, at)) and one.sequence < end:
                at = one.sequence
                try:
                    if one.headers.get("Utracefs-Forwarder") != self._at.rpartition(".")[2]:
                        raise ValueError("of another forwarder")
                    found = position(one.headers)
                except ValueError:
                    self._foreign += at > self._foreign_to
                    self.note = f"{self._foreign} messages of others on {self._at} were skipped"
            end = begin
        self._foreign_to = max(self._foreign_to, last)
        return found

    def _look_at_stream(self) -> None:
        try:
            found = self._jetstream.stream(self._stream)
        except NotFound:
            if self._config is None:
                raise TryAgain(
                    f"there is no stream {self._stream}: create it with the subjects {self._subject}.>, or "
                    "give -O max_bytes=10G or -O max_age=7d to create it with these limits"
                ) from None
            found = self._jetstream.create_stream(self._config)
        config = found.get("config")
        if not isinstance(config, dict):
            raise WireError("no configuration of a stream in the answer")
        most = config.get("max_msg_size", -1)
        taken = self.connection.info.max_payload
        if isinstance(most, int) and most > 0:
            taken = min(most, taken)
        self._limit = taken - _HEADER_BYTES
        if self._limit < _LEAST_PAYLOAD:
            raise TryAgain(f"the server takes messages of {taken} bytes; records need more")

    def _explained(self, error: ApiError) -> str:
        if isinstance(error, NoResponders):
            return (
                f"no stream has the subjects {self._subject}.> (stream {self._stream}), or the server has no "
                "JetStream"
            )
        return f"stream {self._stream}: {error}"


def _config(stream: str, subject: str, options: Mapping[str, str]) -> dict[str, Any] | None:
    """Configuration for making the stream; None: the stream must exist. ValueError."""
    size, age = options.get("max_bytes"), options.get("max_age")
    replicas = options.get("replicas", "1")
    try:
        most = size_of(size or "0")
    except ValueError:
        raise ValueError(f"option max_bytes: {size!r} is no size: 500M, 10G") from None
    age_s = time_option("max_age", age or "0")
    if replicas not in ("1", "2", "3", "4", "5"):
        raise ValueError(f"option replicas: {replicas!r} is not 1 to 5")
    if size is None and age is None:
        return None
    return {
        "name": stream,
        "subjects": [f"{subject}.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "max_bytes": most or -1,
        "max_age": int(age_s * NS),
        "num_replicas": int(replicas),
        "allow_direct": True,
    }
