"""The definition of a hist trigger: keys, values, variables and sort keys (create_hist_data()), and actions,
its effects besides counting.

    onmatch(SYSTEM.EVENT).trace(SYNTHETIC,PARAM,...)      or the older onmatch(...).SYNTHETIC(PARAM,...)
    onmax($VARIABLE).save(FIELD,...)                      onchange likewise, and either with trace()
    onmax($VARIABLE).snapshot()                           or snapshot()

A parameter is a field of the trigger's own event, or `$x`, a variable of the trigger or of a trigger of the
matched event. Messages and their order follow onmatch_parse(), action_parse() and action_create().

A Definition is the meaning of a trigger's text for one event, with its canonical text and an identity.
"""

import enum
import errno
from collections.abc import Callable

import attrs

from utracefs_protocol.events.declaration import Field
from utracefs_protocol.hist.errors import HistError, Log
from utracefs_protocol.hist.parse import MAX_VARIABLES, Parts
from utracefsd.consumers.ftrace.hist.expressions import check_number, parse_atom, parse_expression
from utracefsd.consumers.ftrace.hist.fields import MAX_STRING, NONE, Flag, HistField, field_text
from utracefsd.consumers.ftrace.hist.variables import Context, Reference

MAX_PARAMS = 64
"""SYNTH_FIELDS_MAX."""


class Handler(enum.Enum):
    """The condition of an action; the values are their syntax."""

    ONMATCH = b"onmatch"
    """The key has an entry in a histogram of the other event, and all variables to read are set."""
    ONMAX = b"onmax"
    """A variable is larger than ever before for this key."""
    ONCHANGE = b"onchange"
    """Its value differs from the previous one."""


class Kind(enum.Enum):
    TRACE = enum.auto()
    """A synthetic event is recorded."""
    SAVE = enum.auto()
    """Fields are saved in the entry, which shows them."""
    SNAPSHOT = enum.auto()
    """The instance's buffers are swapped, if the variable is larger than, or differs from, the last
    snapshot's."""


@attrs.frozen
class Action:
    handler: Handler
    subject: bytes
    """The text in the handler's parentheses."""
    name: bytes
    """Name of the action: trace, save, snapshot or that of a synthetic event."""
    kind: Kind
    params: tuple[bytes, ...]
    """Without the name of the synthetic event, which is the first one of trace()."""
    synthetic: bytes = b""
    """With TRACE: the name of that event."""

    @property
    def match(self) -> tuple[bytes, bytes]:
        """With ONMATCH: system and event."""
        system, _, event = self.subject.partition(b".")
        return system, event

    def text(self) -> bytes:
        """Its text in the trigger's line."""
        params = self.params if self.name != b"trace" else (self.synthetic, *self.params)
        return b":%s(%s).%s(%s)" % (self.handler.value, self.subject, self.name, b",".join(params))


def parse_action(text: bytes, log: Log, event_exists: Callable[[bytes, bytes], bool]) -> Action:
    """HistError: EINVAL."""
    word, _, rest = text.partition(b"(")
    handler = Handler(word)
    subject, closed, rest = rest.partition(b")")
    if handler is Handler.ONMATCH:
        if not closed:
            raise log.fault("No closing paren found", subject)
        system, dot, event = subject.partition(b".")
        if not dot:
            raise log.fault("Missing subsystem", system)
        if not event_exists(system, event):
            raise log.fault("Invalid subsystem or event name", event)
    elif not closed:
        raise log.refused("the parenthesis of a handler is not closed")
    _, dot, rest = rest.partition(b".")
    if not dot:
        raise log.fault("No action found")
    name, opened, rest = rest.partition(b"(")
    if not opened:
        raise log.fault("No action found")
    inside, closed, _ = rest.partition(b")")
    if name.startswith(b"save"):
        params = _parse_params(inside, log)
        if handler is Handler.ONMATCH:
            raise log.fault("Handler doesn't support action", name)
        return Action(handler, subject, name, Kind.SAVE, params)
    if name.startswith(b"snapshot"):
        if not closed:
            raise log.fault("No closing paren found", inside)
        if handler is Handler.ONMATCH:
            raise log.fault("Handler doesn't support action", name)
        return Action(handler, subject, name, Kind.SNAPSHOT, ())
    params = _parse_params(inside, log)
    if name.startswith(b"trace"):
        return Action(handler, subject, b"trace", Kind.TRACE, params[1:], params[0])
    return Action(handler, subject, name, Kind.TRACE, params, name)


def _parse_params(text: bytes, log: Log) -> tuple[bytes, ...]:
    """parse_action_params(): each has at least two characters."""
    params = [param.strip() for param in text.split(b",")]
    for param in params[: MAX_PARAMS + 1]:
        if len(param) < 2:
            raise log.fault("Invalid action param", param)
    if len(params) > MAX_PARAMS:
        raise log.fault("Too many action params")
    return tuple(params)


def check_parameter(target: Field, source: HistField) -> bool:
    """Whether a value may be a field of a synthetic event (check_synth_field())."""
    dynamic = target.is_loc
    if dynamic or target.is_string or source.is_string:
        # A fixed string only accepts one of its own size; dynamic ones count 256.
        return source.is_string and (dynamic or target.size == source.size)
    if target.type == source.type:
        return True
    return target.size == source.size and target.signed == source.signed


