"""Which tracepoints are those of EventHeader, by name and fields: `Provider_L4K1f`.

Name and fields are fixed by eventheader.h of LinuxTracepoints (docs/kernel-abi.md)."""

import re
from collections.abc import Iterable
from typing import Final

from utracefs_protocol.events.declaration import Field

_NAME: Final = re.compile(
    rb"(?P<provider>[^: ]+)_L(?P<level>[0-9a-f]{1,2})K(?P<keyword>[0-9a-f]{1,16})(?:[A-Z][0-9a-z]*)*"
    rb"(?:\.[0-9a-f]+)?\Z"
)
_FIELDS: Final = (
    (b"eventheader_flags", 8, 1),
    (b"version", 9, 1),
    (b"id", 10, 2),
    (b"tag", 12, 2),
    (b"opcode", 14, 1),
    (b"level", 15, 1),
)
HEADER_SIZE: Final = sum(size for _, _, size in _FIELDS)


def header_name(name: bytes, fields: Iterable[Field]) -> re.Match[bytes] | None:
    """The name's `provider`, `level` and `keyword`; None: it is no tracepoint of EventHeader."""
    if tuple((field.name, field.offset, field.size) for field in fields) != _FIELDS:
        return None
    return _NAME.match(name)
