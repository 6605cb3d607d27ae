"""Values as texts: cut, and never an error."""

import json

from utracefs.tracing.texts import JSON_BYTES, cut, json_object, shown


def test_json_objects() -> None:
    assert json_object({}) == b""
    assert json_object({"a": 1, "b": None, "c": "\udcff"}) == b'{"a": "1", "b": "", "c": "\\udcff"}'
    assert json.loads(json_object({"a": "x" * 2000, "b": 1})) == {"a": "x" * 60, "b": "1"}
    assert json_object({f"name{n}": 1 for n in range(JSON_BYTES)}) == b""


def test_cut_between_characters() -> None:
    assert cut("aé".encode(), 2) == b"a"
    assert shown(None) == ""


def test_a_value_without_a_text_is_empty() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    assert shown(Odd()) == ""