MAX_KEYS = 3
"""TRACING_MAP_KEYS_MAX."""

MAX_VALUES = 3
"""TRACING_MAP_VALS_MAX, the count of hits included."""

_MAX_SLOTS = 64
"""Variables, fields needed by actions, and tracked values: a word has 64 bits."""

MAX_SORT_KEYS = 2
"""TRACING_MAP_SORT_KEYS_MAX."""

MAX_KEY_SIZE = 256 + 31 * 8
"""HIST_KEY_SIZE_MAX: bytes of all keys together: one dynamic string and a stack fit."""

_VALUE_REFUSES = Flag.BUCKET | Flag.LOG2 | Flag.SYM | Flag.SYM_OFFSET | Flag.SYSCALL | Flag.STACKTRACE
_VARIABLE_REFUSES = Flag.GRAPH | Flag.PERCENT | Flag.BUCKET | Flag.LOG2


@attrs.frozen
class SortKey:
    index: int
    """0: the count of hits; then the values, then the keys."""
    descending: bool = False
    """The largest first."""


@attrs.frozen(eq=False)
class Definition:
    """The definition of a hist trigger of one event."""

    keys: tuple[HistField, ...]
    """One to three."""
    values: tuple[HistField, ...]
    """Without the count of hits, which always comes first."""
    variables: tuple[HistField, ...]
    """In the order of their definition."""
    sort: tuple[SortKey, ...]
    """One or two."""
    key_size: int
    """Bytes of all keys."""
    parts: Parts
    uses_timestamp: bool
    """The instance's clock is set to the trigger's."""
    timestamp_in_usecs: bool
    """Time stamps are microseconds."""
    actions: tuple[Action, ...] = ()
    """In the written order."""
    references: tuple[Reference, ...] = ()
    """Variables of other triggers that it reads."""
    slots: tuple[tuple[int, HistField | None], ...] = ()
    """Values of each entry besides sums: when they are set (_hist.When) and from which field. The variables
    come first."""
    trackers: tuple[int, ...] = ()
    """For each action with onmax or onchange: the slot to compare with."""
    parameters: tuple[tuple[tuple[bool, int], ...], ...] = ()
    """For each parameter of each action: (True, its number) for a reference, else (False, its slot)."""

    def text(self) -> bytes:
        """The trigger's line, without its actions (event_hist_trigger_print())."""
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
        return b"".join(action.text() for action in self.actions)

    def _sort_text(self, key: SortKey) -> bytes:
        text = b"hitcount" if not key.index else field_text(self.column(key))
        return text + (b".descending" if key.descending else b"")

    def column(self, key: SortKey) -> HistField:
        """The value or key of a sort key; not for the count of hits."""
        return (*self.values, *self.keys)[key.index - 1]

    def identity(self) -> tuple[object, ...]:
        """Equal for definitions that are the same (hist_trigger_match()): all parts but size, clock and name.
        The kernel compares expressions by their kind alone, so it takes `vals=a+b` for `vals=a-b`."""
        return (
            tuple(map(_field_identity, self.keys)),
            tuple(map(_field_identity, self.values)),
            tuple(map(_field_identity, self.variables)),
            self.sort,
            tuple(action.text() for action in self.actions),
            tuple((when, field and _field_identity(field)) for when, field in self.slots),
        )

    def of_size(self, bits: int) -> "Definition":
        """The same with a table of 2^bits entries."""
        return attrs.evolve(self, parts=attrs.evolve(self.parts, bits=bits))


def _field_identity(field: HistField) -> tuple[object, ...]:
    return (field_text(field), field.flags.value, field.type, field.size, field.signed, field.offset)


def define(parts: Parts, context: Context) -> Definition:
    """HistError: EINVAL; EDOM, ENOMEM as `parse_expression`; ENOENT (nohitcount without another value)."""
    log = context.log
    actions = tuple(parse_action(text, log, context.variables.event_exists) for text in parts.actions)
    context.matches = [action.match for action in actions if action.handler is Handler.ONMATCH]
    assignments = _assignments(parts, log)
    context.own = {}
    for name, text in assignments:
        context.own.setdefault(name, text)
    values = _values(parts, context)
    variables: list[HistField] = []
    for name, text in assignments:
        if context.variables.is_defined(name) or any(name == other.var_name for other in variables):
            raise log.fault("Variable already defined", name)
        # In the kernel the variable then refers to the part before the operator, here to the whole.
        own = context.own.get(text[1:], text) if any(text == b"$" + v.var_name for v in variables) else text
        text = text if own.startswith(b"$") else own
        variables.append(_variable(context, name, text))
        variables[-1].var_index = len(variables) - 1
    keys = _keys(parts, context)
    key_size = sum(key.size for key in keys)
    sort = _sort_keys(parts, log, [*values, *keys])
    made = _Actions(context, variables, keys)
    for action in actions:
        made.add(action)
    return Definition(
        keys=tuple(keys),
        values=tuple(values),
        variables=tuple(variables),
        sort=tuple(sort),
        key_size=key_size,
        parts=parts,
        uses_timestamp=context.uses_timestamp,
        timestamp_in_usecs=context.timestamp_in_usecs,
        actions=actions,
        references=tuple(context.references),
        slots=tuple(made.slots),
        trackers=tuple(made.trackers),
        parameters=tuple(made.parameters),
    )


