"""Values as texts: cut, and never an error."""

import enum
import json
import math

from utracefs.producer.tracing.texts import JSON_BYTES, cut, json_object, shown


class Color(enum.IntEnum):
    RED = 1


def test_json_objects() -> None:
    assert json_object({}) == b""
    assert json_object({"a": 1, "b": None, "c": "\udcff"}) == b'{"a": 1, "b": null, "c": "\\udcff"}'
    assert json.loads(json_object({"a": "x" * 2000, "b": 1})) == {"a": "x" * 60, "b": 1}
    kept = {"t": True, "f": -1.5, "n": 1 << 64, "l": [1, {"a": None}]}
    cycle: list[object] = []
    cycle.append(cycle)
    others = {"nan": math.nan, "e": Color.RED, "c": cycle, "k": {(): 1}, "o": [Color]}
    assert json.loads(json_object({**kept, **others})) == {
        **kept,
        "nan": "nan",
        "e": "1",
        "c": "[[...]]",
        "k": "{(): 1}",
        "o": [str(Color)],
    }
    digits = {"many": 10**999, "too many": 10**9999}
    assert json.loads(json_object(digits)) == {"many": "1" + "0" * 59, "too many": ""}
    assert json_object({f"name{n}": 1 for n in range(JSON_BYTES)}) == b""


def test_cut_between_characters() -> None:
    assert cut("aé".encode(), 2) == b"a"
    assert shown(None) == ""


def test_a_value_without_a_text_is_empty() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    assert shown(Odd()) == ""
