"""Variables of the hist triggers of an instance: which trigger has them, and which triggers read them.

    hist:keys=id:ts0=common_timestamp.usecs                 has ts0
    hist:keys=id:d=common_timestamp.usecs-$ts0              reads it, of the entry with the same key

A trigger whose variable another one reads cannot be removed (EBUSY). An operand of an expression is read
once: then it is unset until the other event fires again.

A field of the matched event may be a parameter of an action, too. A trigger of that event with the same keys
makes a variable of it, and is removed with the last reader (create_field_var_hist()):

    hist:keys=id:onmatch(sys.start).lat(id,w)               on sys.start makes
    hist:keys=id:synthetic_w=w                              with the filter of the existing trigger
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from utracefs_protocol.events.declaration import Field
from utracefsd.consumers.ftrace.hist.expressions import Context, Reference
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField, field_text
from utracefsd.events.event import SYSTEM_SYNTHETIC, Event
from utracefsd.events.event_table import EventTable


class InstanceVariables:
    """Variables for a definition of `event` (`expressions.Variables`).

    hists: The triggers (`EventHist`) of all events of the instance, each event's in their order. fresh: The
    definition is to be attached, not to be removed. make: Attach another trigger, for a field of its event;
    None: it is refused.
    """

    def __init__(
        self,
        table: EventTable,
        event: Event,
        hists: Sequence[tuple[Event, Any]],
        *,
        fresh: bool,
        make: Callable[[Event, bytes], Any],
    ) -> None:
        self._table = table
        self._event = event
        self._hists = hists
        self._fresh = fresh
        self._make = make

    def reference(self, context: Context, system: bytes, event: bytes, name: bytes) -> HistField | None:
        """find_event_var() and create_var_ref()."""
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
        return self._fresh and self._find((self._event.system, self._event.tracepoint_name), name) is not None

    def event_exists(self, system: bytes, event: bytes) -> bool:
        return self._table.get(system, event) is not None

    def synthetic(self, name: bytes) -> Sequence[Field] | None:
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
    """The definition of a trigger that has the variable: of the other one's size, where the kernel always has
    2048 entries, and with the modifiers of its keys, which the kernel omits: otherwise entries would be
    missed."""
    definition = like.definition
    text = b"keys=" + b",".join(map(field_text, definition.keys))
    text += b":%s=%s:size=%d" % (variable, name, 1 << definition.parts.bits)
    return text if like.filter_text is None else text + b" if " + like.filter_text


_NOT_UNIQUE = "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable"


def is_read(owner: Any, hists: Iterable[tuple[Event, Any]]) -> bool:
    """Whether another trigger reads a variable of this one (check_var_refs())."""
    return any(reference.owner is owner for _, other in hists for reference in other.definition.references)
