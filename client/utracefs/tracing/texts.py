"""Values of any type as texts of records."""

from __future__ import annotations

from collections.abc import Mapping

JSON_BYTES = 1024
"""Limit of a JSON object."""


def shown(value: object) -> str:
    """None is empty; so is a value whose text is an exception: it must not come from an event being on."""
    try:
        return "" if value is None else str(value)
    except Exception:  # noqa: BLE001 - the program's
        return ""


def json_object(values: Mapping[str, object]) -> bytes:
    """Values as texts, in at most JSON_BYTES: long ones are cut; with too many it is empty, as with none."""
    if not values:
        return b""
    import json

    for length in (JSON_BYTES, 60):
        texts = {name: shown(value)[:length] for name, value in values.items()}
        text = json.dumps(texts, ensure_ascii=False).encode("utf-8", "backslashreplace")
        if len(text) <= JSON_BYTES:
            return text
    return b""


def cut(text: bytes, size: int) -> bytes:
    """At most `size` bytes, without half a character at the end."""
    return text[:size].decode("utf-8", "ignore").encode("utf-8")
