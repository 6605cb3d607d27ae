"""Filters against a slow evaluator that shares no code with them: random expressions, random records."""

from __future__ import annotations

import re
import struct
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.events.declaration import Field, FieldKind, parse
from utracefs_protocol.filter import Filter, parse_filter
from utracefs_protocol.filter._program import How, Subject
from utracefs_protocol.filter.parse import Predicate
from utracefsd.events.synthetic import STRING_BYTES, parse_synthetic
from utracefsd.machine._writer_names import WriterNames

FIELDS = parse(
    b"fl u8 ub; s8 sb; u16 uh; s16 sh; u32 uw; s32 sw; u64 ul; s64 sl; char[4] t; struct o odd 3; "
    b"__rel_loc char[] r; __data_loc char[] d"
).fields
FIXED = struct.Struct("<BbHhIiQq4s3sII")
NUMBERS = {
    "ub": 8,
    "sb": -8,
    "uh": 16,
    "sh": -16,
    "uw": 32,
    "sw": -32,
    "ul": 64,
    "sl": -64,
    "common_pid": -32,
    "cpu": -32,
}
"""Bits of each; below zero: signed."""

TEXTS = ("t", "r", "d", "comm")
NR_CPUS = 8


@attrs.frozen
class Rec:
    """One record, and the values of its fields."""

    numbers: dict[str, int]
    texts: dict[str, bytes]
    """The whole field: of arrays and `comm` with the bytes behind the NUL."""

    def payload(self) -> bytes:
        n, r, d = self.numbers, self.texts["r"], self.texts["d"]
        return (
            FIXED.pack(
                *(n[name] for name in ("ub", "sb", "uh", "sh", "uw", "sw", "ul", "sl")),
                self.texts["t"],
                b"odd",
                len(r) << 16 | 4,
                len(d) << 16 | (8 + FIXED.size + len(r)),
            )
            + r
            + d
        )

    def judged_by(self, found: Filter) -> bool:
        return found.test(self.payload(), cpu=self.numbers["cpu"], pid=self.numbers["common_pid"])


def parsed(text: bytes, rec: Rec | None = None) -> Filter:
    comm = b"" if rec is None else rec.texts["comm"]
    return parse_filter(text, FIELDS, nr_cpus=NR_CPUS, names=WriterNames(lambda pid: comm.rstrip(b"\0")))


# The slow evaluator.


def wrapped(value: int, bits: int) -> int:
    value %= 1 << abs(bits)
    return value - (1 << -bits) if bits < 0 and value >> (-bits - 1) else value


def number_holds(name: str, operator: str, value: int, rec: Rec) -> bool:
    have, want = rec.numbers[name], wrapped(value, NUMBERS[name])
    return {
        "==": have == want,
        "!=": have != want,
        "<": have < want,
        "<=": have <= want,
        ">": have > want,
        ">=": have >= want,
        "&": bool(have & want) and name != "cpu",
    }[operator]


def regex_of(glob: bytes) -> re.Pattern[bytes]:
    """A full glob as a regular expression."""
    out, i = b"", 0
    while i < len(glob):
        c = glob[i : i + 1]
        i += 1
        if c == b"*":
            out += b".*"
        elif c == b"?":
            out += b"."
        elif c == b"\\":
            out += re.escape(glob[i : i + 1]) if i < len(glob) else b"(?:$)"
            i += 1
        elif c == b"[" and (
            found := re.compile(rb"(!?)((?:.-[^\]]|.)(?:[^\]]-[^\]]|[^\]])*)\]", re.DOTALL).match(glob, i)
        ):
            i = found.end()
            members: set[int] = set()
            for low, high in re.findall(rb"(.)(?:-(?!\])(.))?", found[2], re.DOTALL):
                members.update(range(low[0], (high or low)[0] + 1))
            if found[1]:
                members = set(range(256)) - members
            out += (
                b"(?:%s)" % b"|".join(re.escape(bytes([m])) for m in sorted(members)) if members else b"(?!)"
            )
        else:
            out += re.escape(c)
    return re.compile(out, re.DOTALL)


