"""Variables of the hist triggers of an instance: who has which, and who reads them.

    hist:keys=id:ts0=common_timestamp.usecs                 has ts0
    hist:keys=id:d=common_timestamp.usecs-$ts0              reads it, of the entry with the same key

A trigger whose variable another one reads cannot be removed (EBUSY). An operand of an expression is read
once: then it is not set any more until the other event fires again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from utracefs_protocol.declaration import Field
from utracefsd.consumers.ftrace.hist.definition import Definition
from utracefsd.consumers.ftrace.hist.expressions import Context, Reference
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField
from utracefsd.events.event import SYSTEM_SYNTHETIC, Event
from utracefsd.events.event_table import EventTable

__all__ = ["InstanceVariables", "Owner", "is_read"]


class Owner(Protocol):
    """A hist trigger that is attached."""

    @property
    def definition(self) -> Definition:
        """What it counts."""


class InstanceVariables:
    """What a definition for `event` may refer to (`expressions.Variables`).

    hists: The triggers of all events of the instance, each event's in their order. fresh: The definition is to
    be attached, not to be removed.
    """

    def __init__(
        self, table: EventTable, event: Event, hists: Sequence[tuple[Event, Any]], *, fresh: bool
    ) -> None:
        self._table = table
        self._event = event
        self._hists = hists
        self._fresh = fresh

    def reference(self, context: Context, system: bytes, event: bytes, name: bytes) -> HistField | None:
        """find_event_var() and create_var_ref()."""
        if not system and not event:
            # First in what onmatch names.
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


_NOT_UNIQUE = "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable"


def is_read(owner: Owner, others: Iterator[Owner]) -> bool:
    """Whether another trigger reads a variable of this one (check_var_refs())."""
    return any(reference.owner is owner for other in others for reference in other.definition.references)
