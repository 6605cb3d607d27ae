"""The plain Layout of the protocol judges packing; values that do not fit are refused, with one warning."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.workbench import REFUSED, Workbench
from tests.judges import library
from tests.protocol.events.plain_layout import Layout
from utracefs.producer.declarations.checking import check_declaration
from utracefs_protocol.limits import MAX_PAYLOAD


@pytest.fixture
def strict() -> Iterator[None]:
    before = utracefs.strict(True)
    yield
    utracefs.strict(before)


# ---- packing

INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "int", "unsigned int", "short", "char"]
TYPES = [
    *INTEGERS,
    "char[5]",
    "unsigned char[16]",
    "struct foo",
    "struct double",
    "struct float",
    "struct bool",
    "struct u8_4",
    "struct s16_2",
    "struct u64_1",
    "struct float_2",
    "struct double_2",
    "struct bool_3",
    "__rel_loc char[]",
    "__data_loc char[]",
    "__rel_loc u8[]",
    "__data_loc unsigned char[]",
    "__rel_loc u16[]",
    "__data_loc u16[]",
]


STRUCTS = {"struct foo": " 7", "struct double": " 8", "struct float": " 4", "struct bool": " 1"}
ARRAYS = {
    "struct u8_4": " 4",
    "struct s16_2": " 4",
    "struct u64_1": " 8",
    "struct float_2": " 8",
    "struct double_2": " 16",
    "struct bool_3": " 3",
}


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


edges = st.sampled_from(
    [
        0,
        1,
        -1,
        *(
            sign * (1 << bits) + d
            for bits in (7, 8, 15, 16, 30, 31, 32, 60, 63, 64, 70)
            for d in (-1, 0, 1)
            for sign in (1, -1)
        ),
    ]
)
texts = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(max_size=8).map(bytearray),
    st.binary(max_size=8).map(lambda data: memoryview(data)),
    st.binary(max_size=8).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.sampled_from([b"12345", "12345", "é" * 2, "\ud800", b"0123456789abcdef", b"1234567"]),
)
values = st.one_of(
    edges, st.integers(), edges.map(Index), texts, st.sampled_from([None, 1.5, True, [], object()])
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[bytes, list[Any], dict[str, Any]]:
    types = draw(st.lists(st.sampled_from(TYPES), max_size=6))
    names = [
        draw(st.sampled_from(["a", "b", "c", "same"])) + ("" if draw(st.booleans()) else str(i))
        for i in range(len(types))
    ]
    fields = [f"{t} {n}{(STRUCTS | ARRAYS).get(t, '')}" for t, n in zip(types, names, strict=True)]
    fitting = []
    for type_ in types:
        if type_ in INTEGERS:
            fitting.append(draw(st.one_of(st.integers(0, 127), edges, values)))
        elif type_ in ARRAYS:
            count = int(type_[-1])
            numbers = st.one_of(edges, st.integers(0, 1), st.floats(), values)
            size = int(ARRAYS[type_])
            fitting.append(
                draw(
                    st.one_of(
                        st.lists(st.integers(0, 1), min_size=count, max_size=count),
                        st.tuples(*(numbers,) * count),
                        st.binary(min_size=size, max_size=size),
                        st.lists(numbers, max_size=count + 1),
                        values,
                    )
                )
            )
        elif type_ == "struct foo":
            fitting.append(draw(st.one_of(st.binary(min_size=7, max_size=7), values)))
        elif type_ == "struct bool":
            fitting.append(draw(st.one_of(st.booleans(), values)))
        elif type_ in STRUCTS:
            fitting.append(draw(st.one_of(st.floats(), st.floats(width=32), values)))
        else:
            fitting.append(draw(st.one_of(texts, values)))
    by_position = draw(st.integers(0, len(types)))
    args = fitting[:by_position]
    kwargs = dict(zip(names[by_position:], fitting[by_position:], strict=True))
    if draw(st.integers(0, 9)) == 0:
        args.append(1)
    if draw(st.integers(0, 9)) == 0:
        kwargs[draw(st.sampled_from(["a", "same", "nowhere"]))] = 2
    return f"test {'; '.join(fields)}".encode(), args, kwargs


COUNTER = itertools.count()


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """The result, or the kind of the exception. (UnicodeEncodeError is a ValueError.)"""
    try:
        return call(*args, **kwargs)
    except (TypeError, ValueError, OverflowError) as error:
        return next(kind for kind in (TypeError, ValueError, OverflowError) if isinstance(error, kind))


def packed(layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> bytes:
    """By name only where a single field has it, and only behind those by position."""
    names = layout.names[len(args) :]
    if sorted(kwargs) != sorted(names) or any(layout.names.count(name) > 1 for name in names):
        raise TypeError
    return layout.pack(*args, *(kwargs[name] for name in names))


@pytest.fixture(scope="module")
def property_bench() -> Iterator[Workbench]:
    bench = Workbench()
    yield bench
    bench.close()


@settings(max_examples=600)
@given(calls())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_emit_packs_what_the_layout_packs(
    property_bench: Workbench, call: tuple[bytes, list[Any], dict[str, Any]]
) -> None:
    """And what does not fit is an exception in both states of the event, or, not strict, in none."""
    bench = property_bench
    declaration, args, kwargs = call
    number = next(COUNTER)
    bench.status = 1
    on = bench.event(declaration.replace(b"test", b"on%d" % number, 1))
    bench.status = 0
    off = bench.event(declaration.replace(b"test", b"off%d" % number, 1))
    expected = outcome(packed, Layout(check_declaration(declaration).fields), args, kwargs)
    fits = isinstance(expected, bytes)
    before = utracefs.strict(True)
    try:
        assert outcome(on.emit, *args, **kwargs) == (None if fits else expected)
        assert outcome(off.emit, *args, **kwargs) == (None if fits else expected)
    finally:
        utracefs.strict(before)
    place = 2 * number + 1
    assert bench.send() == ([(place, expected)] if fits else [])
    assert (on.emitted, on.lost, on.refused) == (int(fits), 0, {})

    mistaken = outcome(off.emit, *args, **kwargs)
    assert mistaken in (None, expected)
    assert outcome(on.emit, *args, **kwargs) == mistaken
    if fits:
        assert bench.send() == [(place, expected)]
    elif not mistaken:
        ((reason, count),) = on.refused.items()
        assert (on.emitted, count) == (1, 1)
        assert bench.send() == [(REFUSED | place, reason.encode())]
    assert (off.emitted, off.refused) == (0, {})


@pytest.mark.parametrize(
    ("declaration", "value", "error", "text", "reason"),
    [
        # Numbers.
        (b"t u8 a", 256, OverflowError, "t: 256 does not fit the field 'a' (0 to 255)", "was out of range"),
        (b"t u64 a", -1, OverflowError, "-1 does not fit", "was out of range"),
        (b"t u64 a", Index(-1), OverflowError, "does not fit", "was out of range"),
        (b"t s16 a", 32768, OverflowError, "(-32768 to 32767)", "was out of range"),
        pytest.param(b"t u64 a", 1 << 20_000, OverflowError, "does not fit", "was out of range", id="digits"),
        (b"t s64 a", -(1 << 63) - 1, OverflowError, "does not fit", "was out of range"),
        (b"t s64 a", 1 << 63, OverflowError, "does not fit", "was out of range"),
        (b"t s8 a", 1.0, TypeError, "t: field 'a' takes an integer, not float", "was float"),
        (b"t s64 a", None, TypeError, "takes an integer, not None", "was None"),
        # Texts and bytes.
        (b"t __rel_loc char[] a", None, TypeError, "takes str or bytes, not None", "was None"),
        (b"t __rel_loc char[] a", "\ud800", ValueError, "surrogates not allowed", "was not UTF-8"),
        (b"t __rel_loc char[] a", "x" * 70_000, ValueError, "location word", "was too long"),
        (b"t __rel_loc char[] a", "x" * 65_525, ValueError, "at most 65529", "was too long"),
        (b"t char[4] a", "12345", ValueError, "has room for 4 bytes, not 5", "was too long"),
        (b"t struct s a 8", b"1234567", ValueError, "takes exactly 8 bytes, not 7", "had another size"),
        (b"t struct s a 8", "12345678", TypeError, "takes bytes, not str", "was str"),
        (b"t struct s a 65530", bytes(65_530), ValueError, "65530 bytes", "was too long"),
        # Floats and bools.
        (b"t struct double a 8", "1.5", TypeError, "t: field 'a' takes a number, not str", "was str"),
        (b"t struct double a 8", None, TypeError, "takes a number, not None", "was None"),
        (b"t struct double a 8", b"12345678", TypeError, "takes a number, not bytes", "was bytes"),
        pytest.param(
            b"t struct double a 8",
            10**5000,
            OverflowError,
            "too large for a float of 8 bytes",
            "was out of range",
            id="digits of a double",
        ),
        (b"t struct float a 4", 1e39, OverflowError, "a float of 4 bytes", "was out of range"),
        (b"t struct float a 4", -1e39, OverflowError, "a float of 4 bytes", "was out of range"),
        (b"t struct bool a 1", 2, OverflowError, "2 does not fit the field 'a' (0 to 1)", "was out of range"),
        (b"t struct bool a 1", -1, OverflowError, "-1 does not fit", "was out of range"),
        (b"t struct bool a 1", 1.0, TypeError, "takes True or False, not float", "was float"),
        (b"t struct bool a 1", "true", TypeError, "takes True or False, not str", "was str"),
        # Arrays.
        (b"t struct u8_2 a 2", [1, 256], OverflowError, "256 does not fit the field 'a'", "was out of range"),
        (b"t struct u8_2 a 2", [1, Index(256)], OverflowError, "does not fit", "was out of range"),
        (b"t struct s64_2 a 16", [1, Index(1 << 63)], OverflowError, "does not fit", "was out of range"),
        (b"t struct s16_1 a 2", [-32769], OverflowError, "(-32768 to 32767)", "was out of range"),
        (b"t struct s8_2 a 2", [Index(-129), 1], OverflowError, "does not fit", "was out of range"),
        (b"t struct u64_1 a 8", [-1], OverflowError, "-1 does not fit the field 'a'", "was out of range"),
        (b"t struct bool_2 a 2", [True, 2], OverflowError, "the field 'a' (0 to 1)", "was out of range"),
        (b"t struct float_1 a 4", [1e39], OverflowError, "a float of 4 bytes", "was out of range"),
        (b"t struct u8_2 a 2", [1, 2.0], TypeError, "field 'a' takes an integer, not float", "was float"),
        (b"t struct double_1 a 8", ["1"], TypeError, "takes a number, not str", "was str"),
        (b"t struct double_2 a 16", [1.5, None], TypeError, "takes a number, not None", "was None"),
        (b"t struct u8_2 a 2", [1], ValueError, "takes exactly 2 numbers, not 1", "had another size"),
        (b"t struct u8_2 a 2", range(3), ValueError, "takes exactly 2 numbers, not 3", "had another size"),
        (b"t struct u32_2 a 8", b"1234", ValueError, "2 numbers, or 8 bytes, not 4", "had another size"),
        (b"t struct u8_60000 a 60000", [0] * 59_999, ValueError, "60000 numbers", "had another size"),
        (b"t struct u8_2 a 2", "12", TypeError, "takes a sequence of 2 numbers, not str", "was str"),
        (b"t struct u8_2 a 2", {1: 2, 2: 3}, TypeError, "a sequence of 2 numbers, not dict", "was dict"),
        (b"t struct u8_2 a 2", {1, 2}, TypeError, "takes a sequence of 2 numbers, not set", "was set"),
        (b"t struct u8_2 a 2", None, TypeError, "takes a sequence of 2 numbers, not None", "was None"),
        (b"t struct u8_2 a 2", 7, TypeError, "takes a sequence of 2 numbers, not int", "was int"),
    ],
)
def test_a_value_that_does_not_fit(
    bench: Workbench, declaration: bytes, value: Any, error: type[Exception], text: str, reason: str
) -> None:
    """It is an error, or, not strict, refused, counted, and reported once."""
    event = bench.event(declaration)
    before = utracefs.strict(True)
    try:
        with pytest.raises(error) as caught:
            event.emit(value)
    finally:
        utracefs.strict(before)
    assert text in str(caught.value)
    assert (event.emitted, bench.send()) == (0, [])
    with pytest.warns(RuntimeWarning, match=r"^t: .*'a'.*: such a record is refused and counted$") as warned:
        event.emit(value)
    assert (len(warned), warned[0].filename) == (1, __file__)
    event.emit(value)
    assert event.refused == {f"a {reason}": 2}
    assert bench.send() == 2 * [(REFUSED | 1, f"a {reason}".encode())]
    assert (event.emitted, event.lost) == (2, 0)
    stats = bench.session.stats()
    assert (stats.emitted, stats.sent, stats.pending, stats.lost, stats.refused) == (2, 2, 0, 0, 2)


def test_arrays_of_all_sequences(bench: Workbench, strict: None) -> None:
    numpy = library("numpy")
    event = bench.event(b"t struct u16_2 a 4")
    given = [(1, 2), [1, 2], range(1, 3), array("Q", [1, 2]), numpy.array([1, 2]), collections.deque([1, 2])]
    for one in (*given, b"\1\0\2\0", bytearray(b"\1\0\2\0"), memoryview(array("i", [1, 2]))):
        event.emit(one)
        event.emit(a=one)
    assert bench.send() == 18 * [(1, b"\1\0\2\0")]
    with pytest.raises(ValueError, match="exactly 2 numbers, not 4"):
        event.emit(memoryview(array("i", [1, 2, 3, 4])))
    real = bench.event(b"r struct float_2 a 8")
    real.emit(numpy.array([1.5, -0.0], "f4"))
    assert bench.send() == [(2, struct.pack("<2f", 1.5, -0.0))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sequences_of_the_programs_own(bench: Workbench) -> None:
    """They may lie about their length, change while they are read, and raise."""

    class Endless(list[int]):
        def __iter__(self) -> Iterator[int]:
            self.clear()
            raise KeyError("mine")

        def __len__(self) -> int:
            return 2

    class Short(list[int]):
        def __len__(self) -> int:
            return 2

    class Ever:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: int) -> int:
            return 1

    class Emptied:
        def __index__(self) -> int:
            changed.clear()
            return 1

    changed: list[Any] = [Emptied(), 2]
    event = bench.event(b"t struct u8_2 a 2")
    given: list[Any] = [Endless(), Short([1]), Ever(), changed]
    for one in given:
        event.emit(one)
    assert event.refused == {"a raised KeyError": 1, "a had another size": 2}
    assert (1, b"\1\2") in bench.send()


def test_numpys_bools_are_bools(bench: Workbench) -> None:
    """They have no `__index__`; of the type counts the name alone, which numpy 2 has changed."""
    event = bench.event(b"t struct bool a 1")
    for name in ("numpy.bool_", "numpy.bool"):
        event.emit(type(name, (), {"__bool__": lambda self: True})())
    assert bench.send() == 2 * [(1, b"\1")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_of_the_programs_own_classes(bench: Workbench, strict: None) -> None:
    class Broken:
        def __index__(self) -> int:
            raise KeyError("mine")

        def __float__(self) -> float:
            raise KeyError("mine")

    class Bytes(bytearray):
        def __bytes__(self) -> bytes:
            raise KeyError("mine")

    class Text(str):
        def encode(self, *_: Any) -> Any:
            return 1

        def __str__(self) -> str:
            raise KeyError("mine")

    class Number(int):
        def __repr__(self) -> str:
            raise KeyError("mine")

        __index__ = __str__ = __format__ = __repr__  # type: ignore[assignment]

    class Interrupted:
        def __index__(self) -> int:
            raise KeyboardInterrupt

    class Named(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise KeyError("mine")

    class Odd(metaclass=Named):
        pass

    real = bench.event(b"r struct double a 8")
    with pytest.raises(KeyError):
        real.emit(Broken())
    real.emit(Fraction(3, 2))
    real.emit(Decimal("1.5"))
    real.emit(Index(2))
    assert [payload for _, payload in bench.send()] == [struct.pack("<d", one) for one in (1.5, 1.5, 2.0)]

    event = bench.event(b"t u8 a; __rel_loc char[] b")
    refused: list[tuple[Any, Any]] = [
        (Broken(), ""), (1, Bytes(b"x")), (Number(256), ""), (Number(-1), ""), (Odd(), ""),
    ]  # fmt: skip
    for args in refused:
        with pytest.raises((KeyError, OverflowError, TypeError)):
            event.emit(*args)
    utracefs.strict(False)
    for args in refused:
        event.emit(*args)
    assert event.refused == {
        "a raised KeyError": 1, "b raised KeyError": 1, "a was out of range": 2, "a was Odd": 1,
    }  # fmt: skip
    assert len(bench.send()) == 5
    event.emit(Number(7), Text("text\udc80"))
    assert bench.send() == [(2, b"\x07\0\0\x06\0text\x80\0")]
    with pytest.raises(KeyboardInterrupt):
        event.emit(Interrupted(), "")
    assert event.emitted == 6


def test_reasons_are_bounded(bench: Workbench) -> None:
    event = bench.event(b"t u8 a")
    with pytest.warns(RuntimeWarning):
        event.emit(None)  # type: ignore[arg-type]
    for i in range(99):
        event.emit(type(f"Row{i}" + "x" * 500, (), {})())
    assert len(event.refused) == 65
    assert event.refused["other reasons"] == 36
    assert sum(event.refused.values()) == 100


def test_a_filter_that_makes_warnings_errors_makes_none_of_emit(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    """(pytest has such a filter.)"""
    event = bench.event(b"t u8 a")
    with caplog.at_level(logging.WARNING):
        event.emit(1.5)
        event.emit(1.5)
    ((name, _, text),) = caplog.record_tuples
    assert name == "utracefs"
    assert text.startswith(f"{__file__}:")
    assert "t: field 'a' takes an integer, not float" in text
    assert event.refused == {"a was float": 2}

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyError("mine")

    caplog.clear()
    other = bench.event(b"other u8 a")
    logging.getLogger("utracefs").addHandler(broken := Broken())
    try:
        other.emit(None)  # type: ignore[arg-type]
    finally:
        logging.getLogger("utracefs").removeHandler(broken)
    assert other.refused == {"a was None": 1}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [None, 1000, 1 << 99, "\ud8ff", "x" * 70_000])
def test_the_end_of_the_stack(bench: Workbench, value: Any) -> None:
    event = bench.event(b"t __rel_loc char[] a" if isinstance(value, str) else b"t u8 a")
    raised = []

    def descend() -> None:
        try:
            event.emit(value)
        except RecursionError as error:
            raised.append(error)
        descend()

    with pytest.raises(RecursionError):
        descend()
    assert raised == []
    assert sum(event.refused.values()) > 100


@pytest.mark.parametrize(
    ("options", "value", "is_strict"),
    [
        ([], "", False),
        ([], "1", True),
        (["-X", "dev"], "", True),
        (["-X", "dev"], "0", False),
        ([], "x", False),
    ],
)
def test_where_strict_comes_from(options: list[str], value: str, is_strict: bool) -> None:
    program = "import utracefs; utracefs.event('t u8 a').emit(1.5)"
    env = {**os.environ, "UTRACEFS_DIR": "/nowhere", "UTRACEFS_STRICT": value}
    ended = subprocess.run(
        [sys.executable, *options, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert (ended.returncode != 0, "TypeError: t: field 'a'" in ended.stderr) == (is_strict, is_strict)


@pytest.mark.parametrize("status", [0, 1])
def test_mistakes_of_the_call_are_exceptions_on_and_off(bench: Workbench, status: int) -> None:
    bench.status = status
    event = bench.event(b"t u8 a; u8 b")
    calls: list[tuple[tuple[int, ...], dict[str, int], str]] = [
        ((), {}, r"0 values for 2 fields \(a, b\)"),
        ((1,), {}, "1 values for 2 fields"),
        ((1, 2, 3), {}, "3 values for 2 fields"),
        ((1,), {"a": 2}, "two values for the field 'a'"),
        ((1, 2), {"b": 3}, "two values for the field 'b'"),
        ((), {"a": 1}, "no value for the field 'b'"),
        ((), {"a": 1, "c": 2}, "no field 'c'; there are a, b"),
    ]
    for _ in range(2):
        for args, names, text in calls:
            with pytest.raises(TypeError, match=f"^t: .*{text}"):
                event.emit(*args, **names)
            event.emit(1, b=2)
            event.emit(b=2, a=1)
            event.emit(1, 2)
    assert bench.send() == (42 * [(1, b"\1\2")] if status else [])


def test_names_that_are_not_interned(bench: Workbench) -> None:
    event = bench.event(b"t u8 some_name")
    name = "-some_name"[1:]
    event.emit(**{name: 3})
    assert bench.send() == [(1, b"\x03")]


def test_the_largest_record_is_written_and_fits_the_wire(bench: Workbench, strict: None) -> None:
    event = bench.event(b"t __rel_loc u8[] a")
    event.emit(b"x" * (MAX_PAYLOAD - 4))
    with pytest.raises(ValueError, match="65530 bytes"):
        event.emit(b"x" * (MAX_PAYLOAD - 3))
    ((_, payload),) = bench.send()
    assert len(payload) == MAX_PAYLOAD


def test_an_argument_may_emit_itself(bench: Workbench) -> None:
    event = bench.event(b"t u8 a")

    class Emitting:
        def __index__(self) -> int:
            event.emit(1)
            return 2

    event.emit(Emitting())
    assert bench.send() == [(1, b"\x01"), (1, b"\x02")]
