"""Parses a filter's text into a Filter.

    expr   := and { "||" and }              and  := unary { "&&" unary }
    unary  := { "!" } ( "(" expr ")" | predicate )
    predicate := FIELD [".ustring"] [".function"] OPERATOR VALUE
    OPERATOR  := "~" "!=" "==" "<=" "<" ">=" ">" "&"
    VALUE  := NUMBER | FLOAT | "text" | 'text' | CPUS{list}

Errors have the message, errno and position of kernel/trace/trace_events_filter.c, function by function:
calc_stack() checks quotes and parentheses (`check_brackets`), predicate_parse() the operators between
predicates (`Parser.parse`), parse_pred() one predicate (`Parser._predicate`). Some errnos are odd: internal
codes of calc_stack() leak out as EPERM, ENOENT and ESRCH.

No recursion: 4,095 bytes can be as many parentheses.
"""

import errno
import re
import string
from collections.abc import Iterable, Sequence

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import NUMBER_SIZES, Field, FieldKind
from utracefs_protocol.events.event_format import COMMON_FIELDS
from utracefs_protocol.filter._program import Filter, How, Names, Subject
from utracefs_protocol.text import any_base

MAX_NUMBER = 23
"""Characters of a number; num_buf of parse_pred()."""

MAX_TEXT = 255
"""Bytes of a text; MAX_FILTER_STR_VAL."""

FIELD_NOT_FOUND = "Field not found"
INVALID_OPERATOR = "Invalid operator"
INVALID_VALUE = "Invalid value (did you forget quotes)?"
EXPECT_STRING = "Expecting string field"
EXPECT_NUMBER = "Expecting numeric field"
ILLEGAL_OPERATION = "Illegal operation for field type"
ILLEGAL_INTEGER = "Illegal integer value"
TOO_LONG = "Operand too long"
MISSING_QUOTE = "Missing matching quote"
TOO_MANY_OPEN = "Too many '('"
TOO_FEW_OPEN = "Too few '('"
TOO_MANY_TERMS = "Too many terms in predicate expression"
MISSING_BRACE_OPEN = "Missing '{'"
MISSING_BRACE_CLOSE = "Missing '}'"
INVALID_CPULIST = "Invalid cpulist"
NO_FUNCTION = "Function not found"
MEANINGLESS = "Meaningless filter expression"
NO_FILTER = "No filter found"
BAD_SYSTEM_FILTER = "Couldn't find or set field in one of a subsystem's events"
"""The kernel's wording (ERRORS in trace_events_filter.c)."""

ADVICE = {
    FIELD_NOT_FOUND: "the event's `format` lists its fields",
    INVALID_OPERATOR: "write one of == != < <= > >= & ~ after the field",
    INVALID_VALUE: "write a number, or a text in quotes",
    EXPECT_STRING: "the field is text: put the value into quotes",
    EXPECT_NUMBER: "the field is a number: leave the quotes out",
    ILLEGAL_OPERATION: "texts take == != ~, numbers take all but ~, CPUS{} takes == != &",
    ILLEGAL_INTEGER: "write a decimal, octal (0..) or hexadecimal (0x..) number that fits the field's sign",
    TOO_LONG: f"numbers have at most {MAX_NUMBER} characters, texts {MAX_TEXT} bytes",
    MISSING_QUOTE: "end the text with the quote that it begins with",
    TOO_MANY_OPEN: "add the `)` that is missing",
    TOO_FEW_OPEN: "remove the `)`",
    TOO_MANY_TERMS: "join two predicates by && or ||",
    MISSING_BRACE_OPEN: "write CPUS{LIST}",
    MISSING_BRACE_CLOSE: "write CPUS{LIST}",
    INVALID_CPULIST: "write numbers of cpus that there are, and ranges: CPUS{0,2-3}",
    NO_FUNCTION: "there are no kernel functions here; compare with a number",
    MEANINGLESS: "write a predicate behind the last && or ||",
    NO_FILTER: "write FIELD OPERATOR VALUE",
    BAD_SYSTEM_FILTER: "it holds for those events of the system that it fits",
    "": "write FIELD OPERATOR VALUE, joined by && and ||; 0 removes the filter",
}
"""Advice for each; "" is for a text without a message of the kernel."""