def text_holds(name: str, operator: str, pattern: bytes, rec: Rec) -> bool:
    whole = rec.texts[name]
    text = whole.split(b"\0")[0]
    if operator != "~":
        # A full array has no end: only its bytes are compared.
        equal = text == pattern or (len(text) == len(whole) > 0 and pattern.startswith(text))
        return equal == (operator == "==")
    negated = pattern.startswith(b"!")
    pattern = pattern[1:] if negated else pattern
    if pattern[:1].isdigit() or not re.search(rb"[*?\[\\]", pattern):
        return text_holds(name, "==", pattern, rec) != negated
    if re.search(rb"[?\[\\]|.\*.", pattern, re.DOTALL):
        return (regex_of(pattern).fullmatch(text) is not None) != negated
    word = pattern.strip(b"*")
    if pattern.startswith(b"*") and pattern.endswith(b"*") and len(pattern) > 1:
        return (word in whole) != negated
    if pattern.startswith(b"*"):
        return (len(whole) > 0 and whole[:-1].endswith(word)) != negated
    return text.startswith(word) != negated


Expression = Any
"""("not", e), ("and" or "or", [e, ...]), or a leaf: (text, function of a record)."""


def holds(expression: Expression, rec: Rec) -> bool:
    match expression:
        case ("not", inner):
            return not holds(inner, rec)
        case ("and", parts):
            return all(holds(part, rec) for part in parts)
        case ("or", parts):
            return any(holds(part, rec) for part in parts)
        case (_, leaf):
            return bool(leaf(rec))
    raise AssertionError(expression)


def written(expression: Expression, blank: str, *, inside: str = "or") -> str:
    """Its text, with as few parentheses as possible."""
    match expression:
        case ("not", inner):
            return "!" + blank + written(inner, blank, inside="not")
        case (("and" | "or") as kind, parts):
            sign = blank + {"and": "&&", "or": "||"}[kind] + blank
            text = sign.join(written(part, blank, inside=kind) for part in parts)
            return text if inside == "or" or inside == kind else f"({blank}{text}{blank})"
        case (str(text), _):
            return text.replace(" ", blank)
    raise AssertionError(expression)


def number_leaf(name: str, operator: str, value: int, base: str) -> Expression:
    signed = NUMBERS[name] < 0
    value = value if signed else abs(value)
    text = f"{name} {operator} {'-' if value < 0 else ''}{base % abs(value)}"
    return text, lambda rec: number_holds(name, operator, value, rec)


def cpus_leaf(name: str, operator: str, cpus: set[int]) -> Expression:
    def leaf(rec: Rec) -> bool:
        have = rec.numbers[name] % (1 << min(abs(NUMBERS[name]), 32))
        if len(cpus) == 1:  # an ordinary comparison of all bits
            return (rec.numbers[name] == next(iter(cpus))) != (operator == "!=")
        if operator == "==" or (have >= NR_CPUS and name != "cpu"):
            return False
        return operator == "!=" or have in cpus

    return f"{name} {operator} CPUS{{{','.join(map(str, sorted(cpus)))}}}", leaf


def text_leaf(name: str, operator: str, pattern: str) -> Expression:
    text = f'{name} {operator} "{pattern}"'.replace(" ", "\t")
    return text, lambda rec: text_holds(name, operator, pattern.encode(), rec)


small = st.integers(-3, 3) | st.sampled_from(
    [127, 128, 255, 256, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]
)
names = st.sampled_from(sorted(NUMBERS))
letters = st.text("ab*?[]!-\\c1", max_size=6)
leaves = (
    st.builds(
        number_leaf,
        names,
        st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "&"]),
        small,
        st.sampled_from(["%d", "0x%x", "0%o"]),
    )
    | st.builds(cpus_leaf, names, st.sampled_from(["==", "!=", "&"]), st.sets(st.integers(0, 7), min_size=1))
    | st.builds(text_leaf, st.sampled_from(TEXTS), st.sampled_from(["==", "!=", "~"]), letters)
    | st.sampled_from(
        [
            ("odd == 1", lambda rec: False),
            ("odd != 1", lambda rec: False),
            ("STACKTRACE == 1", lambda rec: False),
        ]
    )
)
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4))
    ),
    max_leaves=12,
)


def ranged(bits: int) -> st.SearchStrategy[int]:
    low, high = (-(1 << -bits - 1), (1 << -bits - 1) - 1) if bits < 0 else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.integers(max(low, -3), 3) | st.sampled_from([low, high])


words = st.text("abc1*", max_size=3).map(str.encode)
records = st.builds(
    lambda numbers, t, r, d, comm: Rec(
        numbers | {"cpu": numbers["cpu"] % NR_CPUS},
        {"t": t.ljust(4, b"\0"), "r": r, "d": d, "comm": comm.ljust(16, b"\0")},
    ),
    st.fixed_dictionaries({name: ranged(bits) for name, bits in NUMBERS.items()}),
    words | st.just(b"abca") | st.just(b"a\0bc"),
    words.map(lambda text: text + b"\0") | st.just(b"") | st.just(b"ab\0a\0"),
    words.map(lambda text: text + b"\0") | st.just(b""),
    words | st.just(b"abcabcabcabcabc"),
)


