"""Rows, read and written; and the tables of docs/protocol.md, which have the rows' names and kinds."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest

from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages import data, tracefs
from utracefs_protocol.messages.rows import WHOLE, MapParams, Message, Params, member
from utracefs_protocol.messages.values import BIN, BOOL, INT, TEXT, Kind, or_nil

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


class Several(Message):
    """A member of each sort."""

    number: int = member(INT, 1, 9)
    size_untrusted: int = member(INT, name="size", default=7, always=True)
    zero: int = member(INT, default=0)
    minus: int = member(or_nil(INT), default=None)
    word: bytes = member(TEXT, default=b"x")


WIRE: dict[str, Any] = {"number": 3, "size": 8, "zero": 1, "minus": 0, "word": "y"}


def test_there_and_back() -> None:
    message = Several(3, 8, 1, 0, b"y")
    assert (message.to_map(), message.to_array()) == (WIRE, list(WIRE.values()))
    assert Several.from_map(WIRE) == Several.from_array(list(WIRE.values())) == message


def test_what_has_its_default_is_sent_only_where_it_must_be() -> None:
    assert (Several(3).to_map(), Several(3).to_array()) == ({"number": 3, "size": 7}, [3, 7])
    assert Several(3, word=b"y").to_array() == [3, 7, 0, None, "y"]
    assert Several.from_array([3, 7]) == Several(3)
    assert Several.from_map({"number": 3, "size": 7, "zero": None, "minus": None}) == Several(3)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "number must be an integer, not nil"),
        ({"number": 10}, "number 10 is not within 1 to 9"),
        ({"number": 3}, "size must be an integer, not nil"),
        ({"zero": "x"}, "zero must be an integer, not str"),
        ({"number": 0, "word": 5}, "word must be str or bin, not int"),
    ],
)
def test_the_first_fault_decides_and_what_is_required_is_checked_last(
    members: dict[str, Any], says: str
) -> None:
    with pytest.raises(TraceError, match=f"^{says}$") as caught:
        Several.from_map(members)
    assert caught.value.errno == errno.EINVAL


class Pair(Message):
    a: int = member(INT)
    b: int = member(INT)


class Outer(Message):
    pair: Pair | None = member(
        Kind("", lambda members, _: Pair.from_map(members) if "a" in members else None, Pair.to_map),
        name=WHOLE,
        default=None,
    )
    c: bool = member(BOOL, default=False)


def test_a_member_that_is_several_on_the_wire() -> None:
    assert Outer.from_map({"c": True}) == Outer(None, True)
    outer = Outer(Pair(1, 2), True)
    assert outer.to_map() == {"a": 1, "b": 2, "c": True}
    assert Outer.from_map(outer.to_map()) == outer
    assert {"c"} == Outer.KNOWN


def table(header: str) -> list[list[str]]:
    """The cells of the table on the page that begins so."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names(cells: list[list[str]]) -> list[str]:
    return [name for cell, *_ in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_has_the_members_of_a_registration() -> None:
    cells = table("| member of `reg` | type | |")
    rows = [*data.EventRegistration.ROWS.values(), *data.Enabler.ROWS.values()]
    words = {row.name: row.kind.word for row in rows if row.name != WHOLE}
    assert {cell[0].strip("`"): cell[1] for cell in cells} == {**words, "size": "int"}
    assert set(names(cells)) == data.EventRegistration.KNOWN


def test_the_page_has_the_members_of_the_attributes() -> None:
    attributes = re.finditer(r"^\| member \| \| default \|$", PAGE, re.MULTILINE)
    kinds: list[type[Params]] = [tracefs.PerfAttr, tracefs.StreamAttr]
    for kind, found in zip(kinds, attributes, strict=True):
        cells = table(PAGE[found.start() :])
        assert sorted(names(cells)) == sorted(kind.ROWS)
        for row in kind.ROWS.values():
            if type(row.default) in (int, bool) and row.default < 1000:
                (default,) = [cell[-1] for cell in cells if f"`{row.name}`" in cell[0]]
                assert default == f"{row.default}".lower()


@pytest.mark.parametrize("kind", [*data.METHODS.values(), *tracefs.METHODS.values()])
def test_the_page_has_the_params_of_each_method(kind: type[Params]) -> None:
    begin, end = ("## 3. ", "## 4. ") if kind in data.METHODS.values() else ("## 4. ", "### 4.1 ")
    if kind.METHOD == "adopt_ring":
        begin, end = "## 5. ", "## 6. "
    section = PAGE[PAGE.index(begin) : PAGE.index(end)]
    lists = r"(?:(?:, )?`\[[^\]]*\]`)+"
    shown = re.findall(rf"`{kind.METHOD}`(?:, `\w+`)*(?: \|)? ({lists})", section)
    if kind.METHOD == "rmdir":
        shown = re.findall(rf"`mkdir`, `rmdir` \| ({lists})", section)
    found = {tuple(re.findall(r"\w+", form)) for text in shown for form in re.findall(r"\[[^\]]*\]", text)}
    if issubclass(kind, MapParams):
        listed = set().union(*found)
        assert listed <= {*kind.KNOWN, *kind.TAKES}
        assert listed & {*kind.KNOWN, *kind.TAKES} or not kind.ROWS
    else:
        all_names = ["bin" if row.kind is BIN else row.name for row in kind.ROWS.values()]
        assert found == {tuple(all_names[:count]) for count in range(kind.LEAST, len(all_names) + 1)}
