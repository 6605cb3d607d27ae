"""One key, value or variable, from its text to a tree of HistFields (parse_expr() of trace_events_hist.c).

    expression = operand [(+ | - | * | /) operand]...       * and / bind tighter; from left to right
               | -( expression )
    operand    = number | FIELD[.MODIFIER] | [SYSTEM.EVENT.]$VARIABLE

Like the kernel it splits the text at the last operator of lowest precedence and continues with both halves:
so it accepts what the kernel accepts by accident, and gives its messages in its order.
"""

import errno

from utracefs_protocol.events.declaration import NUMBER_SIZES, Field, FieldKind
from utracefs_protocol.text import any_base, shown
from utracefsd.consumers.ftrace.hist.fields import (
    MAX_STRING,
    NONE,
    Flag,
    HistField,
    Operator,
    expression_text,
)
from utracefsd.consumers.ftrace.hist.variables import Context

MAX_OPERATORS = 3
"""In one expression."""

_DIV_SHIFT = 20
"""HIST_DIV_SHIFT: small numbers are divided by a constant with a multiplication and this shift."""

_MASK = (1 << 64) - 1

STACKTRACE_SIZE = 31 * 8
"""HIST_STACKTRACE_SIZE."""

_MODIFIERS = {
    b"hex": Flag.HEX,
    b"sym": Flag.SYM,
    b"symXoffset": Flag.SYM_OFFSET,
    b"execname": Flag.EXECNAME,
    b"syscall": Flag.SYSCALL,
    b"log2": Flag.LOG2,
    b"usecs": Flag.TIMESTAMP_USECS,
}
"""`.sym-offset` comes as `.symXoffset`: the minus would pass for an operator."""

_BY_PREFIX = ((b"percent", Flag.PERCENT), (b"graph", Flag.GRAPH))
"""Text behind these is ignored."""


def parse_expression(
    context: Context, text: bytes, flags: Flag, var_name: bytes = b"", depth: list[int] | None = None
) -> HistField:
    """The tree of a key (flags: KEY), a variable (VAR, with its name) or a value (none).

    HistError: EINVAL, EDOM (division by the constant 0), ENOMEM (a field whose size is not that of a number).
    """
    depth = [0] if depth is None else depth
    if depth[0] > MAX_OPERATORS:
        raise context.log.fault("Too many subexpressions (3 max)", text)
    operator, at = _root(text)
    if operator is None:
        return parse_atom(context, text, flags, var_name)
    depth[0] += 1
    if operator is Operator.UNARY_MINUS:
        return _parse_unary(context, text, flags, var_name, depth)
    left, right = text[:at], text[at + 1 :]
    if not left or not right:
        raise context.log.refused(f"an operator of {shown(text)} has nothing on one side")
    operands = []
    for part in (left, right):
        operand = parse_expression(context, part, NONE, depth=depth)
        check_number(context, operand, part)
        operands.append(operand)
    first, second = operands
    if (first.flags ^ second.flags) & Flag.TIMESTAMP_USECS:
        raise context.log.fault("Timestamp units in expression don't match")
    for operand in operands:
        operand.read_once = True
    constant = bool(first.flags & second.flags & Flag.CONST)
    flags |= Flag.CONST if constant else Flag.EXPR
    flags |= first.flags & (Flag.TIMESTAMP | Flag.TIMESTAMP_USECS)
    if operator is Operator.DIV and Flag.CONST in second.flags and not second.constant:
        raise context.log.fault("Division by zero", right, errno.EDOM)
    result = HistField(flags, size=first.size, signed=first.signed, type=first.type, var_name=var_name)
    if constant:
        result.constant = _constant(operator, first.constant, second.constant)
        result.type, result.size = b"u64", 8
    else:
        result.operator, result.operands = operator, (first, second)
    result.name = expression_text(result)
    return result


def check_number(context: Context, operand: HistField, text: bytes) -> None:
    """Refuse fields that the kernel calculates with by their address or their bits."""
    if operand.is_string:
        raise context.log.fault("String type can not be an operand in expression", text)
    _check_no_float(context, operand)