class _Actions:
    """The slots that the actions of a definition need in each entry (create_actions())."""

    def __init__(self, context: Context, variables: list[HistField], keys: list[HistField]) -> None:
        self._context = context
        self._keys = keys
        self._variables = variables
        self.slots: list[tuple[int, HistField | None]] = [(0, variable) for variable in variables]
        self.trackers: list[int] = []
        self.parameters: list[tuple[tuple[bool, int], ...]] = []
        self._saves = False

    def add(self, action: Action) -> None:
        log = self._context.log
        tracker = -1
        if action.handler is not Handler.ONMATCH:
            if not action.subject.startswith(b"$"):
                raise log.fault("For onmax(x) or onchange(x), x must be a variable", action.subject)
            if self._own(action.subject[1:]) is None:
                raise log.fault("Couldn't find onmax or onchange variable", action.subject[1:])
            tracker = self._slot(2, None)
        self.trackers.append(tracker)
        if action.kind is Kind.SAVE:
            if self._saves:
                raise log.fault("Can't have more than one save() action per hist", errno=errno.EEXIST)
            self._saves = True
            self.parameters.append(tuple((False, self._save(param)) for param in action.params))
        elif action.kind is Kind.SNAPSHOT:
            self.parameters.append(())
        else:
            self.parameters.append(self._trace(action))

    def _slot(self, when: int, field: HistField | None) -> int:
        if len(self.slots) == _MAX_SLOTS:
            raise self._context.log.fault("Too many field variables defined")
        self.slots.append((when, field))
        return len(self.slots) - 1

    def _own(self, name: bytes) -> int | None:
        for index, variable in enumerate(self._variables):
            if variable.var_name == name:
                return index
        return None

    def _save(self, param: bytes) -> int:
        try:
            return self._slot(1, self._field(param))
        except HistError:
            self._context.log.add("Couldn't create field variable", param)
            raise self._context.log.refused(f"save() takes fields of the event, not {param!r}") from None

    def _field(self, param: bytes) -> HistField:
        try:
            return parse_atom(self._context, param, Flag.VAR)
        except HistError:
            raise self._context.log.fault("Couldn't parse field variable", param) from None

    def _trace(self, action: Action) -> tuple[tuple[bool, int], ...]:
        """trace_action_create()."""
        log = self._context.log
        target = self._context.variables.synthetic(action.synthetic)
        if target is None:
            raise log.fault("Couldn't find synthetic event", action.synthetic)
        found: list[tuple[bool, int]] = []
        for position, param in enumerate(action.params):
            is_reference, index, source = self._parameter(action, param)
            if position >= len(target) or not check_parameter(target[position], source):
                raise log.fault("Param type doesn't match synthetic event field type", param.lstrip(b"$"))
            found.append((is_reference, index))
        if len(found) != len(target):
            raise log.fault("Param count doesn't match synthetic event field count", action.synthetic)
        return tuple(found)

    def _parameter(self, action: Action, param: bytes) -> tuple[bool, int, HistField]:
        system, event, name = b"", b"", param
        if param.count(b".") > 1:
            system, event, name = param.split(b".", 2)
        if not name.startswith(b"$"):
            return self._field_parameter(action, system, event, name)
        if not system:
            index = self._own(name[1:])
            if index is not None:
                return False, index, self._variables[index]
            if action.handler is Handler.ONMATCH:
                system, event = action.match
        reference = self._context.variables.reference(self._context, system, event, name[1:])
        if reference is None:
            raise self._context.log.fault("Couldn't find param", name[1:])
        return True, reference.var_index, reference

    def _field_parameter(
        self, action: Action, system: bytes, event: bytes, name: bytes
    ) -> tuple[bool, int, HistField]:
        """trace_action_create_field_var(): a field of this event, else of the matched one."""
        context = self._context
        logged = len(context.log.entries)
        if not system or (system, event) == (context.system, context.event):
            try:
                field = self._field(name)
            except HistError:
                if system or action.handler is not Handler.ONMATCH:
                    raise
                system, event = action.match
            else:
                return False, self._slot(0, field), field
        reference = context.variables.field_variable(context, system, event, name, self._keys)
        if reference is None:
            raise context.log.refused(f"{name!r} is not a field of this event, nor of the other one")
        del context.log.entries[logged:]
        return True, reference.var_index, reference


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
        check_number(context, value, text)
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
    if Flag.EXECNAME in variable.flags:  # update_var_execname()
        variable.flags |= Flag.STRING
        variable.type, variable.size, variable.signed = b"char[]", MAX_STRING, False
    if Flag.STACKTRACE in variable.flags:
        raise context.log.refused("a variable cannot be a stack: there is no kernel stack here")
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
