"""`utracefs dump`: a flight recorder writes its records now. See requests.py."""

import errno
import time
from typing import Final

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import connect, directory_option, echo, seconds_option
from utracefs.cli.instance_option import TOP, Place, instance_names, instance_option
from utracefs.cli.record.requests import SUFFIX, answer_to, ask
from utracefs.tree.tracefs import Tracefs

_FAILED: Final = "failed: "
_LOOK_S: Final = 0.05


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("Only the recorder with this instance: `record --flight ... -B NAME`.")
@seconds_option("--timeout", "timeout_s", "How long to wait for the files. [default: 60s]")
def dump(directory: str | None, place: Place, timeout_s: float | None) -> None:
    """Let flight recorders (`record --flight`) write their records; prints the names of the files, as the
    recorders see them."""
    with connect(directory, place) as tree:
        asked = [(one, ask(tree, one)) for one in _recorders(tree, place)]
        end = time.monotonic() + (timeout_s or 60)
        failed = [one.name for one, request in asked if not _wait(tree, one, request, end)]
    if failed:
        raise Failure(" ".join(failed), "not written")


def _recorders(tree: Tracefs, place: Place) -> list[Place]:
    """Failure: there is none."""
    names = set(instance_names(tree))
    found = [name for name in sorted(names) if name + SUFFIX in names and place in (TOP, Place(name))]
    if not found:
        raise Failure(
            place.name, "no flight recorder is running; start one with `utracefs record --flight 64M`"
        )
    return [Place(name) for name in found]


def _wait(tree: Tracefs, place: Place, request: str, end: float) -> bool:
    """Print the answer; whether the file is written."""
    try:
        while (answer := answer_to(tree, place, request)) is None:
            if time.monotonic() > end:
                raise Failure(place.name, "the flight recorder does not answer; is it stopped?")
            time.sleep(_LOOK_S)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        raise Failure(place.name, "the flight recorder has ended meanwhile") from None
    echo(f"{place.name}: {answer.removeprefix(_FAILED)}")
    return not answer.startswith(_FAILED)
