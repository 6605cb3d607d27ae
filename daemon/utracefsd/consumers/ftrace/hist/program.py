"""A Definition as a program for the compiled Hist: fields become steps of a stack machine.

`.log2`, operators and the like come after their operands. MAX_OPERATORS and one modifier bound the depth.
"""

from typing import NamedTuple

from utracefs_protocol.events.declaration import FieldKind
from utracefsd.consumers.ftrace.hist._hist import KeyKind, Op
from utracefsd.consumers.ftrace.hist.definition import Definition
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField, Operator


class Step(NamedTuple):
    """One step; unused members are 0."""

    op: int
    value: int = 0
    offset: int = 0
    size: int = 0
    signed: bool = False


class Key(NamedTuple):
    """One key, or the string of a variable."""

    kind: int
    offset: int
    """Its offset in the table's keys."""
    size: int
    """Its bytes there."""
    at: int
    """A string: offset of the field in the payload."""
    length: int
    """A fixed string: its bytes."""
    steps: tuple[Step, ...]


STRING_WORDS = 32
"""Words of a variable's string: STR_VAR_LEN_MAX bytes."""


class Variable(NamedTuple):
    """One word of each entry, or a string."""

    when: int
    steps: tuple[Step, ...]
    """Steps that compute a number."""
    key: Key | None
    """The string; None: it is a number."""


class Program(NamedTuple):
    key_size: int
    keys: tuple[Key, ...]
    values: tuple[tuple[Step, ...], ...]
    """Behind the count of hits."""
    variables: tuple[Variable, ...] = ()
    """In the order in which they are set."""
    references: int = 0
    """How many variables of other triggers are read."""

    @property
    def nr_words(self) -> int:
        """Words of each entry of the table."""
        if not self.variables:
            return 1 + len(self.values)
        strings = sum(variable.key is not None for variable in self.variables)
        return self.mask_word + 1 + len(self.variables) + strings * STRING_WORDS

    @property
    def mask_word(self) -> int:
        """The word with a bit for each variable that is set; the variables follow, then strings."""
        return 1 + len(self.values)

    def word_of(self, variable: int) -> int:
        return self.mask_word + 1 + variable

    def string_word_of(self, variable: int) -> int:
        """The first word of its string; -1: it is a number."""
        if self.variables[variable].key is None:
            return -1
        before = sum(other.key is not None for other in self.variables[:variable])
        return self.mask_word + 1 + len(self.variables) + before * STRING_WORDS


_DIV_CONST_MOST = 1 << 20


def compile_definition(definition: Definition) -> Program:
    return Program(
        definition.key_size,
        tuple(_key(field, definition) for field in definition.keys),
        tuple(tuple(_steps(field, definition)) for field in definition.values),
        tuple(_variable(when, field, definition) for when, field in definition.slots),
        len(definition.references),
    )


def _variable(when: int, field: HistField | None, definition: Definition) -> Variable:
    if field is not None and field.is_string:
        return Variable(when, (), string_key(field, 0, 8 * STRING_WORDS))
    return Variable(when, () if field is None else tuple(_steps(field, definition)), None)


def _key(field: HistField, definition: Definition) -> Key:
    if Flag.STACKTRACE in field.flags:
        return Key(KeyKind.NOTHING, field.offset, field.size, 0, 0, ())
    if field.is_string and field.field is not None:
        return string_key(field, field.offset, field.size)
    return Key(KeyKind.NUMBER, field.offset, field.size, 0, 0, tuple(_steps(field, definition)))


def string_key(field: HistField, offset: int, size: int) -> Key:
    """A string of the event, or the name of its thread. size: bytes available for it; the last one is always
    NUL."""
    if Flag.EXECNAME in field.flags:
        return Key(KeyKind.COMM, offset, size, 0, 0, ())
    declared = field.field
    if declared is None:
        raise ValueError("a string without a field")
    kind = {FieldKind.DATA_LOC: KeyKind.DATA_LOC, FieldKind.REL_LOC: KeyKind.REL_LOC}.get(
        declared.kind, KeyKind.FIXED_STRING
    )
    return Key(kind, offset, size, declared.payload_offset, declared.size, ())


def _steps(field: HistField, definition: Definition) -> list[Step]:
    flags = field.flags
    if Flag.CONST in flags:
        return [Step(Op.CONST, field.constant)]
    if flags & (Flag.LOG2 | Flag.BUCKET):
        operand = field.operands[0]
        # The kernel rounds the address of a string, which is near the end of all numbers.
        inner = [Step(Op.CONST, (1 << 64) - 1)] if operand.is_string else _steps(operand, definition)
        return [*inner, Step(Op.LOG2) if Flag.LOG2 in flags else Step(Op.BUCKET, field.buckets)]
    if Flag.EXPR in flags:
        return _expression(field, definition)
    if flags & (Flag.VAR_REF | Flag.ALIAS):
        return [Step(Op.REF, (field.operands[0] if Flag.ALIAS in flags else field).var_index)]
    if Flag.HITCOUNT in flags:
        return [Step(Op.CONST, 1)]
    if Flag.TIMESTAMP in flags:
        return [Step(Op.TIMESTAMP, int(definition.timestamp_in_usecs))]
    if Flag.CPU in flags:
        return [Step(Op.CPU)]
    if field.field is None:
        return [Step(Op.CONST, 0)]  # common_stacktrace as an operand: the kernel has no number for it
    return [_field_step(field)]


def _field_step(field: HistField) -> Step:
    declared = field.field
    assert declared is not None
    match declared.name:
        case _ if declared.offset >= 8:
            return Step(Op.FIELD, 0, declared.payload_offset, declared.size, declared.signed)
        case b"common_type":
            return Step(Op.TYPE)
        case b"common_pid":
            return Step(Op.PID)
        case _:
            return Step(Op.CONST, 0)  # common_flags, common_preempt_count


_OPS = {
    Operator.PLUS: Op.ADD,
    Operator.MINUS: Op.SUB,
    Operator.MULT: Op.MULT,
    Operator.DIV: Op.DIV,
}


def _expression(field: HistField, definition: Definition) -> list[Step]:
    steps = _steps(field.operands[0], definition)
    if field.operator is Operator.UNARY_MINUS or field.operator is None:
        return [*steps, Step(Op.NEGATE)]
    divisor = field.operands[1].constant
    if (
        field.operator is Operator.DIV
        and Flag.CONST in field.operands[1].flags
        and divisor & (divisor - 1)
        and divisor <= _DIV_CONST_MOST
    ):
        return [*steps, Step(Op.DIV_CONST, divisor)]
    return [*steps, *_steps(field.operands[1], definition), Step(_OPS[field.operator])]
