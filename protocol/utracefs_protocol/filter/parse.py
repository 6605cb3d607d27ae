"""A filter's text becomes a Filter.

    expr   := and { "||" and }              and  := unary { "&&" unary }
    unary  := { "!" } ( "(" expr ")" | predicate )
    predicate := FIELD [".ustring"] [".function"] OPERATOR VALUE
    OPERATOR  := "~" "!=" "==" "<=" "<" ">=" ">" "&"
    VALUE  := NUMBER | "text" | 'text' | CPUS{list}

Which texts are refused, with which message, errno and position, is kernel/trace/trace_events_filter.c,
function by function: calc_stack() looks at quotes and parentheses (`check_brackets`), predicate_parse() at
what joins predicates (`_Parser.parse`), parse_pred() at one predicate (`_Parser._predicate`). The errnos are
odd: internal codes of calc_stack() leak out as EPERM, ENOENT and ESRCH.

Nothing here recurses: 4,095 bytes can be so many parentheses.
"""

import errno
import string
from collections.abc import Iterable, Sequence

import attrs

from utracefs_protocol.declaration import Field, FieldKind
from utracefs_protocol.filter import errors
from utracefs_protocol.filter._program import Filter, Names
from utracefs_protocol.filter.errors import MAX_NUMBER, MAX_TEXT, FilterError
from utracefs_protocol.filter.literals import parsed_cpus, parsed_number, parsed_pattern
from utracefs_protocol.filter.predicate import How, Predicate, Subject

__all__ = ["MAX_CPUS", "check_brackets", "is_no_filter", "parse_filter"]

MAX_CPUS = 8192
"""NR_CPUS of a large kernel: what CPUS{} may name where nobody says how many cpus there are."""

_SPACE = b"\t\n\v\f\r \xa0"
_ALPHANUMERIC = (string.ascii_letters + string.digits).encode() + bytes(
    c for c in range(0xC0, 0x100) if c not in (0xD7, 0xF7)
)
"""isspace() and isalnum() of the kernel (lib/ctype.c), which count in Latin-1."""

_SPACE_SET = frozenset(_SPACE)
_NOT_SPACE = frozenset(range(256)) - _SPACE_SET
_ALPHANUMERIC_SET = frozenset(_ALPHANUMERIC)
_NAME = frozenset(_ALPHANUMERIC + b"_")

_OPERATORS = (b"==", b"!=", b"~", b"<=", b"<", b">=", b">", b"&")
"""A longer one comes before its beginning."""

_NUMBER_HOW = {
    b"==": How.EQUAL,
    b"!=": How.UNEQUAL,
    b"<": How.LESS,
    b"<=": How.LESS_OR_EQUAL,
    b">": How.GREATER,
    b">=": How.GREATER_OR_EQUAL,
    b"&": How.COMMON_BITS,
}

_LONG = 8
"""Bytes of a number that can be an address."""

_MAX_FUNCTION = 512
"""KSYM_NAME_LEN, with the NUL at its end."""


@attrs.frozen
class _Operand:
    """What a name on the left of an operator stands for."""

    subject: Subject
    """For a predicate of it; NOTHING where none can ever be true."""

    field: Field | None = None
    """Which field, if it is one."""

    size: int = 0
    """In bytes; of the names that are no fields 0."""

    signed: bool = False
    """As a number."""

    may_be_cpu: bool = False
    """CPUS{} can be asked of it."""

    @property
    def is_text(self) -> bool:
        return self.subject in (Subject.ARRAY, Subject.DATA_LOC, Subject.REL_LOC, Subject.COMM)


_CPU = _Operand(Subject.CPU, signed=True, may_be_cpu=True)
_COMM = _Operand(Subject.COMM)
_STACKTRACE = _Operand(Subject.NOTHING)

_GENERIC = {
    b"CPU": _CPU,
    b"cpu": _CPU,
    b"common_cpu": _CPU,
    b"COMM": _COMM,
    b"comm": _COMM,
    b"STACKTRACE": _STACKTRACE,
    b"stacktrace": _STACKTRACE,
}
"""Names that every event has; a field of its own goes first (trace_define_generic_fields())."""


