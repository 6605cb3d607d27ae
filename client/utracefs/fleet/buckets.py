"""Both buckets of a fleet.

    utracefs_wishes    name of a wish to Wish. Operators write, all read
    utracefs_hosts     `key_of` a host to Report. Hosts write, all read

Nothing here makes a consumer, so nobody needs the permission to make one in these streams. With it a user
could have the server publish to subjects that the user may not publish to.
"""

import base64
import contextlib
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import attrs

from utracefs.fleet.wish import Wish, key_of
from utracefs.forward.target import Settings
from utracefs.nats.bucket import Bucket
from utracefs.nats.connection import Connection, Subscription, servers
from utracefs.nats.errors import NotFound, WireError
from utracefs.nats.jetstream import JetStream
from utracefs.nats.login import SECRETS, Login, inbox_of, split_user

WISHES: Final = "utracefs_wishes"
HOSTS: Final = "utracefs_hosts"

MAX_WISHES_BYTES: Final = 16 << 20
MAX_ENDED: Final = 100
"""Messages in the bucket of wishes from which on `sweep` purges."""
ENDED_S: Final = 86400.0
HOST_AGE_S: Final = 7 * 86400.0
"""Age at which the server deletes a report."""

_NO_MESSAGE: Final = 10037
"""The server's number of this error; there are others for a stream that is not there."""

_SCHEMES: Final = ("nats", "tls")


def connection_of(address: str, settings: Settings, name: str) -> Connection:
    """address: nats://[USER@]HOST[:PORT],..., or tls://. Secrets as of the target `nats`: `password`,
    `token`, `nkey`, `creds`. ValueError."""
    scheme, separator, rest = address.partition("://")
    user, hosts = split_user(rest.rstrip("/"))
    if scheme not in _SCHEMES or not separator:
        raise ValueError(f"{address!r} is no address of NATS: nats://[USER@]HOST[:PORT], or tls://...")

    def login() -> Login:
        password, token, nkey, creds = (settings.secret(one) or "" for one in SECRETS)
        return Login(user, password, token, nkey, creds)

    is_secure = scheme == "tls" or settings.ca is not None or settings.cert is not None
    return Connection(
        servers(hosts),
        login=login,
        tls=settings.tls if is_secure else None,
        timeout_s=settings.timeout_s,
        name=name,
        inbox=inbox_of(user),
    )


@attrs.frozen
class Value:
    """One message of a bucket."""

    key: str
    data: bytes = attrs.field(repr=False)
    sequence: int
    """The revision."""
    time_s: float
    """When it was stored, by the server's clock: seconds since 1970."""
    is_deleted: bool


@attrs.frozen
class State:
    """State of a bucket. If `created` differs, the bucket was made anew."""

    created: str
    last: int
    """Sequence of the last message."""
    messages: int


class Fleet:
    """One thread uses it. OSError, ApiError of `utracefs.nats` from all methods: call again later."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Final = connection
        self._jetstream: Final = JetStream(connection)
        self.wishes: Final = Bucket(self._jetstream, WISHES)
        self.hosts: Final = Bucket(self._jetstream, HOSTS)

    def close(self) -> None:
        self.connection.close()

    def create(self) -> None:
        """Make both buckets if they do not exist."""
        self.wishes.create(max_bytes=MAX_WISHES_BYTES)
        self.hosts.create(max_age_s=HOST_AGE_S)

    def sweep(self, now_s: float) -> None:
        """Purge the markers of deleted wishes, and wishes that ended a day ago, if there are many. A host
        that counts fewer messages than it has read reads all again."""
        if self.state(self.wishes).messages <= MAX_ENDED:
            return
        for value in list(self.values(self.wishes)):
            with contextlib.suppress(ValueError):
                wish = None if value.is_deleted else Wish.from_bytes(value.data)
                if wish is None or value.time_s + wish.duration_s < now_s - ENDED_S:
                    subject = f"$KV.{self.wishes.name}.{value.key}"
                    what = {"filter": subject, "seq": value.sequence + 1}  # not one that is stored meanwhile
                    self._jetstream.call(f"STREAM.PURGE.{self.wishes.stream}", what)

    def state(self, bucket: Bucket) -> State:
        """NotFound."""
        info = self._jetstream.stream(bucket.stream)
        try:
            state = info["state"]
            return State(str(info["created"]), int(state["last_seq"]), int(state["messages"]))
        except (KeyError, TypeError, ValueError):
            raise WireError("an answer without the state of a stream") from None

    def values(self, bucket: Bucket, after: int = 0) -> Iterator[Value]:
        """The last messages of all keys, also of deleted ones, in the order of their storing. A key that is
        stored while they are read comes twice, or more often. NotFound: there is no such bucket."""
        while True:
            try:
                value = self._get(bucket, {"seq": after + 1, "next_by_subj": f"$KV.{bucket.name}.>"})
            except NotFound as error:
                if error.err_code != _NO_MESSAGE:
                    raise
                return
            after = value.sequence
            yield value

    def present(self, bucket: Bucket) -> list[Value]:
        """The newest message of each key that is not deleted. NotFound: there is no such bucket."""
        newest = {value.key: value for value in self.values(bucket)}
        return [value for value in newest.values() if not value.is_deleted]

    def last(self, bucket: Bucket, key: str) -> Value:
        """NotFound."""
        return self._get(bucket, {"last_by_subj": f"$KV.{bucket.name}.{key}"})

    def bell(self) -> Subscription:
        """A subscription with a message for each change of a wish. Do not trust its content: others may send
        such messages, too."""
        return self.connection.subscribe(f"$KV.{WISHES}.>")

    def report(self, host: str, data: bytes) -> float:
        """Store a host's report. Returns the time of the server less CLOCK_MONOTONIC."""
        before = time.monotonic()
        self.hosts.put(key_of(host), data)
        at = (before + time.monotonic()) / 2
        return self.last(self.hosts, key_of(host)).time_s - at

    def _get(self, bucket: Bucket, what: dict[str, Any]) -> Value:
        answer = self._jetstream.call(f"STREAM.MSG.GET.{bucket.stream}", what)
        try:
            message = answer["message"]
            headers = base64.b64decode(message.get("hdrs") or "")
            prefix, subject = f"$KV.{bucket.name}.", str(message["subject"])
            if not subject.startswith(prefix):  # another host may answer in place of the server
                raise ValueError("a message of another bucket")
            return Value(
                subject.removeprefix(prefix),
                base64.b64decode(message.get("data") or ""),
                int(message["seq"]),
                _seconds(str(message["time"])),
                b"KV-Operation: DEL" in headers or b"KV-Operation: PURGE" in headers,
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise WireError("no message in the answer") from None


def _seconds(text: str) -> float:
    """RFC 3339, with up to 9 digits behind the point."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
