"""A bucket of keys and values: a stream `KV_NAME` with a subject for each key.

Compatible with the other clients of NATS (their ADR-8).
"""

from collections.abc import Iterator
from typing import Final

import attrs

from utracefs.nats.errors import ApiError, NotFound, WireError, WrongLastSequence
from utracefs.nats.jetstream import NS, JetStream, Stored

_OPERATION: Final = "KV-Operation"


@attrs.frozen
class Value:
    """One message of a bucket."""

    key: str
    data: bytes = attrs.field(repr=False)
    """Empty if it was deleted."""
    sequence: int
    """The revision: higher than those of all earlier changes in the bucket."""
    time_s: float = attrs.field(default=0.0, eq=False)
    """As of Stored."""
    is_deleted: bool = False


class Bucket:
    """Does nothing before the first call. The stream must exist, see `create`."""

    def __init__(self, jetstream: JetStream, name: str) -> None:
        self.name: Final = name
        self.stream: Final = f"KV_{name}"
        self.jetstream: Final = jetstream
        self._prefix: Final = f"$KV.{name}."

    def create(self, *, max_bytes: int = -1, max_age_s: float = 0) -> None:
        """Make the stream if it does not exist; existing limits are not changed. max_age_s: of a value, 0: no
        limit. ApiError."""
        try:
            self.jetstream.stream(self.stream)
            return
        except NotFound:
            pass
        config = {
            "name": self.stream,
            "subjects": [f"{self._prefix}>"],
            "max_msgs_per_subject": 1,
            "max_bytes": max_bytes,
            "max_age": int(max_age_s * NS),
            # (the server's default of two minutes must not be longer than a value lives)
            "duplicate_window": int(min(max_age_s or 120, 120) * NS),
            "num_replicas": 1,
            "storage": "file",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }
        try:
            self.jetstream.create_stream(config)
        except ApiError:
            self.jetstream.stream(self.stream)  # another client was faster; else its error

    def get(self, key: str) -> Value:
        """NotFound: there is no such key, or it was deleted."""
        value = self.last(key)
        if value.is_deleted:
            raise NotFound(f"the key {key} was deleted")
        return value

    def last(self, key: str) -> Value:
        """Also of a deleted key. NotFound."""
        return self._value(self.jetstream.last(self.stream, self.subject(key)))

    def values(self, after: int = 0) -> Iterator[Value]:
        """The last messages of all keys, also of deleted ones, in the order of their storing. A key that is
        stored while they are read comes twice, or more often. NotFound: there is no such bucket."""
        while stored := self.jetstream.next(self.stream, f"{self._prefix}>", after):
            after = stored.sequence
            yield self._value(stored)

    def present(self) -> list[Value]:
        """The newest message of each key that is not deleted. NotFound: there is no such bucket."""
        newest = {value.key: value for value in self.values()}
        return [value for value in newest.values() if not value.is_deleted]

    def put(self, key: str, value: bytes) -> int:
        """Returns the revision."""
        return self.jetstream.publish(self.subject(key), value)

    def update(self, key: str, value: bytes, revision: int) -> int:
        """Store a value if `revision` is the key's last one (of its value or its deletion; 0: there was
        none). WrongLastSequence: it is not."""
        return self.jetstream.publish(self.subject(key), value, expected=revision)

    def add(self, key: str, value: bytes) -> int:
        """Store a key that does not exist or was deleted. WrongLastSequence: it exists."""
        try:
            return self.update(key, value, 0)
        except WrongLastSequence:
            last = self.last(key)
            if not last.is_deleted:
                raise
            return self.update(key, value, last.sequence)

    def delete(self, key: str) -> int:
        """Delete a key, existing or not; subscribers get the marker."""
        return self.jetstream.publish(self.subject(key), b"", {_OPERATION: "DEL"})

    def subject(self, key: str) -> str:
        return self._prefix + key

    def _value(self, stored: Stored) -> Value:
        if not stored.subject.startswith(self._prefix):  # another host may answer in place of the server
            raise WireError(f"a message of {stored.subject}, not of the bucket {self.name}")
        is_deleted = stored.headers.get(_OPERATION) in ("DEL", "PURGE")
        key = stored.subject.removeprefix(self._prefix)
        return Value(key, stored.payload, stored.sequence, stored.time_s, is_deleted)
