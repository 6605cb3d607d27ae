"""The contract of targets.

A target is a class, found by the scheme of its address: `otlp` in `otlp://host:4318`. Other distributions
offer theirs as entry points of the group `utracefs.targets`, by scheme:

    [project.entry-points."utracefs.targets"]
    mine = "my_package:MyTarget"

    class MyTarget:
        limits = Limits(records=2000, bytes=1 << 20)

        def __init__(self, address: str, settings: Settings) -> None: ...
        def send(self, batches: Sequence[Batch]) -> Mapping[str, int]: ...
        def close(self) -> None: ...

One thread calls `send`, with batches in their order, each at least once: again after a failure, or if the
forwarder was killed before it noted that they were sent. `send` writes their records and their `losses`, and
returns when the target has accepted them. Deduplicate by `(forwarder, sequence)` if the target can. `secrets`
and `options` of the class, if present, are the names of the secrets and options that it accepts; without them
it accepts any. `note`, if present, is a text for people about the last `send` that returned: why it refused
records.

    Sent      returned: `SYSTEM:NAME` to number of records that the target refused, None: unknown; empty: it
              has all. Counts of refused `losses` are included
    TryAgain  the target is away or busy; so is any OSError. Sent again after a growing delay
    Refused   the target will never take these batches: their records are counted as lost
"""

import errno
import os
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Final, Protocol, TypeAlias, cast

import attrs

from utracefs.forward.batch import Batch
from utracefs_protocol.text import seconds_of

GROUP: Final = "utracefs.targets"

BUILT_IN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("http", "https", "otlp"), "utracefs.forward.otlp:OtlpTarget"),
    "parquet": "utracefs.forward.parquet:ParquetTarget",
    "nats": "utracefs.forward.nats:NatsTarget",
}
"""Scheme to module:class."""

Sent: TypeAlias = Mapping[str, int | None]


class TryAgain(Exception):
    """Sending failed for now. after_s: delay requested by the target; None: not given."""

    def __init__(self, text: str, after_s: float | None = None) -> None:
        super().__init__(text)
        self.after_s: Final = after_s


def reason(error: Exception) -> str:
    """Text for people: that of an OSError is `FILE: WHY`."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Refused(Exception):
    """The target will never accept the batches; the text has the reason."""


@attrs.frozen
class Limits:
    """Size of the batches of one `send`, together. A single batch is larger only if one record is, or if it
    was stored for a target with other limits."""

    records: int
    bytes: int
    gather_s: float = 0
    """Wait for that many records or bytes until the oldest batch has this age."""


@attrs.frozen
class Settings:
    """The options of the command line, for all targets."""

    options: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """`-O NAME=VALUE`. A target refuses names that it does not know (ValueError)."""
    timeout_s: float = 10.0
    """Time limit of one `send`."""
    ca: str | None = None
    """File with certificates of authorities; None: the system's."""
    cert: str | None = None
    """File with the client's certificate."""
    key: str | None = None
    """File with its key; None: in `cert`."""
    secrets: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """`--secret NAME=FILE`."""
    directory: Path = Path()
    """The spool's, where a target may keep files of its own, `target-*`."""

    def secret(self, name: str) -> str | None:
        """Read it, at each connection: files may change. Without a file of that name, a credential that
        systemd passes to the service; None: neither is there. OSError: the file cannot be read."""
        path = self.secrets.get(name)
        if path is None:
            folder = os.environ.get("CREDENTIALS_DIRECTORY")
            if folder is None or not (Path(folder) / name).exists():
                return None
            path = str(Path(folder) / name)
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:  # whose text would be logged
            raise OSError(errno.EILSEQ, "the secret is not UTF-8", path) from None

    def tls(self) -> ssl.SSLContext:
        """Read the certificates, at each connection: files may change. OSError: they cannot be used."""
        path = self.ca
        try:
            context = ssl.create_default_context(cafile=path)
            if self.cert is not None:
                path = self.cert if self.key is None else f"{self.cert}, {self.key}"
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            error.filename = path  # ssl names no file
            raise
        return context


class Target(Protocol):
    """The interface of a target; see the module's head."""

    @property
    def limits(self) -> Limits: ...

    def send(self, batches: Sequence[Batch]) -> Sent:
        """At least one batch; one may have losses and no records."""

    def close(self) -> None:
        """Called once, by the thread that sends."""


def schemes() -> list[str]:
    """Schemes of all installed targets."""
    return sorted({*BUILT_IN, *(point.name for point in metadata.entry_points(group=GROUP))})


def time_option(name: str, text: str) -> float:
    """Parse a time; in seconds. ValueError."""
    try:
        return seconds_of(text)
    except ValueError:
        raise ValueError(f"option {name}: {text!r} is not a time: 90s, 12h, 7d") from None


def target_class(address: str) -> Callable[[str, Settings], Target]:
    """The class for the scheme of an address. LookupError: there is none."""
    scheme = address.partition(":")[0]
    if scheme in BUILT_IN:
        module, _, name = BUILT_IN[scheme].partition(":")
        return cast(Callable[[str, Settings], Target], getattr(import_module(module), name))
    found = [point for point in metadata.entry_points(group=GROUP) if point.name == scheme]
    if not found:
        is_host = re.fullmatch(r"[^:/]+(:\d+)?", address)
        hint = f"; an address begins with one: otlp://{address}" if is_host else ""
        raise LookupError(f"no target {scheme!r}; there are: {', '.join(schemes())}{hint}")
    return cast(Callable[[str, Settings], Target], found[0].load())


def open_target(address: str, settings: Settings, *, others: Collection[str] = ()) -> Target:
    """The target of an address, `SCHEME:...`. others: further secrets that are no mistake. LookupError: there
    is no such target. ValueError: the address, an option or a secret is invalid. ImportError: a library is
    missing."""
    make = target_class(address)
    given = (("secret", settings.secrets.keys() - set(others)), ("option", settings.options.keys()))
    for what, names in given:
        known: Collection[str] | None = getattr(make, f"{what}s", None)
        if known is not None and (unknown := names - set(known)):
            scheme = address.partition(":")[0]
            raise ValueError(
                f"no {what} {min(unknown)!r} of {scheme}; there are: {', '.join(known) or 'none'}"
            )
    return make(address, settings)