class FilterError(TraceError):
    """A filter's text is refused. `message` is the kernel's, "" where it has none."""

    def __init__(self, message: str, position: int | None = None, number: int = errno.EINVAL) -> None:
        where = "" if position is None else f" at column {position}"
        super().__init__(number, f"{message or 'not a filter'}{where}: {ADVICE[message]}")
        self.message = message
        self.position = position

    def shown(self, text: bytes) -> bytes:
        """The content of `filter` after the text was refused; append_filter_err()."""
        if not self.message:
            return text + b"\nError: (0)\n"
        column = min(self.position or 0, len(text))
        return b"%s\n%s^\nparse_error: %s\n" % (text, b" " * column, self.message.encode())


_WILDCARDS = frozenset(b"[?\\")

FLOAT = re.compile(rb"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?![0-9A-Za-z_.])")
"""The right side of a field that is a float, which no kernel has."""

_SEPARATORS = re.compile(rb"[,\t\n\v\f\r \xa0]+")
_CPU_NUMBER = rb"(N|[0-9]{1,10})"
_REGION = re.compile(
    rb"%b|(?:(?i:all)|%b-%b)(?::%b/%b)?" % (_CPU_NUMBER, _CPU_NUMBER, _CPU_NUMBER, _CPU_NUMBER, _CPU_NUMBER)
)


def parsed_number(text: bytes, *, signed: bool) -> int | None:
    """kstrtoll(), or kstrtoull(), in any base. None: EINVAL or ERANGE."""
    if not signed:
        return any_base(text)
    value = any_base(text.removeprefix(b"-"))
    value = -value if value is not None and text[:1] == b"-" else value
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def parsed_pattern(text: bytes) -> tuple[How, bytes, bool]:
    """filter_parse_regex(): kind of match, pattern, and whether the result is negated."""
    negated = text.startswith(b"!")
    text = text[negated:]
    if text[:1].isdigit():
        return How.FULL, text, negated  # in a comparison of functions it would be an address: no wildcards
    inner = text[1:-1] if len(text) > 1 else b""
    if b"*" in inner or not _WILDCARDS.isdisjoint(text):
        return How.GLOB, text, negated
    front, back = text.startswith(b"*"), text.endswith(b"*") and len(text) > 1
    how = {
        (False, False): How.FULL,
        (False, True): How.FRONT,
        (True, False): How.END,
        (True, True): How.MIDDLE,
    }[front, back]
    return how, text[front : len(text) - back], negated


def parsed_cpus(text: bytes, nr_cpus: int) -> int | None:
    """bitmap_parselist(): `0,2-5`, `all`, `N` for the last one, `0-7:1/2` for one of each two. A bit for each
    cpu; None: invalid."""
    if not text:
        return None
    mask = 0
    for region in filter(None, _SEPARATORS.split(text.partition(b"\n")[0])):
        match = _REGION.fullmatch(region)
        if match is None:
            return None
        single, first, last, used, of = (_cpu_number(text, nr_cpus) for text in match.groups())
        if single is not None:
            first = last = single
        elif first is None or last is None:
            first, last = 0, nr_cpus - 1
        if used is None or of is None:
            used = of = last + 1
        assert first is not None and last is not None
        if first > last or last >= nr_cpus or of == 0 or used > of:
            return None
        for start in range(first, last + 1, of):
            mask |= ((1 << min(last - start + 1, used)) - 1) << start
    return mask


def _cpu_number(text: bytes | None, nr_cpus: int) -> int | None:
    return None if text is None else nr_cpus - 1 if text == b"N" else int(text)


MAX_CPUS = 8192
"""NR_CPUS of a large kernel: the limit of CPUS{} when the number of cpus is unknown."""

