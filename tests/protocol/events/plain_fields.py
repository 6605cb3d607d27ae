"""The bytes of a field, found by plain Python."""

import struct

from utracefs_protocol.events.declaration import Field, FieldKind


def plain_bytes(field: Field, entry: bytes) -> bytes | None:
    """For a location word the bytes it points at; None: they are not all within the entry."""
    start, length = field.offset, field.size or len(entry) - field.offset
    if field.is_loc:
        word = entry[start : start + 4]
        if len(word) < 4:
            return None
        pointed, length = struct.unpack("<HH", word)
        start = pointed + (start + 4 if field.kind is FieldKind.REL_LOC else 0)
    return entry[start : start + length] if length >= 0 and start + length <= len(entry) else None