def _check_no_float(context: Context, operand: HistField) -> None:
    field = operand.field
    if field is not None and field.is_float:
        raise context.log.fault("Float type can not be an operand in expression", field.name)


def _parse_unary(context: Context, text: bytes, flags: Flag, var_name: bytes, depth: list[int]) -> HistField:
    if depth[0] > MAX_OPERATORS:
        raise context.log.fault("Too many subexpressions (3 max)", text)
    inner = text[1:]
    if b"(" not in inner:
        raise context.log.refused(f"{shown(text)}: a minus sign needs parentheses, -(x)")
    inner = inner[1:]
    end = inner.rfind(b")")
    if end < 0:
        raise context.log.refused(f"{shown(text)}: the parenthesis is not closed")
    if inner[end + 1 :]:
        raise context.log.fault("Unary minus not supported in sub-expressions", inner)
    operand = parse_expression(context, inner[:end], NONE, depth=depth)
    check_number(context, operand, inner[:end])
    result = HistField(
        flags | Flag.EXPR | operand.flags & (Flag.TIMESTAMP | Flag.TIMESTAMP_USECS),
        type=operand.type,
        size=operand.size,
        signed=operand.signed,
        operator=Operator.UNARY_MINUS,
        operands=(operand,),
        var_name=var_name,
    )
    result.name = expression_text(result)
    return result


def _root(text: bytes) -> tuple[Operator | None, int]:
    """The operator at which to split, contains_operator(): the last of + and -, else the last of * and /. A
    unary minus comes first, if it is the last one."""
    minus, plus = text.rfind(b"-"), text.rfind(b"+")
    if minus == 0:
        return Operator.UNARY_MINUS, 0
    if max(minus, plus) >= 0:
        return (Operator.PLUS, plus) if plus > minus else (Operator.MINUS, minus)
    div, mult = text.rfind(b"/"), text.rfind(b"*")
    if max(div, mult) >= 0:
        return (Operator.MULT, mult) if mult > div else (Operator.DIV, div)
    return None, -1


def parse_atom(context: Context, text: bytes, flags: Flag, var_name: bytes = b"") -> HistField:
    """A number, a field or a variable."""
    if text[:1].isdigit():
        constant = any_base(text)
        if constant is None:
            raise context.log.fault("Expecting numeric literal", text)
        return HistField(flags | Flag.CONST, type=b"u64", size=8, constant=constant, var_name=var_name)
    system, event, name = b"", b"", text
    if text.count(b".") > 1:
        system, event, name = text.split(b".", 2)
    if name.startswith(b"$") and len(name) > 1:
        own = _own_variable(context, system, event, name[1:])
        if own is None:
            found = context.variables.reference(context, system, event, name[1:])
            if found:
                return _alias(found, var_name) if var_name else found
            context.log.add("Couldn't find variable", name[1:])
        else:
            name = own
    return _parse_field(context, name, flags, var_name)


def _own_variable(context: Context, system: bytes, event: bytes, name: bytes) -> bytes | None:
    """The field of a variable of this definition; None: it is an expression, or not a variable of this
    one."""
    if (system or event) and (system, event) != (context.system, context.event):
        return None
    text = context.own.get(name)
    if text is None or _root(text)[0] is not None or (text.startswith(b"$") and len(text) > 1):
        return None
    return text


def _alias(reference: HistField, var_name: bytes) -> HistField:
    """A variable that is an alias of another one."""
    return HistField(
        Flag.ALIAS | Flag.VAR | reference.flags & (Flag.TIMESTAMP | Flag.TIMESTAMP_USECS),
        type=reference.type,
        size=reference.size,
        signed=reference.signed,
        operands=(reference,),
        name=reference.name,
        system=reference.system,
        event=reference.event,
        var_name=var_name,
    )


