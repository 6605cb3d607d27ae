"""What a hist trigger counts: keys, values, variables and how entries are sorted (create_hist_data()).

A Definition is what the text of a trigger means for one event. It knows its canonical text, which `trigger`
shows, and what makes two definitions the same.
"""

import errno

import attrs

from utracefsd.consumers.ftrace.hist.errors import Log
from utracefsd.consumers.ftrace.hist.expressions import Context, parse_expression
from utracefsd.consumers.ftrace.hist.fields import NONE, Flag, HistField, field_text
from utracefsd.consumers.ftrace.hist.parse import MAX_VARIABLES, Parts

__all__ = ["MAX_KEYS", "MAX_KEY_SIZE", "MAX_VALUES", "Definition", "SortKey", "define"]

MAX_KEYS = 3
"""TRACING_MAP_KEYS_MAX."""

MAX_VALUES = 3
"""TRACING_MAP_VALS_MAX, the count of hits included."""

MAX_SORT_KEYS = 2
"""TRACING_MAP_SORT_KEYS_MAX."""

MAX_KEY_SIZE = 256 + 31 * 8
"""HIST_KEY_SIZE_MAX: bytes of all keys together. So there is room for one dynamic string and a stack."""

_VALUE_REFUSES = Flag.BUCKET | Flag.LOG2 | Flag.SYM | Flag.SYM_OFFSET | Flag.SYSCALL | Flag.STACKTRACE
_VARIABLE_REFUSES = Flag.GRAPH | Flag.PERCENT | Flag.BUCKET | Flag.LOG2


@attrs.frozen
class SortKey:
    """What entries are sorted by."""

    index: int
    """0: the count of hits; then the values, then the keys."""

    descending: bool = False
    """The largest first."""


@attrs.frozen(eq=False)
class Definition:
    """What a hist trigger of one event counts."""

    keys: tuple[HistField, ...]
    """One to three."""

    values: tuple[HistField, ...]
    """Behind the count of hits, which is always there."""

    variables: tuple[HistField, ...]
    """In the order of their definition."""

    sort: tuple[SortKey, ...]
    """One or two."""

    key_size: int
    """Bytes of all keys."""

    parts: Parts
    """What was written."""

    uses_timestamp: bool
    """The instance's clock is set to that of the trigger."""

    timestamp_in_usecs: bool
    """Time stamps are microseconds."""

    references: tuple[HistField, ...] = ()
    """Variables of other triggers that it reads."""

    def text(self) -> bytes:
        """The trigger's line, up to its actions (event_hist_trigger_print())."""
        text = b"hist:"
        if self.parts.name is not None:
            text += self.parts.name + b":"
        text += b"keys=" + b",".join(map(field_text, self.keys))
        values = [] if self.parts.no_hitcount else [b"hitcount"]
        text += b":vals=" + b",".join([*values, *map(field_text, self.values)])
        if self.variables:
            text += b":" + b",".join(map(field_text, self.variables))
        text += b":sort=" + b",".join(map(self._sort_text, self.sort))
        text += b":size=%d" % (1 << self.parts.bits)
        if self.uses_timestamp:
            text += b":clock=" + self.parts.clock
        if self.parts.no_hitcount:
            text += b":nohitcount"
        return text

    def actions_text(self) -> bytes:
        """And its actions."""
        return b"".join(b":" + action for action in self.parts.actions)

    def _sort_text(self, key: SortKey) -> bytes:
        text = b"hitcount" if not key.index else field_text(self.column(key))
        return text + (b".descending" if key.descending else b"")

    def column(self, key: SortKey) -> HistField:
        """The value or key that it sorts by; not for the count of hits."""
        return (*self.values, *self.keys)[key.index - 1]

    def identity(self) -> tuple[object, ...]:
        """What makes two definitions the same (hist_trigger_match()): all but size, clock and name.

        The kernel compares expressions by their kind alone, and `.buckets` not by their width; to it
        `vals=a+b` is `vals=a-b`.
        """
        return (
            tuple(map(_field_identity, self.keys)),
            tuple(map(_field_identity, self.values)),
            tuple(map(_field_identity, self.variables)),
            self.sort,
            self.parts.actions,
        )


def _field_identity(field: HistField) -> tuple[object, ...]:
    return (field_text(field), field.flags.value, field.type, field.size, field.signed, field.offset)


