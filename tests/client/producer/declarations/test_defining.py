"""Events by annotations: their command strings, errors that name the field, the types for checkers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest

import utracefs
from tests import judges
from tests.client.workbench import Workbench
from tests.protocol.events.plain_layout import Layout
from utracefs.producer.declarations.checking import check_declaration
from utracefs.producer.declarations.defining import command_string
from utracefs.producer.tracing.spans import declare

ROOT = Path(__file__).parents[4]
EXAMPLE = Path(__file__).with_name("typed_events.py")


def every_type(
    a: utracefs.u8,
    b: utracefs.u16,
    c: utracefs.u32,
    d: utracefs.u64,
    e: utracefs.s8,
    f: utracefs.s16,
    g: utracefs.s32,
    h: utracefs.s64,
    *,
    i: int,
    j: float,
    k: utracefs.f32,
    l: bool,
    m: str,
    n: bytes,
    o: Annotated[str, 20],
    p: Annotated[bytes, 16],
    q: Annotated[Sequence[utracefs.u32], 4],
    r: Annotated[list[bool], 2],
    s: Annotated[tuple[float, ...], 3],
    t: Annotated[Sequence[utracefs.f32], 1],
    u: Annotated[Sequence[int], 2],
) -> None: ...


EVERY_FIELD = (
    "u8 a; u16 b; u32 c; u64 d; s8 e; s16 f; s32 g; s64 h; s64 i; struct double j 8; struct float k 4; "
    "struct bool l 1; __rel_loc char[] m; __rel_loc u8[] n; char[20] o; unsigned char[16] p; "
    "struct u32_4 q 16; struct bool_2 r 2; struct double_3 s 24; struct float_1 t 4; struct s64_2 u 16"
)


class Request:
    status: utracefs.u16
    path: "str"  # noqa: UP037 - twice in quotes


class SlowRequest(Request):
    usec: float


class Named(NamedTuple):
    status: utracefs.u16
    path: Annotated[str, 8]


@dataclass(slots=True)
class Data:
    status: utracefs.u16
    path: str


class Empty:
    pass


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        (every_type, f"every_type {EVERY_FIELD}"),
        (Request, "request u16 status; __rel_loc char[] path"),
        (SlowRequest, "slow_request u16 status; __rel_loc char[] path; struct double usec 8"),
        (Named, "named u16 status; char[8] path"),
        (Data, "data u16 status; __rel_loc char[] path"),
        (Empty, "empty"),
        (lambda: None, "<lambda>"),
    ],
)
def test_command_strings(fields: Any, command: str) -> None:
    assert command_string(fields, {}) == command
    assert command_string(fields, {}, "other").startswith("other")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("HttpRequest", "http_request"),
        ("HTTPRequest2", "http_request2"),
        ("http_request", "http_request"),
        ("A", "a"),
        ("AB", "ab"),
        ("Http_Request", "http_request"),
        ("_Private", "_private"),
        ("GetV2Items", "get_v2_items"),
    ],
)
def test_names(name: str, command: str) -> None:
    assert command_string(type(name, (), {}), {}) == command


def test_annotations_that_are_no_strings() -> None:
    def plain(status: Any, path: Any) -> None: ...

    plain.__annotations__ = {"status": utracefs.u16, "path": str}
    assert command_string(plain, {}) == "plain u16 status; __rel_loc char[] path"


def test_names_of_the_surrounding_function(bench: Workbench) -> None:
    from utracefs import u16 as small

    @utracefs.define(session=bench.session)
    def local(status: small) -> None: ...

    assert str(local) == "local u16 status"


def test_it_is_the_event_of_its_command_string(bench: Workbench) -> None:
    @utracefs.define(session=bench.session, name="t")
    def request(status: utracefs.u16, path: str) -> None: ...

    assert request is bench.event(b"t u16 status; __rel_loc char[] path")
    assert type(request) is utracefs.Event
    assert str(request) == request.declaration
    assert request
    request.emit(200, path="/")
    assert bench.send() == [(1, b"\xc8\0\x00\0\x02\0/\0")]


def test_flags(bench: Workbench) -> None:
    declared = utracefs.define(Request, session=bench.session, multi_format=True)
    assert declared is bench.session.event(str(declared), multi_format=True)


def bad(**annotations: Any) -> Callable[..., None]:
    def function(a: Any) -> None: ...

    function.__annotations__ = annotations
    function.__qualname__ = "request"
    return function


class WithDefault:
    a: int = 5
    b: int


class NamedWithDefault(NamedTuple):
    b: int
    a: int = 5


@dataclass(slots=True)
class DataWithDefault:
    b: int
    a: int = field(default=5, kw_only=True)


def with_default(b: int, *, a: int = 5) -> None: ...


@dataclass
class WithFactory:
    a: int = field(default_factory=int)


class OfTheClass:
    a: ClassVar[int]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (bad(), "request: a has no annotation; use utracefs.u8 to u64, "),
        (bad(a=Annotated[Sequence[utracefs.u8], 0]), "request: a: an array has 1 number or more"),
        (bad(a=Annotated[tuple[int, int], 2]), "request: a: an array has 1 number or more, of one type"),
        (bad(a=Annotated[Sequence[str], 2]), "is not the type of a field"),
        (bad(a=Sequence[utracefs.u8]), "is not the type of a field"),
        (bad(a=dict), "request: a: dict is not the type of a field; use utracefs.u8 to u64, "),
        (bad(a=None), "request: a has no annotation"),
        (bad(a=list[int]), "request: a: list[int] is not the type"),
        (bad(a=int | None), "request: a: int | None is not the type"),
        (bad(a=Annotated[int, 8]), "request: a: typing.Annotated[int, 8] is not the type"),
        (bad(a=Annotated[str, "x"]), "is not the type"),
        (bad(a=[]), "request: a: [] is not the type"),
        (bad(a="nowhere.u8"), "request: a: the annotation 'nowhere.u8' is unknown: name 'nowhere' is not"),
        (bad(a="int ["), "request: a: the annotation 'int [' is unknown: "),
        (lambda *a: None, ": an event has no *args and **kwargs; write each field"),
        (OfTheClass, "OfTheClass: a: typing.ClassVar[int] is not the type of a field"),
    ],
)
def test_a_wrong_annotation_names_the_field(fields: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        command_string(fields, {})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "fields", [WithDefault, NamedWithDefault, DataWithDefault, with_default, lambda b=7, a=5: None]
)
def test_defaults(bench: Workbench, fields: Any) -> None:
    if fields.__name__ == "<lambda>":
        fields.__annotations__ = {"a": int, "b": int}
    for bench.status in (1, 0):
        event: Any = utracefs.define(fields, session=bench.session, name=f"payment{bench.status}")
        bench.event(event.declaration.encode())
        event.emit(b=7)
        event.emit(b=7)
        with utracefs.context(a=6):
            event.emit(b=7)
        event.emit(a=1, b=7)
        with pytest.raises(TypeError, match="no field 'c'"):
            event.emit(b=7, c=1)
        if event.fields[0] == "b":
            event.emit(7)
            event.emit(7)
    layout = Layout(check_declaration(event.declaration.replace("0", "1").encode()).fields)
    values = [dict(layout.unpack(payload)) for _, payload in bench.send()]
    assert [one["b"] for one in values] == [7] * len(values)
    assert [one["a"] for one in values] == [5, 5, 6, 1, 5, 5][: len(values)]
    assert len(values) >= 4


def test_a_default_that_is_no_value(bench: Workbench) -> None:
    with pytest.raises(ValueError, match=r"WithFactory: a: .* cannot be the default of a field"):
        utracefs.define(WithFactory, session=bench.session)


def of_byte(n_of_byte: utracefs.u8 = 300) -> None: ...
def wrong_type(n: int, text: str = 5) -> None: ...  # type: ignore[assignment]
def too_long(text: Annotated[str, 2] = "abc") -> None: ...
def too_few(a: Annotated[Sequence[utracefs.u8], 4] = (1, 2)) -> None: ...


@pytest.mark.parametrize("fields", [of_byte, wrong_type, too_long, too_few])
def test_a_default_that_does_not_fit(bench: Workbench, fields: Any) -> None:
    with utracefs.context(n_of_byte=7), pytest.raises(ValueError, match=r"a default: .* field"):
        utracefs.define(fields, session=bench.session)
    with pytest.raises(ValueError, match="a default: "):
        declare(bench.session, "order", {}, fields)


def test_neither_function_nor_class() -> None:
    with pytest.raises(TypeError, match="a function or a class, not <built-in function len>"):
        utracefs.define(len)


def test_a_command_string_that_the_daemon_would_refuse(bench: Workbench) -> None:
    with pytest.raises(ValueError, match="array length '2000' is not a number from 1 to 1024"):
        utracefs.define(bad(a=Annotated[str, 2000]), session=bench.session)


PROGRAM = """
from __future__ import annotations
import sys
before = set(sys.modules)
import utracefs
assert "utracefs.producer.declarations.defining" not in sys.modules

@utracefs.define
def request(status: utracefs.u16, usec: float, path: str) -> None: ...

assert str(request) == "request u16 status; struct double usec 8; __rel_loc char[] path"
request.emit(200, 1.5, "/")
print(*sorted({"typing", "contextvars", "dataclasses", "inspect", "re"} & (set(sys.modules) - before)))
"""


def test_what_a_program_imports() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{ROOT / 'protocol'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_pyright_knows_the_arguments(tmp_path: Path) -> None:
    """As mypy, which reads the same file with all others."""
    judges.library("pyright")
    shutil.copy(EXAMPLE, tmp_path)
    settings = {
        "extraPaths": [str(ROOT / "client"), str(ROOT / "protocol")],
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--project", str(tmp_path)],
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {error["range"]["start"]["line"] for error in found if error["severity"] == "error"}
    wrong = [i for i, line in enumerate(EXAMPLE.read_text().splitlines()) if "# type: ignore" in line]
    assert sorted(lines) == wrong, done
