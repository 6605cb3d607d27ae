"""A key, value or variable of a histogram, or a part of one: struct hist_field of trace_events_hist.c.

A tree: an expression has operands, `.log2` and `.buckets` have the field that they round, all others are
leaves. Its names differ in entries, the trigger's line, expressions within that, and sort keys.
"""

import enum

import attrs

from utracefs_protocol.events.declaration import Field

MAX_STRING = 256
"""Bytes of a dynamic string as a key, with its NUL (MAX_FILTER_STR_VAL)."""


class Flag(enum.Flag):
    """HIST_FIELD_FL_*: kind of a field, and its display."""

    HITCOUNT = enum.auto()
    KEY = enum.auto()
    STRING = enum.auto()
    HEX = enum.auto()
    SYM = enum.auto()
    SYM_OFFSET = enum.auto()
    EXECNAME = enum.auto()
    SYSCALL = enum.auto()
    STACKTRACE = enum.auto()
    LOG2 = enum.auto()
    TIMESTAMP = enum.auto()
    TIMESTAMP_USECS = enum.auto()
    VAR = enum.auto()
    EXPR = enum.auto()
    VAR_REF = enum.auto()
    CPU = enum.auto()
    ALIAS = enum.auto()
    BUCKET = enum.auto()
    CONST = enum.auto()
    PERCENT = enum.auto()
    GRAPH = enum.auto()


NONE = Flag(0)

_MODIFIERS = (
    (Flag.HEX, b"hex"),
    (Flag.SYM, b"sym"),
    (Flag.SYM_OFFSET, b"sym-offset"),
    (Flag.EXECNAME, b"execname"),
    (Flag.SYSCALL, b"syscall"),
    (Flag.LOG2, b"log2"),
    (Flag.BUCKET, b"buckets"),
    (Flag.TIMESTAMP_USECS, b"usecs"),
    (Flag.PERCENT, b"percent"),
    (Flag.GRAPH, b"graph"),
)
"""In the order of get_hist_field_flags(); the first one that a field has is shown."""


class Operator(enum.Enum):
    """enum field_op_id; the values are their syntax."""

    PLUS = b"+"
    MINUS = b"-"
    DIV = b"/"
    MULT = b"*"
    UNARY_MINUS = b"-("


@attrs.define(eq=False)
class HistField:
    """One node of the tree."""

    flags: Flag = NONE
    """Kind and display."""
    field: Field | None = None
    """The event's field. CPU and STACKTRACE use only its name."""
    buckets: int = 0
    """With BUCKET: their width."""
    type: bytes = b""
    size: int = 0
    """Bytes of its values. As a key: its bytes in the table, a multiple of 8."""
    signed: bool = False
    offset: int = 0
    """As a key: its offset in the table's keys."""
    operator: Operator | None = None
    """With EXPR."""
    operands: tuple["HistField", ...] = ()
    """Operands of an expression; the rounded field of LOG2 and BUCKET; the target of an ALIAS."""
    constant: int = 0
    """With CONST; also the value of a constant divisor."""
    name: bytes = b""
    """EXPR: its text. VAR_REF and ALIAS: the variable's name."""
    system: bytes = b""
    """VAR_REF and ALIAS, if given: the system of the event whose trigger has the variable."""
    event: bytes = b""
    """The same for its event."""
    var_name: bytes = b""
    """With VAR: its name."""
    var_index: int = -1
    """With VAR: its number among its trigger's variables. With VAR_REF: its number among the references."""
    read_once: bool = False
    """With VAR_REF: it is an operand, so reading it unsets the variable."""

    @property
    def is_string(self) -> bool:
        return Flag.STRING in self.flags

    def shown_name(self, level: int = 0) -> bytes:
        """Its name in entries and sort keys (hist_field_name())."""
        if level > 1:
            return b""
        if self.field is not None:
            return self.field.name
        if self.flags & (Flag.LOG2 | Flag.ALIAS | Flag.BUCKET):
            return self.operands[0].shown_name(level + 1)
        if self.flags & Flag.CPU:
            return b"common_cpu"
        if self.flags & (Flag.EXPR | Flag.VAR_REF):
            return b"%s.%s.%s" % (self.system, self.event, self.name) if self.system else self.name
        if self.flags & Flag.TIMESTAMP:
            return b"common_timestamp"
        if self.flags & Flag.STACKTRACE:
            return b"common_stacktrace"
        if self.flags & Flag.HITCOUNT:
            return b"hitcount"
        return b""

    def modifier(self) -> bytes:
        """`.hex`, or nothing."""
        for flag, name in _MODIFIERS:
            if flag in self.flags:
                return b"." + name
        return b""


def field_text(field: HistField) -> bytes:
    """Its text in the trigger's line (hist_field_print())."""
    text = field.var_name + b"=" if field.var_name else b""
    if Flag.CPU in field.flags:
        text += b"common_cpu"
    elif Flag.CONST in field.flags:
        text += b"%d" % field.constant
    else:
        if field.flags & (Flag.VAR_REF | Flag.ALIAS):
            text += b"$"
        text += field.shown_name()
    if not field.flags & (Flag.VAR_REF | Flag.EXPR):
        text += field.modifier()
    if field.buckets:
        text += b"=%d" % field.buckets
    return text


def expression_text(field: HistField, level: int = 0) -> bytes:
    """The text of an expression (expr_str()). Parts nested too deeply are left out, as there."""
    if level > 1:
        return b""
    if not field.operands or field.operator is None:
        return _operand_text(field)
    if field.operator is Operator.UNARY_MINUS:
        return b"-(%s)" % expression_text(field.operands[0], level + 1)
    first, second = map(_operand_text, field.operands)
    return b"%s%s%s" % (first, field.operator.value, second)


def _operand_text(field: HistField) -> bytes:
    text = b"$" if Flag.VAR_REF in field.flags else b""
    if Flag.CONST in field.flags:
        text += b"%d" % field.constant
    text += field.shown_name()
    if Flag.VAR_REF not in field.flags:
        text += field.modifier()
    return text