def _common(type_: bytes, name: bytes, offset: int, size: int, *, signed: bool) -> tuple[bytes, _Operand]:
    field = Field(type_, name, offset, size, signed, FieldKind.INTEGER)
    return name, _Operand(Subject.COMMON, field, size, signed, may_be_cpu=True)


_COMMON = dict(
    (
        _common(b"unsigned short", b"common_type", 0, 2, signed=False),
        _common(b"unsigned char", b"common_flags", 2, 1, signed=False),
        _common(b"unsigned char", b"common_preempt_count", 3, 1, signed=False),
        _common(b"int", b"common_pid", 4, 4, signed=True),
    )
)
"""trace_define_common_fields()."""


def _of_field(field: Field) -> _Operand:
    """filter_assign_type() and select_comparison_fn()."""
    if field.kind is FieldKind.DATA_LOC and field.is_string:
        return _Operand(Subject.DATA_LOC, field, field.size)
    if field.kind is FieldKind.REL_LOC and field.is_string:
        return _Operand(Subject.REL_LOC, field, field.size)
    if b"[" in field.type and b"char" in field.type:
        return _Operand(Subject.ARRAY, field, field.size)
    subject = Subject.NUMBER if field.size in (1, 2, 4, 8) else Subject.NOTHING
    is_mask = field.is_loc and b"cpumask_t" in field.type
    return _Operand(subject, field, field.size, field.signed, may_be_cpu=not is_mask)


def parse_filter(
    text: bytes, fields: Sequence[Field], *, nr_cpus: int = MAX_CPUS, names: Names | None = None
) -> Filter:
    """The filter that `text` describes, for records of an event with these fields. FilterError: see there.

    `text` as it was written, up to a NUL if there is one; a lone `0` means nothing here. nr_cpus: how many
    CPUS{} may name. names: where COMM is asked for; None: there is no such name.
    """
    text = text.partition(b"\0")[0]
    check_brackets(text)
    return Filter(text, _Parser(text, fields, nr_cpus, names is not None).parse(), names)


def is_no_filter(text: bytes) -> bool:
    """Whether a text written to `filter` takes the filter away."""
    return text.strip(_SPACE) == b"0"


def check_brackets(text: bytes) -> None:
    """calc_stack(): all quotes are closed, all parentheses match, and there is something beside them.
    FilterError; without a position for the last."""
    quote = last_quote = 0
    opened: list[int] = []
    is_empty = True
    for i, c in enumerate(text):
        if quote:
            if c == quote:
                quote = 0
        elif c in b"'\"":
            quote, last_quote = c, i
            is_empty = False
        elif c == 0x28:
            opened.append(i)
        elif c == 0x29:
            if not opened:
                raise FilterError(errors.TOO_FEW_OPEN, i, errno.EPERM)
            opened.pop()
        elif c not in _SPACE:
            is_empty = False
    if quote:
        raise FilterError(errors.MISSING_QUOTE, last_quote, errno.ESRCH)
    if opened:
        raise FilterError(errors.TOO_MANY_OPEN, opened[-1], errno.ENOENT)
    if is_empty:
        raise FilterError("")


_Ends = list[tuple[int, int]]
"""(step, outcome) pairs whose next step is not known yet."""


@attrs.frozen
class _Part:
    """A part of the expression, as steps that follow one another."""

    first: int
    """Its first step."""

    if_false: _Ends
    """Where it ends when it is false."""

    if_true: _Ends
    """Where it ends when it is true."""

    def inverted(self) -> "_Part":
        return _Part(self.first, self.if_true, self.if_false)


@attrs.define
class _Group:
    """What stands between two parentheses, or all of it."""

    inverted: bool
    """A `!` stands in front of it."""

    either: _Part | None = None
    """What stands on the left of the last `||`."""

    both: _Part | None = None
    """What stands on the left of the last `&&`, behind the last `||`."""


