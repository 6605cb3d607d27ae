"""The options `-e`, `--filter` and `--trigger`, and applying them to an instance.

    -e 'http_*' --filter 'status >= 500' --trigger 'snapshot if usec > 100000'

A filter and a trigger belong to the -e before them, like trace-cmd's -f and -R; without any -e to all events.
`-e a,b` is two events, with the same filters and triggers.
Several filters of one -e must all hold; with the same EVENT given twice, records pass if either passes them.

Several -e may match an event. A name takes precedence over a glob, and a later -e over an earlier one: `-e
'*' -e http_request --filter 'status >= 500'` takes all events, but of http_request only the errors. All
triggers are set.

    begin   existing events: write events/SYSTEM/NAME/filter
            later events: write standing_filters and standing_triggers; the daemon applies them when the
            event is registered, before its first record
            then standing_events enables both, so that filters are set before the first record
            then existing events: write events/SYSTEM/NAME/trigger. A trigger acts on events that are off,
            too: `traceoff` or `snapshot:1` would have been used up before the first record
    check   repeatedly: report filters and triggers that are invalid for events registered meanwhile

A filter is a Failure if it is invalid for all existing events of its -e; if there are none yet, if it is
invalid for any event. If it is invalid for an event registered later, that event is recorded unfiltered, as
after a failed write to its file `filter`: a recording can be filtered later, but missing records are lost.
"""

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import click

from utracefs.cli import F
from utracefs.cli.common import (
    available_events,
    events_option,
    refused_connections,
    refused_events,
    tell,
    tell_failure,
    with_options,
    write_word,
)
from utracefs.cli.completion import complete_filter
from utracefs.cli.filter_errors import Refusal, check_syntax, filter_refusal, logged_refusals, trigger_refusal
from utracefs.cli.instance_option import Place
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName, is_glob, matches, parse_event_list
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.events.event_header import header_name
from utracefs_protocol.text import bytes_of, text_of

if TYPE_CHECKING:
    from utracefs.tree.tracefs import Tracefs


CHECK_S = 0.1
"""Interval of looking for new events, for which an option may be invalid."""

NO_FILTER = "0"
"""Clears a filter."""

_Outcome: TypeAlias = tuple[str, str, Refusal | None]
"""The -e, the text of its filter or trigger, the reason of a refusal."""

STANDING_SETTINGS = ("standing_filters", "standing_triggers")
"""Files of an instance with lines EVENT TEXT, for events that are registered later."""

_ORDER = "utracefs.cli.event_options.order"


@attrs.frozen
class Wanted:
    """An EVENT of the options, with its filters and triggers."""

    pattern: str
    """As given: SYSTEM:NAME, NAME, or a glob of either."""
    filter: str = ""
    """Empty: all its records."""
    triggers: tuple[str, ...] = ()


