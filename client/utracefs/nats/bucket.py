"""A bucket of keys and values: a stream `KV_NAME` with a subject for each key.

Compatible with the other clients of NATS (their ADR-8).
"""

import re
import time
from collections.abc import Iterator
from typing import Final, Self

import attrs

from utracefs.nats.errors import ApiError, NotFound, WrongLastSequence
from utracefs.nats.jetstream import NS, Consumer, JetStream, Stored

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEY: Final = re.compile(r"[-/_=A-Za-z0-9]+(?:\.[-/_=A-Za-z0-9]+)*")
_PATTERN: Final = re.compile(r"(?:(?:[-/_=A-Za-z0-9]+|\*)\.)*(?:[-/_=A-Za-z0-9]+|\*|>)")
_OPERATION: Final = "KV-Operation"
_LOOK_S: Final = 1.0


@attrs.frozen
class Entry:
    key: str
    value: bytes
    """Empty if it was deleted."""
    revision: int
    """Higher than those of all earlier changes in the bucket."""
    is_deleted: bool = False


class Bucket:
    """Does nothing before the first call. The stream must exist, see `create`."""

    def __init__(self, jetstream: JetStream, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a bucket: letters, digits, _ and -")
        self.name: Final = name
        self.stream: Final = f"KV_{name}"
        self._jetstream: Final = jetstream
        self._prefix: Final = f"$KV.{name}."

    def create(
        self, *, history: int = 1, max_bytes: int = -1, max_age_s: float = 0, replicas: int = 1
    ) -> None:
        """Make the stream if it does not exist; existing limits are not changed. history: values kept for
        each key, at most 64. max_age_s: of a value, 0: no limit. ApiError."""
        try:
            self._jetstream.stream(self.stream)
            return
        except NotFound:
            pass
        config = {
            "name": self.stream,
            "subjects": [f"{self._prefix}>"],
            "max_msgs_per_subject": history,
            "max_bytes": max_bytes,
            "max_age": int(max_age_s * NS),
            # (the server's default of two minutes must not be longer than a value lives)
            "duplicate_window": int(min(max_age_s or 120, 120) * NS),
            "num_replicas": replicas,
            "storage": "file",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }
        try:
            self._jetstream.create_stream(config)
        except ApiError:
            self._jetstream.stream(self.stream)  # another client was faster; else its error

    def get(self, key: str) -> Entry:
        """NotFound: there is no such key, or it was deleted."""
        entry = self._last(key)
        if entry.is_deleted:
            raise NotFound(f"the key {key} was deleted", 404)
        return entry

    def _last(self, key: str) -> Entry:
        return self._entry(self._jetstream.last(self.stream, self._subject(key)))

    def put(self, key: str, value: bytes) -> int:
        """Returns the revision."""
        return self._jetstream.publish(self._subject(key), value)

    def update(self, key: str, value: bytes, revision: int) -> int:
        """Store a value if `revision` is the key's last one (of its value or its deletion; 0: there was
        none). WrongLastSequence: it is not."""
        return self._jetstream.publish(self._subject(key), value, expected=revision)

    def add(self, key: str, value: bytes) -> int:
        """Store a key that does not exist or was deleted. WrongLastSequence: it exists."""
        try:
            return self.update(key, value, 0)
        except WrongLastSequence:
            last = self._last(key)
            if not last.is_deleted:
                raise
            return self.update(key, value, last.revision)

    def delete(self, key: str, revision: int | None = None) -> int:
        """Delete a key, existing or not; watchers are notified. revision: see `update`."""
        return self._jetstream.publish(self._subject(key), b"", {_OPERATION: "DEL"}, expected=revision)

    def entries(self, pattern: str = ">", *, with_values: bool = True) -> dict[str, Entry]:
        """All present keys and values. TimeoutError: not all came in time."""
        timeout_s = self._jetstream.connection.timeout_s
        deadline = time.monotonic() + timeout_s
        with self.watch(pattern, with_values=with_values) as watch:
            found = {}
            while not watch.is_current:
                entry = watch.next(_LOOK_S)
                if entry is not None:
                    found[entry.key] = entry
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"the bucket {self.name} was not read within {timeout_s:g} s")
        return {key: entry for key, entry in found.items() if not entry.is_deleted}

    def keys(self, pattern: str = ">") -> list[str]:
        return sorted(self.entries(pattern, with_values=False))

    def watch(self, pattern: str = ">", *, with_values: bool = True) -> "Watch":
        """The values of keys, then all changes. pattern: `*` is a word between dots, `>` at the end the
        rest."""
        if not _PATTERN.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is no pattern of keys")
        subject = self._prefix + pattern
        return Watch(
            self, Consumer(self._jetstream, self.stream, subject, is_last=True, headers_only=not with_values)
        )

    def _subject(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key: words of A-Z a-z 0-9 - / _ = with dots between them")
        return self._prefix + key

    def _entry(self, stored: Stored) -> Entry:
        is_deleted = stored.headers.get(_OPERATION) in ("DEL", "PURGE")
        return Entry(stored.subject.removeprefix(self._prefix), stored.payload, stored.sequence, is_deleted)


class Watch:
    """A context manager. After an error, call `next` again: no last value of a key is missed, but an earlier
    one may be."""

    def __init__(self, bucket: Bucket, consumer: Consumer) -> None:
        self._bucket: Final = bucket
        self._consumer: Final = consumer
        self._left = 0

    def __enter__(self) -> Self:
        self._consumer.__enter__()
        self._left = self._consumer.pending
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def is_current(self) -> bool:
        """All values that were there at the start were returned."""
        return self._left <= 0

    def next(self, timeout_s: float) -> Entry | None:
        """The next value or deletion; None: none came in time. OSError, ApiError: call again later."""
        stored = self._consumer.next(timeout_s)
        if stored is None:
            if self._left > 0:  # values may vanish while they are read
                self._consumer.look()
                self._left = self._consumer.pending
            return None
        self._left = min(self._left - 1, stored.pending)
        return self._bucket._entry(stored)

    def __iter__(self) -> Iterator[Entry]:
        """Without end."""
        while True:
            if (entry := self.next(60)) is not None:
                yield entry
