"""`utracefs enable` and `utracefs disable`: the switches events/SYSTEM/NAME/enable."""

import contextlib
from collections.abc import Iterable, Iterator

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    available_events,
    connect,
    directory_option,
    events_argument,
    selected,
    standing_events,
    write_word,
)
from utracefs.cli.event_options import (
    NO_FILTER,
    STANDING_SETTINGS,
    Wanted,
    WantedEvents,
    all_filters,
    filter_option,
    trigger_option,
)
from utracefs.cli.instance_option import Place, instance_option
from utracefs.tree.event_names import EventName, parse_event_list, select
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.text import bytes_of, text_of


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option()
@click.option("--standing", is_flag=True, help="Events that are registered later, too (standing_events).")
@filter_option("Record only what this is true for: 'status >= 500'.")
@trigger_option("Set a trigger: 'traceoff if status == 503', 'snapshot', ...")
@events_argument(required=True)
def enable(
    directory: str | None,
    place: Place,
    standing: bool,
    filters: tuple[str, ...],
    triggers: tuple[str, ...],
    events: tuple[str, ...],
) -> int:
    """Record EVENTs into the ring buffer: SYSTEM:NAME, NAME, or globs of either."""
    for option, texts in (("--filter", filters), ("--trigger", triggers)):
        if not all(text.strip() for text in texts):
            raise click.UsageError(f"{option} is empty")
    with connect(directory, place) as tree:
        wanted = [Wanted(pattern, all_filters(filters), triggers) for pattern in events]
        asked = WantedEvents(tree, place, wanted)
        filtered = events if filters else ()
        chosen = (
            select(events, available_events(tree))
            if standing
            else selected(tree, events, " yet; --standing enables it when a program declares it")
        )
        with _filters_restored(tree, place, filtered, asked):
            asked.set_filters()
            with _switched_on(tree, place, chosen):
                asked.set_triggers()
                if standing:
                    asked.begin()
    return int(bool(asked.refused))


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option()
@events_argument(required=True)
def disable(directory: str | None, place: Place, events: tuple[str, ...]) -> None:
    """Stop recording EVENTs. Also removes standing lines for the same EVENT; filters and triggers of existing
    events are kept."""
    with connect(directory, place) as tree:
        standing = standing_events(tree, place)
        stood = [pattern for pattern in events if pattern in standing]
        for pattern in stood:
            write_word(tree, place.path("standing_events"), f"!{pattern}")
        for file in STANDING_SETTINGS:
            for line in tree.read_file(place.path(file)).split(b"\n"):
                if text_of(line.partition(b" ")[0]) in stood:
                    tree.write_file(place.path(file), b"!" + line + b"\n", truncate=False)
        # A pattern that was listed need not match an event now.
        chosen = selected(tree, [pattern for pattern in events if pattern not in stood])
        _switch(tree, place, [*chosen, *select(stood, available_events(tree))], b"0\n")


@contextlib.contextmanager
def _filters_restored(
    tree: Tracefs, place: Place, patterns: Iterable[str], asked: WantedEvents
) -> Iterator[None]:
    """Restore the earlier filter of each event that refuses the new one, since a refused filter removes it,
    as in the kernel; after a Failure those of all events. Until then they have none, or the new one."""
    events = select(patterns, available_events(tree))
    paths = [place.path(f"{event.directory}/filter") for event in events]
    earlier = dict(zip(events, zip(paths, tree.read_files(paths), strict=True), strict=True))

    def restore(those: Iterable[EventName | str]) -> None:
        for path, shown in (earlier[event] for event in those if event in earlier):
            if isinstance(shown, bytes):
                is_filter = shown != b"none\n" and b"\nparse_error: " not in shown
                with contextlib.suppress(FileNotFoundError):
                    tree.write_file(path, shown[:-1] if is_filter else bytes_of(NO_FILTER))

    try:
        yield
    except Failure:
        restore(events)
        raise
    restore(event for event, _, refusal in asked.refused if refusal.what == "filter")


@contextlib.contextmanager
def _switched_on(tree: Tracefs, place: Place, events: Iterable[EventName]) -> Iterator[None]:
    """Before triggers are set, which act at once: `traceoff` would come before the first record. After a
    Failure they are off as before."""
    before = parse_event_list(tree.read_file(place.path("set_event")))
    _switch(tree, place, events, b"1\n")
    try:
        yield
    except Failure:
        _switch(tree, place, [event for event in events if event not in before], b"0\n")
        raise


def _switch(tree: Tracefs, place: Place, events: Iterable[EventName], value: bytes) -> None:
    for event in events:
        tree.write_file(place.path(f"{event.directory}/enable"), value)