@given(expressions, records, st.sampled_from([" ", "", "\n \t"]))
def test_like_the_slow_evaluator(expression: Expression, rec: Rec, blank: str) -> None:
    text = written(expression, blank)
    assert rec.judged_by(parsed(text.encode(), rec)) == holds(expression, rec), text


@given(letters, st.text("abc]!-\\*?", max_size=10))
def test_globs(pattern: str, text: str) -> None:
    fields = parse(b"fl __rel_loc char[] r").fields
    found = parse_filter(b'r ~ "?*%b"' % pattern.encode(), fields)  # a full glob, whatever follows
    data = text.encode() + b"\0"
    payload = (len(data) << 16).to_bytes(4, "little") + data
    assert found.test(payload) == (regex_of(b"?*" + pattern.encode()).fullmatch(text.encode()) is not None)


REC = Rec(
    {
        "ub": 200,
        "sb": -56,
        "uh": 1,
        "sh": -1,
        "uw": 1,
        "sw": -5,
        "ul": 1 << 63,
        "sl": -1,
        "common_pid": 46,
        "cpu": 1,
    },
    {"t": b"abc\0", "r": b"hello\0", "d": b"\0", "comm": b"drv".ljust(16, b"\0")},
)


@pytest.mark.parametrize(
    "text",
    [
        # A value is cut to the size of the field.
        b"ub == 456",
        b"sw == 4294967291",
        b"sb == 200",
        b"ul == 0x8000000000000000",
        b"ul > 9223372036854775807",
        b"sl < 0",
        b"sl & 0x8000",
        b"!(cpu & 1)",
        b"common_type == 7",
        b"common_flags == 0 && common_preempt_count == 0",
        b"ub & CPUS{1,2} || uw & CPUS{1,2}",
        b"!(ub & CPUS{1,2})",
        b"!(ub != CPUS{1,2})",
        b"uw != CPUS{2,3}",
        b"!(uw == CPUS{1,2})",
        b"uw & CPUS{1}",
        b"cpu & CPUS{1}",
        b"cpu != CPUS{0,2}",
        # A suffix is sought in front of the last byte of the field.
        b"t ~ '*c'",
        b"r ~ '*lo'",
        b"!(comm ~ '*v')",
        b"comm ~ '*'",
        b"comm == 'drv'",
        b"comm ~ 'd*'",
        b"t ~ '!b*'",
        b"t ~ 'a[!a-]c'",
        b"d == ''",
    ],
)
def test_what_holds(text: bytes) -> None:
    found = parsed(text, REC)
    assert found.test(REC.payload(), event_id=7, cpu=1, pid=46)
    assert not parsed(b"!(" + text + b")", REC).test(REC.payload(), event_id=7, cpu=1, pid=46)


def test_a_text_that_lies_over_the_common_fields() -> None:
    """`__data_loc` may point into the eight bytes in front of the payload: the id and the pid."""
    fields = parse(b"fl __data_loc char[] d").fields

    def holds(text: bytes, word: int) -> bool:
        return parse_filter(text, fields).test(word.to_bytes(4, "little"), event_id=0x4241, pid=0x4443)

    assert holds(b'd == "AB"', 8 << 16 | 0)
    assert holds(b'd == "B"', 11 << 16 | 1)
    assert holds(b'd == "CD"', 4 << 16 | 4)
    assert holds(b'd ~ "?D"', 8 << 16 | 4)


@given(
    expressions,
    st.binary(max_size=FIXED.size + 20),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
)
def test_hostile_payloads(expression: Expression, payload: bytes, rel: int, data: int) -> None:
    """Any length and any location words give a result, and (under a sanitizer) no byte is read beyond."""
    if len(payload) >= FIXED.size:
        payload = payload[: FIXED.size - 8] + struct.pack("<II", rel, data) + payload[FIXED.size :]
    assert parsed(written(expression, " ").encode()).test(payload) in (True, False)


def test_a_record_that_ends_early_is_false() -> None:
    found = parsed(b"sl == 0")
    end = FIXED.size - 4 - 3 - 8
    assert found.test(bytes(end))
    assert not found.test(bytes(end - 1))
    assert parsed(b"t == ''").test(bytes(end))


