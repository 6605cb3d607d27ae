"""`utracefs instance`: make, remove and list instances, each with its own ring buffer and switches."""

from collections.abc import Callable

import click

from utracefs.cli import COMMAND_SETTINGS, Failure, Group
from utracefs.cli.common import connect, directory_option, echo, echo_json, json_option
from utracefs.cli.completion import complete_instance
from utracefs.cli.instance_option import INSTANCE_NAME, Place, instance_names
from utracefs.cli.look.status import buffer_state
from utracefs.tree.event_names import parse_event_list
from utracefs.tree.tracefs import Tracefs


@click.group(cls=Group, context_settings=COMMAND_SETTINGS)
def instance() -> None:
    """Make, remove and list instances: each has its own ring buffer, events, filters and triggers."""


@instance.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.argument("names", metavar="NAME...", type=INSTANCE_NAME, nargs=-1, required=True)
def create(directory: str | None, names: tuple[str, ...]) -> None:
    """Make instances; they stay until they are removed, also over a restart of the daemon."""
    with connect(directory) as tree:
        for name in names:
            _change(tree.mkdir, name, FileExistsError, "there is one of this name already")


@instance.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.argument(
    "names", metavar="NAME...", type=INSTANCE_NAME, nargs=-1, required=True, shell_complete=complete_instance
)
def remove(directory: str | None, names: tuple[str, ...]) -> None:
    """Remove instances with everything that they hold."""
    with connect(directory) as tree:
        for name in names:
            _change(
                tree.rmdir, name, FileNotFoundError, "no such instance; `utracefs instance list` shows all"
            )


@instance.command("list", context_settings=COMMAND_SETTINGS)
@directory_option
@json_option
def list_instances(directory: str | None, as_json: bool) -> None:
    """List the instances; with --json their settings and the content of their ring buffers."""
    with connect(directory) as tree:
        names = sorted(instance_names(tree))
        if as_json:
            echo_json([state for name in names if (state := _state(tree, name))])
            return
    for name in names:
        echo(name)


def _change(change: Callable[[str], None], name: str, refused: type[OSError], why: str) -> None:
    """Make or remove one; an error names the instance, with `why` for the expected errno."""
    try:
        change(f"instances/{name}")
    except refused:
        raise Failure(name, why) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None


def _state(tree: Tracefs, name: str) -> dict[str, object] | None:
    """None: it was removed meanwhile."""
    place = Place(name)
    try:
        events = parse_event_list(tree.read_file(place.path("set_event")))
        return {"name": name, "events": [str(event) for event in events], "buffer": buffer_state(tree, place)}
    except FileNotFoundError:
        return None