class WantedCommand(click.Command):
    """A command that keeps the order of its options, which click does not pass on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_ORDER] = [param.name for param in order]
        return super().parse_args(ctx, args)


def filter_option(help_text: str) -> Callable[[F], F]:
    """`-f/--filter EXPR`, repeated."""
    return click.option(
        "-f",
        "--filter",
        "filters",
        metavar="EXPR",
        multiple=True,
        shell_complete=complete_filter,
        help=help_text,
    )


def trigger_option(help_text: str) -> Callable[[F], F]:
    """`-R/--trigger TRIGGER`, repeated."""
    return click.option("-R", "--trigger", "triggers", metavar="TRIGGER", multiple=True, help=help_text)


def wanted_options(help_text: str, *, triggers: bool = True) -> Callable[[F], F]:
    """`-e`, `--filter` and (unless not `triggers`) `--trigger` of a WantedCommand, which gets the parameter
    `wanted`: a tuple of Wanted."""
    with_triggers = triggers

    def decorate(function: F) -> Any:
        def run(
            *args: Any,
            events: Sequence[tuple[str, ...]],
            filters: Sequence[str],
            triggers: Sequence[str] = (),
            **options: Any,
        ) -> Any:
            order = click.get_current_context().meta[_ORDER]
            return function(*args, wanted=_in_order(order, events, filters, triggers), **options)

        of_triggers = trigger_option(
            "Set a trigger on the events of the preceding -e, or of all: 'traceoff if status == 503', ..."
        )
        return with_options(
            function,
            run,
            *([of_triggers] if with_triggers else []),
            filter_option("Filter the events of the preceding -e, or all: 'status >= 500'."),
            events_option(help_text, by_option=True),
        )

    return decorate


def _in_order(
    order: Iterable[str | None],
    events: Sequence[tuple[str, ...]],
    filters: Sequence[str],
    triggers: Sequence[str],
) -> tuple[Wanted, ...]:
    names, texts = iter(events), {"filters": iter(filters), "triggers": iter(triggers)}
    one_by_one: list[Wanted] = []
    last = [] if events or not (filters or triggers) else [Wanted(ALL_USER_EVENTS)]
    """Those of the last -e."""
    for name in order:
        if name == "events":
            one_by_one += last
            last = [Wanted(pattern) for pattern in next(names)]
        elif name in texts:
            option, text = ("--filter" if name == "filters" else "--trigger"), next(texts[name])
            if not last:
                raise click.UsageError(f"{option} {text!r} belongs to the -e before it, and there is none")
            if not text.strip():
                raise click.UsageError(f"{option} of {last[-1].pattern} is empty")
            if name == "filters":
                last = [attrs.evolve(one, filter=all_filters([one.filter, text])) for one in last]
            else:
                last = [attrs.evolve(one, triggers=(*one.triggers, text.strip())) for one in last]
    merged: dict[str, Wanted] = {}
    for one in one_by_one + last:
        other = merged.get(one.pattern)
        if other is not None:
            one = Wanted(
                one.pattern,
                any_filter([other.filter, one.filter]),
                tuple(dict.fromkeys(other.triggers + one.triggers)),
            )
        merged[one.pattern] = one
    return tuple(merged.values())


def all_filters(filters: Iterable[str]) -> str:
    """A filter for records that pass all of them; an empty filter passes all records."""
    return _join([one for one in filters if one], " && ")


def any_filter(filters: Sequence[str]) -> str:
    """A filter for records that pass any of them; an empty filter passes all records."""
    return "" if "" in filters else _join(filters, " || ")


def _join(filters: Iterable[str], operator: str) -> str:
    different = list(dict.fromkeys(filters))
    return operator.join(f"({one})" for one in different) if len(different) > 1 else "".join(different)


def _meaning(wanted: Iterable[Wanted], event: EventName) -> list[Wanted]:
    """Options that match the event, in increasing precedence: globs before exact names."""
    found = [one for one in wanted if matches(one.pattern, event)]
    return sorted(found, key=lambda one: not is_glob(one.pattern))


def filter_of(wanted: Iterable[Wanted], event: EventName) -> str:
    """The filter of an event; empty: none."""
    found = _meaning(wanted, event)
    return found[-1].filter if found else ""


def triggers_of(wanted: Iterable[Wanted], event: EventName) -> tuple[str, ...]:
    return tuple(dict.fromkeys(trigger for one in _meaning(wanted, event) for trigger in one.triggers))


class WantedEvents:
    """Applies the options to the command's own instance, and reports errors.

    `begin`, then `check` from time to time, `finish` at the end.
    """

    def __init__(self, tree: "Tracefs", place: Place, wanted: Sequence[Wanted]) -> None:
        self._tree = tree
        self._place = place
        self._wanted = wanted
        self._enables = True
        self._began_s = time.monotonic()
        self._refused_connections = refused_connections(tree)
        self._checked: set[EventName] = set()
        self._existing: list[EventName] = []
        """Events whose triggers are to be set."""
        self.refused: list[tuple[EventName | str, str, Refusal]] = []
        """Invalid filters and triggers."""
        self.has_settings = any(one.filter or one.triggers for one in wanted)
        """Whether there is anything to check."""

    def begin(self, *, enable: bool = True) -> None:
        """Failure for a filter or trigger that is invalid for all its events, if there are any. enable: also
        store their records."""
        self._enables = enable
        meanwhile: list[EventName] = []  # registered while the standing files were written
        if self.has_settings:
            self.set_filters()
            self._check_syntax()
            self._stand_by()
            meanwhile = self._new(available_events(self._tree))
            self._set_late(meanwhile, self._set_filter_of)
        for one in self._wanted if enable else ():
            write_word(self._tree, self._place.path("standing_events"), one.pattern)
        self.set_triggers()
        self._set_late(meanwhile, partial(self._set_triggers_of, again=True))

    def _check_syntax(self) -> None:
        """Failure for filters and triggers that are invalid for any event, where none exists yet."""
        for one in self._wanted:
            if any(matches(one.pattern, event) for event in self._checked):
                continue
            check_syntax(one.pattern, one.filter, one.triggers)

    def _stand_by(self) -> None:
        some_filter = any(one.filter for one in self._wanted)
        for one in sorted(self._wanted, key=lambda one: not is_glob(one.pattern)):
            if some_filter:
                self._write("standing_filters", f"{one.pattern} {one.filter or NO_FILTER}")
            for trigger in one.triggers:
                try:
                    self._write("standing_triggers", f"{one.pattern} {trigger}")
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    refusal = trigger_refusal(trigger, b"", error.strerror or str(error))
                    raise refusal.failure(one.pattern) from None

    def _write(self, file: str, line: str) -> None:
        """Errors of these files name the line alone: the user does not know the instance."""
        error = self._tree.refusal(self._place.path(file), bytes_of(line) + b"\n", truncate=False)
        if error is not None:
            raise OSError(error.errno, error.strerror, line)

    def set_filters(self) -> None:
        """Apply filters to existing events only. Failure as `begin`."""
        self._existing = self._new(available_events(self._tree))
        self._set_all(self._existing, self._set_filter_of)

    def set_triggers(self) -> None:
        """Set the triggers of the events of `set_filters`, once. Failure as `begin`."""
        events, self._existing = self._existing, []
        self._set_all(events, self._set_triggers_of)

    def _set_all(
        self,
        events: Iterable[EventName],
        set_one: Callable[[EventName], Iterable[_Outcome]],
    ) -> None:
        outcomes: dict[tuple[str, str], list[tuple[EventName, Refusal | None]]] = {}
        for event in events:
            for pattern, text, refusal in set_one(event):
                outcomes.setdefault((pattern, text), []).append((event, refusal))
        for (pattern, _), those in outcomes.items():
            refused = [(event, refusal) for event, refusal in those if refusal is not None]
            if refused and (not is_glob(pattern) or len(refused) == len(those)):
                event, refusal = refused[0]
                raise self._hinted(event, refusal).failure(event)
        for (_, text), those in outcomes.items():
            for event, refusal in those:
                self._refuse(event, text, refusal)

    def _set_late(
        self, events: Iterable[EventName], set_one: Callable[[EventName], Iterable[_Outcome]]
    ) -> None:
        for event in events:
            for _, text, refusal in set_one(event):
                self._refuse(event, text, refusal)

    def _new(self, events: Iterable[EventName]) -> list[EventName]:
        """The matching events that were not processed yet; marks them as processed."""
        new = [event for event in events if event not in self._checked and _meaning(self._wanted, event)]
        self._checked.update(new)
        return new

    def _set_filter_of(self, event: EventName) -> Iterator[_Outcome]:
        """Write the filter of one event."""
        meant_by = _meaning(self._wanted, event)
        if meant_by[-1].filter:
            refusal = self._set_filter(event, meant_by[-1].filter)
            yield meant_by[-1].pattern, meant_by[-1].filter, refusal

    def _set_triggers_of(self, event: EventName, *, again: bool = False) -> Iterator[_Outcome]:
        """Write the triggers of one event. again: they may exist already."""
        meant_by = _meaning(self._wanted, event)
        triggers = {trigger: one.pattern for one in meant_by for trigger in one.triggers}
        for trigger, pattern in triggers.items():
            yield pattern, trigger, self._set_trigger(event, trigger, again=again)

    def _set_filter(self, event: EventName, text: str) -> Refusal | None:
        path = self._place.path(f"{event.directory}/filter")
        error = self._tree.refusal(path, bytes_of(text))
        # ENOENT is also the kernel's errno for `Too many '('`.
        if error is None or (error.errno == errno.ENOENT and not self._is_there(event)):
            return None
        return filter_refusal(text, self._read(path), error.strerror or str(error))

    def _set_trigger(self, event: EventName, text: str, *, again: bool) -> Refusal | None:
        path = self._place.path(f"{event.directory}/trigger")
        error = self._tree.refusal(path, bytes_of(text) + b"\n", truncate=False)
        if error is None or (error.errno == errno.ENOENT and not self._is_there(event)):
            return None
        if isinstance(error, FileExistsError):
            reason = (
                "the event has one of its kind already; '!TRIGGER' appended to its file trigger removes it"
            )
            return None if again else Refusal(reason, "", "trigger")
        return trigger_refusal(text, self._read(self._place.path("error_log")), error.strerror or str(error))

    def _read(self, path: str) -> bytes:
        try:
            return self._tree.read_file(path)
        except FileNotFoundError:
            return b""

    def _is_there(self, event: EventName) -> bool:
        return event in available_events(self._tree)

    def check(self) -> None:
        """Check the events registered since the last call; report errors on stderr, each once."""
        if self.has_settings:
            if self._enables:
                events = parse_event_list(self._tree.read_file(self._place.path("set_event")))
            else:
                events = available_events(self._tree)
            for event in self._new(events):
                self._check_event(event)

    def check_registrations(self) -> None:
        """Report events that stay off since then, because the daemon refused to register them or to connect
        their programs."""
        for line in refused_events(self._tree, [one.pattern for one in self._wanted], self._began_s):
            tell(line)
        if refused := refused_connections(self._tree) - self._refused_connections:
            tell(
                f"{refused} connections of programs were refused; what they emitted until they got one, or"
                " ended, may be in no number; the daemon's log says at which limit"
            )

    def check_log(self) -> None:
        """Report invalid hist triggers of events that are already removed: an event without references is
        removed with its program."""
        known = {(str(event), text) for event, text, _ in self.refused}
        patterns = {trigger: one.pattern for one in self._wanted for trigger in one.triggers}
        for event, text, refusal in logged_refusals(patterns, self._read(self._place.path("error_log"))):
            is_known = (event, text) in known if event else any(text == other for _, other in known)
            if not is_known:
                known.add((event, text))
                self._refuse(event or patterns[text], text, refusal)

    def _check_event(self, event: EventName) -> None:
        """Check the filter and triggers that the daemon applied; it cannot report errors in them."""
        wanted_filter = filter_of(self._wanted, event)
        if wanted_filter:
            shown = self._read(self._place.path(f"{event.directory}/filter"))
            if text_of(shown).rstrip() != wanted_filter.rstrip():
                self._refuse(event, wanted_filter, filter_refusal(wanted_filter, shown, "does not fit"))
        for trigger in triggers_of(self._wanted, event):
            # If it exists already the answer is EEXIST; else the answer has the reason.
            self._refuse(event, trigger, self._set_trigger(event, trigger, again=True))

    def _refuse(self, event: EventName | str, text: str, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.refused.append((event, text, refusal))
            tell_failure(self._hinted(event, refusal).failure(event))

    def _hinted(self, event: EventName | str, refusal: Refusal) -> Refusal:
        """Add the event's fields, if a field was not found."""
        if not refusal.is_about_a_field or not isinstance(event, EventName):
            return refusal
        try:
            found = parse_format(self._tree.read_file(f"{event.directory}/format"))
        except (FileNotFoundError, TraceError):
            return refusal
        names = ", ".join(text_of(field.name) for field in found.fields)
        if header_name(found.name, found.fields) is not None:
            names += " (its own fields are in the records: record all, and filter with `report --filter`)"
        return attrs.evolve(refusal, hint=f"; it has {names or 'none'}")

    def finish(self) -> int:
        """Report errors once more; returns the exit status for them."""
        for event, text, refusal in self.refused:
            tell(f"{event}: {refusal.consequence} {text!r}: {refusal.reason}")
        return int(bool(self.refused))
