"""Actions of a hist trigger: effects besides counting.

    onmatch(SYSTEM.EVENT).trace(SYNTHETIC,PARAM,...)      or the older onmatch(...).SYNTHETIC(PARAM,...)
    onmax($VARIABLE).save(FIELD,...)                      onchange likewise, and either with trace()
    onmax($VARIABLE).snapshot()                           or snapshot()

A parameter is a field of the trigger's own event, or `$x`, a variable of the trigger or of a trigger of the
matched event. Messages and their order follow onmatch_parse(), action_parse() and action_create().
"""

import enum
from collections.abc import Callable

import attrs

from utracefs_protocol.events.declaration import Field
from utracefs_protocol.hist.errors import Log
from utracefsd.consumers.ftrace.hist.fields import HistField

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