def _parse_field(context: Context, text: bytes, flags: Flag, var_name: bytes) -> HistField:
    """parse_field() and create_hist_field()."""
    name, dot, modifier = text.partition(b".")
    buckets = 0
    if dot:
        flag, buckets = _parse_modifier(context, name, modifier, flags)
        flags |= flag
    field = None
    if name == b"common_timestamp":
        flags |= Flag.TIMESTAMP
        context.uses_timestamp = True
        context.timestamp_in_usecs |= Flag.TIMESTAMP_USECS in flags
    elif name == b"common_stacktrace":
        flags |= Flag.STACKTRACE
    elif name == b"common_cpu":
        flags |= Flag.CPU
    elif name == b"hitcount":
        flags |= Flag.HITCOUNT
    else:
        field = context.find(name)
        if field is None and name in (b"cpu", b"CPU"):
            flags |= Flag.CPU
            field = _cpu_field(name)
        elif field is None and name in (b"stacktrace", b"STACKTRACE"):
            flags |= Flag.STACKTRACE
        elif field is None or not field.size:
            raise context.log.fault("Couldn't find field", name)
        elif field.element is not None:
            raise context.log.refused(f"field {shown(name)} is an array of numbers, not a number")
    return _typed(context, HistField(flags, field, buckets, var_name=var_name))


def _cpu_field(name: bytes) -> Field:
    """`cpu` under its old names: entries show the name as written."""
    return Field(b"unsigned int", name, 0, 0, False, FieldKind.INTEGER)


def _parse_modifier(context: Context, name: bytes, modifier: bytes, flags: Flag) -> tuple[Flag, int]:
    if modifier == b"execname" and name != b"common_pid":
        raise context.log.fault("Invalid field modifier", modifier)
    if modifier in _MODIFIERS:
        return _MODIFIERS[modifier], 0
    if modifier.startswith(b"bucket"):
        number = modifier.removeprefix(b"bucket").removeprefix(b"s")
        # The message points at the unread rest of the modifier.
        if not number.startswith(b"="):
            raise context.log.fault("Invalid field modifier", number)
        width = any_base(number[1:])
        if not width:
            raise context.log.fault("Invalid field modifier", number[1:])
        return Flag.BUCKET, width
    for prefix, flag in _BY_PREFIX:
        if modifier.startswith(prefix) and not flags & (Flag.KEY | Flag.VAR):
            return flag, 0
    raise context.log.fault("Invalid field modifier", modifier)


def _typed(context: Context, result: HistField) -> HistField:
    """Fill in type and size of its values (create_hist_field())."""
    flags, field = result.flags, result.field
    if Flag.HITCOUNT in flags:
        result.type, result.size = b"u64", 8
    elif Flag.STACKTRACE in flags:
        result.type, result.size = b"unsigned long[]", STACKTRACE_SIZE
    elif flags & (Flag.LOG2 | Flag.BUCKET):
        inner = HistField(flags & ~(Flag.LOG2 | Flag.BUCKET), field)
        inner = _typed(context, inner)
        _check_no_float(context, inner)
        result.operands = (inner,)
        result.type, result.size = inner.type, inner.size
    elif Flag.TIMESTAMP in flags:
        result.type, result.size = b"u64", 8
    elif Flag.CPU in flags:
        result.type, result.size = b"unsigned int", 4
    elif field is not None and field.is_string:
        result.flags |= Flag.STRING
        result.type = field.type
        result.size = MAX_STRING if field.is_loc else field.size
    elif field is not None:
        if field.size not in NUMBER_SIZES:
            raise context.log.refused(
                f"field {shown(field.name)} has {field.size} bytes, which no number has", errno.ENOMEM
            )
        result.type, result.size, result.signed = field.type, field.size, field.signed
    return result


def _constant(operator: Operator, a: int, b: int) -> int:
    if operator is Operator.DIV:
        return divided(a, b)
    return {Operator.PLUS: a + b, Operator.MINUS: a - b, Operator.MULT: a * b}[operator] & _MASK


def divided(value: int, divisor: int) -> int:
    """Division by a constant, as in hist_field_get_div_fn(): below 2^20 not always rounded down."""
    if not divisor & (divisor - 1) or divisor > 1 << _DIV_SHIFT or value >= 1 << _DIV_SHIFT:
        return value // divisor
    return (value * ((1 << _DIV_SHIFT) // divisor) + (1 << _DIV_SHIFT) - 1) >> _DIV_SHIFT