def test_strings_of_synthetic_events() -> None:
    """The location word of a dynamic one takes the first half of its slot of 8 bytes."""
    text = b"char[] how; char[16] who"
    fields = parse_synthetic(b"wake", text, text).fields
    found = parse_filter(b'how == "late" && who ~ "a*"', fields)
    word = (5 << 16) | (8 + 8 + STRING_BYTES)
    slots = word.to_bytes(8, "little") + b"abc".ljust(STRING_BYTES, b"\0")
    assert found.test(slots + b"late\0")
    assert not found.test(slots + b"soon\0")


@pytest.mark.parametrize(
    "text", [b"t ~ 'x*'", b"t == 'x'", b"t ~ '*x*'", b"r == 'x'", b"d ~ '*x'", b"ul == 1"]
)
@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (8 + 2**40, 2**64 - 2**40),
        (2**63, 2**63),
        (2**64, 8),
        (2**70, 8),
        (8, 2**66),
        (0, 4),
        (7, 8),
        (2**62, 3),
    ],
)
def test_fields_that_claim_to_be_where_no_record_is(text: bytes, offset: int, size: int) -> None:
    fields = [Field(f.type, f.name, offset, size, f.signed, f.kind) for f in FIELDS]
    assert not parse_filter(text, fields).test(bytes(FIXED.size))


def test_a_location_word_that_claims_to_be_larger() -> None:
    found = parse_filter(b"x == 0", [Field(b"__data_loc u32[]", b"x", 8, 8, False, FieldKind.DATA_LOC)])
    assert found.test(bytes(8))
    assert not found.test(bytes(7))


def test_a_filter_shows_its_text() -> None:
    found = parsed(b"uw == 1 && sw < 3")
    assert (repr(found), len(found), found.names) == ("<Filter b'uw == 1 && sw < 3'>", 2, None)


FLOATS = parse(b"ev struct double d 8; struct float f 4; struct bool b 1").fields


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("d > 1.5", (1.6, 0, 0), True),
        ("d > 1.5", (1.5, 0, 0), False),
        ("d >= 1.5", (1.5, 0, 0), True),
        ("d < -1", (-1.5, 0, 0), True),
        ("d <= -2e-3", (-0.001, 0, 0), False),
        ("d == 1e300", (1e300, 0, 0), True),
        ("d == 0", (-0.0, 0, 0), True),
        ("d != 0", (float("nan"), 0, 0), True),
        ("d == 0 || d < 0 || d > 0", (float("nan"), 0, 0), False),
        ("d > 1e308", (float("inf"), 0, 0), True),
        ("d == 0.1", (0.1, 0, 0), True),
        ("f == 0.1", (0, 0.1, 0), True),
        ("f != 0.1", (0, 0.1, 0), False),
        ("f < -1.", (0, -2, 0), True),
        ("b == 1", (0, 0, True), True),
        ("b == 0", (0, 0, True), False),
        ("!(b != 1) && d < 1.5e0&&f==0", (0, 0, True), True),
    ],
)
def test_floats(text: str, values: tuple[float, float, bool], holds: bool) -> None:
    found = parse_filter(text.encode(), FLOATS)
    assert found.test(struct.pack("<df?", *values)) is holds


def test_a_float_beyond_the_record() -> None:
    assert not parse_filter(b"d == 0", FLOATS).test(bytes(7))


OF_TEXT = {Subject.ARRAY, Subject.DATA_LOC, Subject.REL_LOC, Subject.COMM}
WORD = Field(b"u32", b"a", 8, 4, False, FieldKind.INTEGER)
PID = Field(b"int", b"common_pid", 4, 4, True, FieldKind.INTEGER)


@pytest.mark.parametrize("subject", list(map(Subject, range(8))))
@pytest.mark.parametrize("how", list(map(How, range(13))))
def test_what_may_be_compared_how(subject: Subject, how: How) -> None:
    without = dict.fromkeys((Subject.CPU, Subject.COMM, Subject.NOTHING))
    is_of_texts = how >= How.FULL
    field = {**without, Subject.COMMON: PID}.get(subject, WORD)
    predicate = Predicate(subject, how, b"x" if is_of_texts else 1, field)

    def run() -> bool:
        return Filter(b"", [(predicate, 1, 2)], WriterNames(lambda pid: b"x")).test(bytes(4))

    if subject is not Subject.NOTHING and (subject in OF_TEXT) != is_of_texts:
        with pytest.raises(ValueError, match="texts and numbers"):
            run()
    else:
        assert isinstance(run(), bool)