def define(parts: Parts, context: Context) -> Definition:
    """HistError: EINVAL; EDOM, ENOMEM as `parse_expression`; ENOENT (nohitcount without another value)."""
    log = context.log
    assignments = _assignments(parts, log)
    context.own = {}
    for name, text in assignments:
        context.own.setdefault(name, text)
    values = _values(parts, context)
    variables: list[HistField] = []
    for name, text in assignments:
        if any(name == other.var_name for other in variables):
            raise log.fault("Variable already defined", name)
        variables.append(_variable(context, name, text))
        variables[-1].var_index = len(variables) - 1
    keys = _keys(parts, context)
    key_size = sum(key.size for key in keys)
    sort = _sort_keys(parts, log, [*values, *keys])
    return Definition(
        keys=tuple(keys),
        values=tuple(values),
        variables=tuple(variables),
        sort=tuple(sort),
        key_size=key_size,
        parts=parts,
        uses_timestamp=context.uses_timestamp,
        timestamp_in_usecs=context.timestamp_in_usecs,
    )


def _assignments(parts: Parts, log: Log) -> list[tuple[bytes, bytes]]:
    """Names and expressions of variables (parse_var_defs())."""
    found: list[tuple[bytes, bytes]] = []
    for assignment in parts.assignments:
        for part in assignment.split(b",", MAX_VARIABLES)[:MAX_VARIABLES]:
            name, equals, text = part.partition(b"=")
            if not equals:
                raise log.fault("Malformed assignment", name)
            if len(found) == MAX_VARIABLES:
                raise log.fault("Too many variables defined", name)
            found.append((name, text))
    return found


def _values(parts: Parts, context: Context) -> list[HistField]:
    """create_val_fields()."""
    log = context.log
    values: list[HistField] = []
    texts = [] if parts.values is None else parts.values.split(b",")
    hitcounts = 0
    read = 0
    for text in texts[:MAX_VALUES]:
        if len(values) == MAX_VALUES - 1:
            break
        read += 1
        if text == b"hitcount":
            hitcounts += 1
            if hitcounts == 1:
                continue
        value = parse_expression(context, text, NONE)
        if value.flags & _VALUE_REFUSES:
            raise log.fault("Invalid field modifier", text)
        if value.is_string:
            # The kernel adds up addresses.
            raise log.fault("String type can not be an operand in expression", text)
        values.append(value)
    rest = b",".join(texts[read:])
    if texts[read:] and rest != b"hitcount":
        raise log.refused(f"a hist trigger has at most {MAX_VALUES - 1} values besides hitcount")
    if parts.no_hitcount and not values:
        raise log.fault("Non-hitcount value is required for 'nohitcount'", errno=errno.ENOENT)
    return values


def _variable(context: Context, name: bytes, text: bytes) -> HistField:
    variable = parse_expression(context, text, Flag.VAR, name)
    if variable.flags & _VARIABLE_REFUSES:
        raise context.log.fault("Invalid field modifier", text)
    if Flag.EXECNAME in variable.flags:
        variable.flags = Flag.STRING | Flag.VAR | Flag.EXECNAME
        variable.type, variable.size, variable.signed = b"char[]", 256, False
    return variable


def _keys(parts: Parts, context: Context) -> list[HistField]:
    """create_key_fields()."""
    keys: list[HistField] = []
    size = 0
    texts = parts.keys.split(b",")
    for text in texts[:MAX_KEYS]:
        key = parse_expression(context, text, Flag.KEY)
        if _has_variables(key):
            raise context.log.fault("Using variable references in keys not supported", text)
        key.offset = size
        key.size = -(-key.size // 8) * 8
        size += key.size
        if size > MAX_KEY_SIZE:
            raise context.log.refused(f"keys have at most {MAX_KEY_SIZE} bytes; a dynamic string counts 256")
        keys.append(key)
    if len(texts) > MAX_KEYS:
        raise context.log.refused(f"a hist trigger has at most {MAX_KEYS} keys")
    return keys


def _has_variables(field: HistField) -> bool:
    return bool(field.flags & (Flag.VAR | Flag.VAR_REF)) or any(map(_has_variables, field.operands))


def _sort_keys(parts: Parts, log: Log, columns: list[HistField]) -> list[SortKey]:
    """create_sort_keys()."""
    if parts.sort is None:
        return [SortKey(0)]
    keys: list[SortKey] = []
    texts = parts.sort.split(b",")
    for i, text in enumerate(texts):
        if not text:
            raise log.fault("Empty sort field", b"sort=")
        if i == MAX_SORT_KEYS - 1 and len(texts) > MAX_SORT_KEYS:
            raise log.fault("Too many sort fields (Max = 2)", b"sort=")
        name, dot, direction = text.partition(b".")
        if not name:
            raise log.fault("Empty sort field", b"sort=")
        index = 0
        if name != b"hitcount":
            index = next((n for n, column in enumerate(columns, 1) if column.shown_name() == name), -1)
            if index < 0:
                raise log.fault("Sort field must be a key or a val", name)
        if dot and direction not in (b"ascending", b"descending"):
            raise log.fault("Invalid sort modifier", direction)
        keys.append(SortKey(index, direction == b"descending"))
    return keys