_SPACE = b"\t\n\v\f\r \xa0"
_ALPHANUMERIC = (string.ascii_letters + string.digits).encode() + bytes(
    c for c in range(0xC0, 0x100) if c not in (0xD7, 0xF7)
)
"""isspace() and isalnum() of the kernel (lib/ctype.c), which count in Latin-1."""

_SPACE_SET = frozenset(_SPACE)
_NOT_SPACE = frozenset(range(256)) - _SPACE_SET
_ALPHANUMERIC_SET = frozenset(_ALPHANUMERIC)
_NAME = frozenset(_ALPHANUMERIC + b"_")
_DOTTED_NAME = _NAME | frozenset(b".")

_OPERATORS = (b"==", b"!=", b"~", b"<=", b"<", b">=", b">", b"&")
"""Longer operators before their prefixes."""

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
class Predicate:
    subject: Subject
    how: How = How.EQUAL
    value: int | float | bytes = 0
    """Right side. IN_CPUS: a bit for each number. Floats: a float. Texts: the pattern, without its `*` except
    for GLOB."""
    field: Field | None = None
    """The field, if the subject is one."""
    negated: bool = False
    """The result is negated; texts only."""


@attrs.frozen
class _Operand:
    """The meaning of a name on the left of an operator."""

    subject: Subject
    """Subject of its predicates; NOTHING if they are never true."""
    field: Field | None = None
    """The field, if it is one."""
    size: int = 0
    """In bytes; 0 for names that are not fields."""
    signed: bool = False
    may_be_cpu: bool = False
    """Whether CPUS{} is allowed."""

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
"""Names that every event has; its own fields take precedence (trace_define_generic_fields())."""


_COMMON = {
    field.name: _Operand(Subject.COMMON, field, field.size, field.signed, may_be_cpu=True)
    for field in COMMON_FIELDS
}


def _of_field(field: Field) -> _Operand:
    """filter_assign_type() and select_comparison_fn()."""
    if field.kind is FieldKind.DATA_LOC and field.is_string:
        return _Operand(Subject.DATA_LOC, field, field.size)
    if field.kind is FieldKind.REL_LOC and field.is_string:
        return _Operand(Subject.REL_LOC, field, field.size)
    if b"[" in field.type and b"char" in field.type:
        return _Operand(Subject.ARRAY, field, field.size)
    subject = Subject.NUMBER if field.size in NUMBER_SIZES else Subject.NOTHING
    is_mask = field.is_loc and b"cpumask_t" in field.type
    return _Operand(subject, field, field.size, field.signed, may_be_cpu=not (is_mask or field.is_float))


def parse_filter(
    text: bytes, fields: Sequence[Field], *, nr_cpus: int = MAX_CPUS, names: Names | None = None
) -> Filter:
    """Parse a filter, up to a NUL, for records of an event with these fields. FilterError. nr_cpus: number of
    cpus allowed in CPUS{}. names: resolves COMM; None: the name COMM does not exist."""
    text = text.partition(b"\0")[0]
    check_brackets(text)
    return Filter(text, Parser(text, fields, nr_cpus, names is not None).parse(), names)


def is_no_filter(text: bytes) -> bool:
    """Whether a text written to `filter` removes the filter."""
    return text.strip(_SPACE) == b"0"


def check_brackets(text: bytes) -> None:
    """calc_stack(): FilterError for an open quote, an unmatched parenthesis, or (without a position) a text
    that has only parentheses and blanks."""
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
                raise FilterError(TOO_FEW_OPEN, i, errno.EPERM)
            opened.pop()
        elif c not in _SPACE:
            is_empty = False
    if quote:
        raise FilterError(MISSING_QUOTE, last_quote, errno.ESRCH)
    if opened:
        raise FilterError(TOO_MANY_OPEN, opened[-1], errno.ENOENT)
    if is_empty:
        raise FilterError("")


_Ends = list[tuple[int, int]]
"""(step, outcome) pairs whose next step is not determined yet."""


