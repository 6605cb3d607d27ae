"""Both buckets of a fleet.

    utracefs_wishes    name of a wish to Wish. Operators write, all read
    utracefs_hosts     `key_of` a host to Report. Hosts write, all read

Nothing here makes a consumer, so nobody needs the permission to make one in these streams. With it a user
could have the server publish to subjects that the user may not publish to.
"""

import contextlib
import time
from typing import Final

import attrs

from utracefs.fleet.wish import Wish, key_of
from utracefs.forward.target import Settings
from utracefs.nats.bucket import Bucket
from utracefs.nats.connection import Connection, servers
from utracefs.nats.errors import WireError
from utracefs.nats.jetstream import JetStream
from utracefs.nats.login import Login, inbox_of, split_user

WISHES: Final = "utracefs_wishes"
HOSTS: Final = "utracefs_hosts"

MAX_WISHES_BYTES: Final = 16 << 20
MAX_ENDED: Final = 100
"""Messages in the bucket of wishes from which on `sweep` purges."""
ENDED_S: Final = 86400.0
HOST_AGE_S: Final = 7 * 86400.0
"""Age at which the server deletes a report."""

_SCHEMES: Final = ("nats", "tls")


def connection_of(address: str, settings: Settings, name: str) -> Connection:
    """address: nats://[USER@]HOST[:PORT],..., or tls://. Secrets as of the target `nats`: `password`,
    `token`, `nkey`, `creds`. ValueError."""
    scheme, separator, rest = address.partition("://")
    user, hosts = split_user(rest.rstrip("/"))
    if scheme not in _SCHEMES or not separator:
        raise ValueError(f"{address!r} is no address of NATS: nats://[USER@]HOST[:PORT], or tls://...")
    is_secure = scheme == "tls" or settings.ca is not None or settings.cert is not None
    return Connection(
        servers(hosts),
        login=lambda: Login.read(user, settings.secret),
        tls=settings.tls if is_secure else None,
        timeout_s=settings.timeout_s,
        name=name,
        inbox=inbox_of(user),
    )


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
        for value in list(self.wishes.values()):
            with contextlib.suppress(ValueError):
                wish = None if value.is_deleted else Wish.from_bytes(value.data)
                if wish is None or value.time_s + wish.duration_s < now_s - ENDED_S:
                    subject = self.wishes.subject(value.key)
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

    def watch_wishes(self) -> None:
        """Before the connection: `connection.has_message` then tells of changes. Others may send such
        messages, too."""
        self.connection.subscribe(f"$KV.{WISHES}.>")

    def report(self, host: str, data: bytes) -> float:
        """Store a host's report. Returns the time of the server less CLOCK_MONOTONIC."""
        before = time.monotonic()
        self.hosts.put(key_of(host), data)
        at = (before + time.monotonic()) / 2
        return self.hosts.last(key_of(host)).time_s - at
