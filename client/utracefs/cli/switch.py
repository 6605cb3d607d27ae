"""`utracefs enable` and `utracefs disable`: the switches events/SYSTEM/NAME/enable."""

from collections.abc import Sequence

import click

from utracefs.cli import Failure
from utracefs.cli.common import (
    COMMAND_SETTINGS,
    available_events,
    connect,
    directory_option,
    events_argument,
    selected,
    standing_events,
    write_word,
)
from utracefs.cli.place import Place, instance_option
from utracefs.event_names import select
from utracefs.tracefs import Tracefs

__all__ = ["disable", "enable"]


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option()
@click.option("--standing", is_flag=True, help="Events that are registered later, too (standing_events).")
@events_argument(required=True)
def enable(directory: str | None, place: Place, standing: bool, events: tuple[str, ...]) -> None:
    """Record EVENTs into the ring buffer: SYSTEM:NAME, NAME, or globs of either."""
    with connect(directory, place) as tree:
        if standing:
            for pattern in events:
                write_word(tree, place.path("standing_events"), pattern)
        else:
            try:
                _switch(tree, place, events, b"1\n")
            except Failure as error:
                hint = "no such event yet; --standing enables it when a program declares it"
                raise Failure(error.about, hint) from None


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option()
@events_argument(required=True)
def disable(directory: str | None, place: Place, events: tuple[str, ...]) -> None:
    """Stop recording EVENTs. A line of standing_events that reads the same is taken away, too."""
    with connect(directory, place) as tree:
        standing = standing_events(tree, place)
        stood = [pattern for pattern in events if pattern in standing]
        for pattern in stood:
            write_word(tree, place.path("standing_events"), f"!{pattern}")
        # A pattern that stood there need not match anything now.
        _switch(tree, place, [pattern for pattern in events if pattern not in stood], b"0\n")
        for event in select(stood, available_events(tree)):
            tree.write_file(place.path(f"{event.directory}/enable"), b"0\n")


def _switch(tree: Tracefs, place: Place, patterns: Sequence[str], value: bytes) -> None:
    for event in selected(tree, patterns):
        tree.write_file(place.path(f"{event.directory}/enable"), value)
