"""Values of any type as texts of records."""

from __future__ import annotations

from collections.abc import Mapping

JSON_BYTES = 1024
"""Limit of a JSON object."""


def shown(value: object) -> str:
    """None is empty; so is a value whose text is an exception: it must not come from an event being on. NUL,
    which ends a text in a record, is U+FFFD."""
    try:
        return "" if value is None else str(value).replace("\0", "\ufffd")
    except Exception:  # noqa: BLE001 - the program's
        return ""


def json_object(values: Mapping[str, object]) -> bytes:
    """In at most JSON_BYTES: long texts are cut; with too many values it is empty, as with none. Values that
    JSON has keep their type, others are texts."""
    if not values:
        return b""
    import json

    def member(value: object, length: int) -> object:
        if value is None or type(value) in (bool, int, float, list, tuple, dict):
            try:  # (it refuses NaN, cycles, too many digits)
                if len(json.dumps(value, ensure_ascii=False, allow_nan=False, default=shown)) <= length:
                    return value
            except Exception:  # noqa: BLE001 - the program's objects
                return shown(value)[:length]
        return shown(value)[:length]

    for length in (JSON_BYTES, 60):
        members = {name: member(value, length) for name, value in values.items()}
        text = json.dumps(members, ensure_ascii=False, default=shown).encode("utf-8", "backslashreplace")
        if len(text) <= JSON_BYTES:
            return text
    return b""


def short(value: object, size: int = 512) -> bytes:
    """`shown`, in at most `size` bytes."""
    return cut(shown(value).encode("utf-8", "backslashreplace"), size)


def cut(text: bytes, size: int) -> bytes:
    """At most `size` bytes, without half a character at the end."""
    return text[:size].decode("utf-8", "ignore").encode("utf-8")