@attrs.frozen
class _Part:
    """A part of the expression: consecutive steps."""

    first: int
    """Its first step."""
    if_false: _Ends
    """Its exits if it is false."""
    if_true: _Ends
    """Its exits if it is true."""

    def inverted(self) -> "_Part":
        return _Part(self.first, self.if_true, self.if_false)


@attrs.define
class _Group:
    """The text between two parentheses, or the whole text."""

    inverted: bool
    """A `!` precedes it."""
    either: _Part | None = None
    """The left side of the last `||`."""
    both: _Part | None = None
    """The left side of the last `&&`, after the last `||`."""


class Parser:
    """A subclass may have other predicates."""

    def __init__(self, text: bytes, fields: Iterable[Field], nr_cpus: int, has_names: bool) -> None:
        self._text = text
        self._nr_cpus = nr_cpus
        # Of fields with the same name the last one counts: the kernel keeps them in reverse.
        own = {field.name: _of_field(field) for field in fields}
        self._operands = {**_COMMON, **_GENERIC, **own}
        if not has_names:
            self._operands = {k: v for k, v in self._operands.items() if v is not _COMM}
        self._predicates: list[Predicate] = []
        self._next: list[list[int]] = []

    def parse(self) -> list[tuple[Predicate, int, int]]:
        """The arguments of `Filter`; predicate_parse()."""
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
                    raise FilterError(TOO_MANY_TERMS, at, errno.EPERM)
                self._join(groups[-1], part, text[at : at + 1])
                at += 2
        raise FilterError(MEANINGLESS if self._predicates else NO_FILTER, len(text))

    def _operand(self, at: int, invert: bool) -> tuple[int, _Part]:
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
        """Join `part` to the left side of `&&`."""
        left, group.both = group.both, None
        if left is None:
            return part
        self._go_on(left.if_true, part.first)
        return _Part(left.first, [*left.if_false, *part.if_false], part.if_true)

    def _closed(self, group: _Group, part: _Part) -> _Part:
        """Close the group; `part` is its last one."""
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
        # A member of a struct of EventHeader; the kernel's filters have no such names.
        dotted = self._behind(at, _DOTTED_NAME)
        at = dotted if text[begin:dotted] in self._operands else at
        operand = self._operands.get(text[begin:at])
        if operand is None:
            raise FilterError(FIELD_NOT_FOUND, at + 1)
        if text.startswith(b".ustring", at):
            at += len(b".ustring")  # strings of user space are copied into the record: no difference
        is_function = text.startswith(b".function", at)
        if is_function:
            at += len(b".function")
        at = self._behind_space(at)
        operator = next((each for each in _OPERATORS if text.startswith(each, at)), None)
        if operator is None:
            raise FilterError(INVALID_OPERATOR, at + 1)
        at = self._behind_space(at + len(operator))
        if is_function:
            raise self._function_error(at, operand, operator)
        if operand.field is not None and operand.field.element is not None:
            raise FilterError(ILLEGAL_OPERATION, at + 1)
        if text.startswith(b"CPUS", at):
            return self._cpus(at, operand, operator)
        if text[at : at + 1] in (b"'", b'"'):
            return self._string(at, operand, operator)
        if text[at : at + 1] in b"-0123456789" and at < len(text):
            return self._number(at, operand, operator)
        raise FilterError(INVALID_VALUE, at + 1)

    def _function_error(self, at: int, operand: _Operand, operator: bytes) -> FilterError:
        """The error of `.function`: always one, since there are no kernel functions here."""
        if operand.size != _LONG:
            return FilterError(ILLEGAL_OPERATION, at + 1)
        if operator not in (b"==", b"!="):
            return FilterError(INVALID_OPERATOR, at + 1)
        begin = at
        if self._text[at : at + 1].isdigit():
            at = self._behind(at, _ALPHANUMERIC_SET)
            if at - begin > MAX_NUMBER:
                return FilterError(TOO_LONG, at + 1)
            if parsed_number(self._text[begin:at], signed=False) is None:
                return FilterError(INVALID_VALUE, at + 1)
        else:
            at = self._behind(at, _NOT_SPACE)
            if at - begin >= _MAX_FUNCTION:
                return FilterError(TOO_LONG, at + 1)
        return FilterError(NO_FUNCTION, at + 1)

    def _number(self, at: int, operand: _Operand, operator: bytes) -> tuple[int, Predicate]:
        if operand.is_text:
            raise FilterError(EXPECT_STRING, at + 1)
        if operator == b"~":
            raise FilterError(ILLEGAL_OPERATION, at + 1)
        if operand.field is not None and operand.field.is_float:
            return self._float(at, operand.field, operator)
        begin = at
        at = self._behind(at + (self._text[at] == 0x2D), _ALPHANUMERIC_SET)
        if at - begin > MAX_NUMBER:
            raise FilterError(TOO_LONG, at + 1)
        value = parsed_number(self._text[begin:at], signed=operand.signed)
        if value is None:
            raise FilterError(ILLEGAL_INTEGER, begin + 1)
        if operand is _CPU and operator == b"&":
            return at, Predicate(Subject.NOTHING)
        return at, Predicate(operand.subject, _NUMBER_HOW[operator], value, operand.field)

    def _float(self, at: int, field: Field, operator: bytes) -> tuple[int, Predicate]:
        if operator == b"&":
            raise FilterError(ILLEGAL_OPERATION, at + 1)
        found = FLOAT.match(self._text, at)
        if found is None:
            raise FilterError(INVALID_VALUE, at + 1)
        return found.end(), Predicate(Subject.NUMBER, _NUMBER_HOW[operator], float(found[0]), field)

    def _string(self, at: int, operand: _Operand, operator: bytes) -> tuple[int, Predicate]:
        if operator not in (b"==", b"!=", b"~"):
            raise FilterError(ILLEGAL_OPERATION, at + 1)
        if not operand.is_text:
            raise FilterError(EXPECT_NUMBER, at + 1)
        end = self._text.index(self._text[at : at + 1], at + 1)  # found by check_brackets
        pattern = self._text[at + 1 : end]
        if len(pattern) > MAX_TEXT:
            raise FilterError(TOO_LONG, end + 1)
        how, negated = How.FULL, operator == b"!="
        if operator == b"~":
            how, pattern, negated = parsed_pattern(pattern)
        return end + 1, Predicate(operand.subject, how, pattern, operand.field, negated)

    def _cpus(self, at: int, operand: _Operand, operator: bytes) -> tuple[int, Predicate]:
        text = self._text
        if not operand.may_be_cpu or operator not in (b"==", b"!=", b"&"):
            raise FilterError(ILLEGAL_OPERATION, at + 1)
        at += len(b"CPUS")
        if text[at : at + 1] != b"{":
            raise FilterError(MISSING_BRACE_OPEN, at + 2)
        end = text.find(b"}", at)
        if end < 0:
            raise FilterError(MISSING_BRACE_CLOSE, len(text) + 1)
        mask = parsed_cpus(text[at + 1 : end], self._nr_cpus)
        if mask is None:
            raise FilterError(INVALID_CPULIST, end + 1)
        if mask.bit_count() == 1:
            how = How.UNEQUAL if operator == b"!=" else How.EQUAL
            return end + 1, Predicate(operand.subject, how, mask.bit_length() - 1, operand.field)
        if operator == b"==" or operand.subject is Subject.NOTHING:
            return end + 1, Predicate(Subject.NOTHING)  # one number is never equal to several
        if operator == b"!=":
            mask = (1 << self._nr_cpus) - 1
        return end + 1, Predicate(operand.subject, How.IN_CPUS, mask, operand.field)

    def _behind(self, at: int, characters: frozenset[int]) -> int:
        """The first position from `at` on with another character."""
        while at < len(self._text) and self._text[at] in characters:
            at += 1
        return at

    def _behind_space(self, at: int) -> int:
        return self._behind(at, _SPACE_SET)
