"""Variables of the hist triggers of an instance: which trigger has them, and which triggers read them.

    hist:keys=id:ts0=common_timestamp.usecs                 has ts0
    hist:keys=id:d=common_timestamp.usecs-$ts0              reads it, of the entry with the same key

A trigger whose variable another one reads cannot be removed (EBUSY). An operand of an expression is read
once: then it is unset until the other event fires again.

An action may have a field of the matched event as a parameter, too. Then another trigger with the same keys
is attached to that event, and has the field as a variable. It has the filter of the event's existing trigger,
and is removed with its last reader (create_field_var_hist()):

    hist:keys=id:onmatch(sys.start).lat(id,w)               needs the field w of sys.start
    hist:keys=id:synthetic_w=w                              is attached to sys.start
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from utracefs_protocol.events.declaration import Field
from utracefs_protocol.events.event_format import COMMON_FIELDS
from utracefs_protocol.hist.errors import Log
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField, field_text
from utracefsd.events.event import SYSTEM_SYNTHETIC, Event
from utracefsd.events.event_table import EventTable


@attrs.frozen(eq=False)
class Reference:
    """A variable of another trigger that this one reads."""

    owner: Any
    """The trigger that has the variable."""
    slot: int
    """The variable's number there."""
    field: HistField
    """The reference; says whether it is read once."""


@attrs.define
class Context:
    fields: Sequence[Field]
    """Fields of the event."""
    log: Log
    """Errors of the command."""
    variables: "Variables"
    system: bytes = b""
    """System of the event."""
    event: bytes = b""
    """Its name."""
    own: Mapping[bytes, bytes] = attrs.Factory(dict)
    """Expressions of this definition's own variables, by name."""
    uses_timestamp: bool = False
    """A field was `common_timestamp`."""
    matches: Sequence[tuple[bytes, bytes]] = ()
    """System and event of each onmatch: variables are looked up there first."""
    references: list[Reference] = attrs.Factory(list)
    timestamp_in_usecs: bool = False
    """One of them had `.usecs`, which then applies to all."""

    def find(self, name: bytes) -> Field | None:
        """A field of the event, or a common one. Of several the last: the kernel's list is reversed."""
        return next((field for field in (*reversed(self.fields), *COMMON_FIELDS) if field.name == name), None)


@attrs.define(eq=False)
class Variables:
    """Lookup of `$x` for a definition of `event`. hists: The triggers (`EventHist`) of all events of the
    instance. fresh: The definition is to be attached, not to be removed. make: Attach another trigger, for a
    field of its event; None: it is refused."""

    _table: EventTable
    _event: Event
    _hists: Sequence[tuple[Event, Any]]
    _fresh: bool
    _make: Callable[[Event, bytes], Any]

    def reference(self, context: Context, system: bytes, event: bytes, name: bytes) -> HistField | None:
        """find_event_var() and create_var_ref(): a field with VAR_REF for a variable of another trigger;
        None: no such variable. system and event: where to look; empty: anywhere."""
        if not system and not event:
            # First the events named by onmatch.
            places = [place for place in context.matches if self._find(place, name)]
            if len(places) > 1:
                context.log.add(_NOT_UNIQUE, name)
                return None
            everywhere = dict.fromkeys((e.system, e.tracepoint_name) for e, _ in self._hists)
            places = places or [place for place in everywhere if self._find(place, name)]
            if len(places) > 1:
                context.log.add(_NOT_UNIQUE, name)
                return None
        else:
            places = [(system, event)]
        found = self._find(places[0], name) if places else None
        if found is None:
            return None
        owner, variable = found
        for known in context.references:
            if known.owner is owner and known.slot == variable.var_index:
                return known.field
        field = HistField(
            Flag.VAR_REF | variable.flags & (Flag.TIMESTAMP | Flag.TIMESTAMP_USECS | Flag.STRING),
            type=variable.type,
            size=variable.size,
            signed=variable.signed,
            name=name,
            system=system,
            event=event,
            var_index=len(context.references),
        )
        context.references.append(Reference(owner, variable.var_index, field))
        return field

    def field_variable(
        self, context: Context, system: bytes, event: bytes, name: bytes, keys: Sequence[HistField]
    ) -> HistField | None:
        """The same for a field of that event, of which a trigger with keys like these makes a variable."""
        matched = self._table.get(system, event)
        if matched is None:
            context.log.add("Couldn't find event file", name)
            return None
        alike = [
            owner
            for other, owner in self._hists
            if other is matched and _key_types(owner.definition.keys) == _key_types(keys)
        ]
        if not alike:
            context.log.add("Matching event histogram not found", name)
            return None
        variable = b"synthetic_" + name
        names = [known.var_name for owner in alike for known in owner.definition.variables]
        if variable not in names:
            made = self._make(matched, _definition_for(alike[0], variable, name)) if self._fresh else None
            if made is None:
                context.log.add("Couldn't create histogram for field", name)
                return None
            self._hists = [*self._hists, (matched, made)]
        return self.reference(context, system, event, variable)

    def is_defined(self, name: bytes) -> bool:
        """Another trigger of the event has a variable of this name."""
        return self._fresh and self._find((self._event.system, self._event.tracepoint_name), name) is not None

    def event_exists(self, system: bytes, event: bytes) -> bool:
        return self._table.get(system, event) is not None

    def synthetic(self, name: bytes) -> Sequence[Field] | None:
        """Fields of a synthetic event; None: no such event."""
        event = self._table.get(SYSTEM_SYNTHETIC, name)
        return None if event is None else event.declaration.fields

    def _find(self, place: tuple[bytes, bytes], name: bytes) -> tuple[Any, HistField] | None:
        for event, owner in self._hists:
            if (event.system, event.tracepoint_name) == place:
                for variable in owner.definition.variables:
                    if variable.var_name == name:
                        return owner, variable
        return None


def _key_types(keys: Sequence[HistField]) -> list[tuple[bytes, int, bool]]:
    """The properties that must be equal (compatible_keys())."""
    return [(key.type, key.size, key.signed) for key in keys]


def _definition_for(like: Any, variable: bytes, name: bytes) -> bytes:
    """The definition of a trigger that has the variable, with the other one's size and the modifiers of its
    keys, which the kernel omits: otherwise entries would be missed."""
    definition = like.definition
    text = b"keys=" + b",".join(map(field_text, definition.keys))
    text += b":%s=%s:size=%d" % (variable, name, 1 << definition.parts.bits)
    return text if like.filter_text is None else text + b" if " + like.filter_text


_NOT_UNIQUE = "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable"


def is_read(owner: Any, hists: Iterable[tuple[Event, Any]]) -> bool:
    """Whether another trigger reads a variable of this one (check_var_refs())."""
    return any(reference.owner is owner for _, other in hists for reference in other.definition.references)