class _Parser:
    """One text on its way."""

    def __init__(self, text: bytes, fields: Iterable[Field], nr_cpus: int, has_names: bool) -> None:
        self._text = text
        self._nr_cpus = nr_cpus
        # Of fields with the same name the last one is found: the kernel keeps them in reverse.
        own = {field.name: _of_field(field) for field in fields}
        self._operands = {**_COMMON, **_GENERIC, **own}
        if not has_names:
            self._operands = {k: v for k, v in self._operands.items() if v is not _COMM}
        self._predicates: list[Predicate] = []
        self._next: list[list[int]] = []

    def parse(self) -> list[tuple[Predicate, int, int]]:
        """What `Filter` takes; predicate_parse()."""
        text, at, invert = self._text, 0, False
        groups = [_Group(inverted=False)]
        while (at := self._behind_space(at)) < len(text):
            if text[at : at + 1] == b"(":
                groups.append(_Group(invert))
                invert = False
                at += 1
            elif text[at : at + 1] == b"!" and text[at + 1 : at + 2] not in (b"=", b"~"):
                invert = not invert
                at += 1
            else:
                at, part = self._operand(at, invert)
                invert = False
                while text[(at := self._behind_space(at)) : at + 1] == b")":
                    group = groups.pop()
                    part = self._closed(group, part)
                    part = part.inverted() if group.inverted else part
                    at += 1
                if at == len(text):
                    return self._finished(self._closed(groups[0], part))
                if text[at : at + 2] not in (b"&&", b"||"):
                    raise FilterError(errors.TOO_MANY_TERMS, at, errno.EPERM)
                self._join(groups[-1], part, text[at : at + 1])
                at += 2
        raise FilterError(errors.MEANINGLESS if self._predicates else errors.NO_FILTER, len(text))

    def _operand(self, at: int, invert: bool) -> tuple[int, _Part]:
        """One predicate as a part."""
        at, predicate = self._predicate(at)
        number = len(self._predicates)
        self._predicates.append(predicate)
        self._next.append([0, 0])
        part = _Part(number, [(number, 0)], [(number, 1)])
        return at, part.inverted() if invert else part

    def _go_on(self, ends: _Ends, to: int) -> None:
        for step, outcome in ends:
            self._next[step][outcome] = to

    def _with_both(self, group: _Group, part: _Part) -> _Part:
        """`part` and what `&&` joined to its left."""
        left, group.both = group.both, None
        if left is None:
            return part
        self._go_on(left.if_true, part.first)
        return _Part(left.first, [*left.if_false, *part.if_false], part.if_true)

    def _closed(self, group: _Group, part: _Part) -> _Part:
        """The group, with `part` its last one."""
        part = self._with_both(group, part)
        left, group.either = group.either, None
        if left is None:
            return part
        self._go_on(left.if_false, part.first)
        return _Part(left.first, part.if_false, [*left.if_true, *part.if_true])

    def _join(self, group: _Group, part: _Part, operator: bytes) -> None:
        if operator == b"&":
            group.both = self._with_both(group, part)
        else:
            group.either = self._closed(group, part)

    def _finished(self, whole: _Part) -> list[tuple[Predicate, int, int]]:
        count = len(self._predicates)
        self._go_on(whole.if_false, count)
        self._go_on(whole.if_true, count + 1)
        return [(predicate, *self._next[i]) for i, predicate in enumerate(self._predicates)]  # type: ignore

    # One predicate; parse_pred(). An error found in it is reported one column too far, as there.

    def _predicate(self, at: int) -> tuple[int, Predicate]:
        text = self._text
        begin, at = at, self._behind(at, _NAME)
        if at == begin:
            raise FilterError("", None, errno.EPERM)
        operand = self._operands.get(text[begin:at])
        if operand is None:
            raise FilterError(errors.FIELD_NOT_FOUND, at + 1)
        if text.startswith(b".ustring", at):
            at += len(b".ustring")  # strings of user space are copied into the record: nothing is different
        is_function = text.startswith(b".function", at)
        if is_function:
            at += len(b".function")
        at = self._behind_space(at)
        operator = next((each for each in _OPERATORS if text.startswith(each, at)), None)
        if operator is None:
            raise FilterError(errors.INVALID_OPERATOR, at + 1)
        at = self._behind_space(at + len(operator))
        if is_function:
            raise self._function_error(at, operand, operator)
        if text.startswith(b"CPUS", at):
            return self._cpus(at, operand, operator)
        if text[at : at + 1] in (b"'", b'"'):
            return self._string(at, operand, operator)
        if text[at : at + 1] in b"-0123456789" and at < len(text):
            return self._number(at, operand, operator)
        raise FilterError(errors.INVALID_VALUE, at + 1)

    def _function_error(self, at: int, operand: _Operand, operator: bytes) -> FilterError:
        """There are no functions of a kernel here, so there is always one."""
        if operand.size != _LONG:
            return FilterError(errors.ILLEGAL_OPERATION, at + 1)
        if operator not in (b"==", b"!="):
            return FilterError(errors.INVALID_OPERATOR, at + 1)
        begin = at
        if self._text[at : at + 1].isdigit():
            at = self._behind(at, _ALPHANUMERIC_SET)
            if at - begin > MAX_NUMBER:
                return FilterError(errors.TOO_LONG, at + 1)
            if parsed_number(self._text[begin:at], signed=False) is None:
                return FilterError(errors.INVALID_VALUE, at + 1)
        else:
            at = self._behind(at, _NOT_SPACE)
            if at - begin >= _MAX_FUNCTION:
                return FilterError(errors.TOO_LONG, at + 1)
        return FilterError(errors.NO_FUNCTION, at + 1)

    def _number(self, at: int, operand: _Operand, operator: bytes) -> tuple[int, Predicate]:
        if operand.is_text:
            raise FilterError(errors.EXPECT_STRING, at + 1)
        if operator == b"~":
            raise FilterError(errors.ILLEGAL_OPERATION, at + 1)
        begin = at
        at = self._behind(at + (self._text[at] == 0x2D), _ALPHANUMERIC_SET)
        if at - begin > MAX_NUMBER:
            raise FilterError(errors.TOO_LONG, at + 1)
        value = parsed_number(self._text[begin:at], signed=operand.signed)
        if value is None:
            raise FilterError(errors.ILLEGAL_INTEGER, begin + 1)
        if operand is _CPU and operator == b"&":
            return at, Predicate(Subject.NOTHING)
        return at, Predicate(operand.subject, _NUMBER_HOW[operator], value, operand.field)

    def _string(self, at: int, operand: _Operand, operator: bytes) -> tuple[int, Predicate]:
        if operator not in (b"==", b"!=", b"~"):
            raise FilterError(errors.ILLEGAL_OPERATION, at + 1)
        if not operand.is_text:
            raise FilterError(errors.EXPECT_NUMBER, at + 1)
        end = self._text.index(self._text[at : at + 1], at + 1)  # check_brackets has seen it
        pattern = self._text[at + 1 : end]
        if len(pattern) > MAX_TEXT:
            raise FilterError(errors.TOO_LONG, end + 1)
        how, negated = How.FULL, operator == b"!="
        if operator == b"~":
            how, pattern, negated = parsed_pattern(pattern)
        return end + 1, Predicate(operand.subject, how, pattern, operand.field, negated)

    def _cpus(self, at: int, operand: _Operand, operator: bytes) -> tuple[int, Predicate]:
        text = self._text
        if not operand.may_be_cpu or operator not in (b"==", b"!=", b"&"):
            raise FilterError(errors.ILLEGAL_OPERATION, at + 1)
        at += len(b"CPUS")
        if text[at : at + 1] != b"{":
            raise FilterError(errors.MISSING_BRACE_OPEN, at + 2)
        end = text.find(b"}", at)
        if end < 0:
            raise FilterError(errors.MISSING_BRACE_CLOSE, len(text) + 1)
        mask = parsed_cpus(text[at + 1 : end], self._nr_cpus)
        if mask is None:
            raise FilterError(errors.INVALID_CPULIST, end + 1)
        if mask.bit_count() == 1:
            how = How.UNEQUAL if operator == b"!=" else How.EQUAL
            return end + 1, Predicate(operand.subject, how, mask.bit_length() - 1, operand.field)
        if operator == b"==" or operand.subject is Subject.NOTHING:
            return end + 1, Predicate(Subject.NOTHING)  # one number is never equal to several
        if operator == b"!=":
            mask = (1 << self._nr_cpus) - 1
        return end + 1, Predicate(operand.subject, How.IN_CPUS, mask, operand.field)

    def _behind(self, at: int, characters: frozenset[int]) -> int:
        """The first place from `at` on that has another character."""
        while at < len(self._text) and self._text[at] in characters:
            at += 1
        return at

    def _behind_space(self, at: int) -> int:
        return self._behind(at, _SPACE_SET)
