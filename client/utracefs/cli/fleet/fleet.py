"""`utracefs fleet`: the group, and its commands that change wishes."""

import contextlib
import getpass
import re
import time
from typing import Final

import click

from utracefs.cli import COMMAND_SETTINGS, Failure, LazyGroup, Parsed
from utracefs.cli.common import EVENT_PATTERN, seconds_option
from utracefs.cli.event_options import all_filters, filter_option, trigger_option
from utracefs.cli.filter_errors import check_syntax
from utracefs.cli.fleet.options import fleet_options
from utracefs.cli.forward.server_options import pairs_option
from utracefs.fleet.buckets import Fleet
from utracefs.fleet.trigger import needs
from utracefs.fleet.wish import MAX_SAMPLE, NAME, Wish
from utracefs.forward.policy import KINDS, TRIGGER_WORDS
from utracefs.nats.errors import ApiError, NotFound, WrongLastSequence

DEFAULT_S: Final = 3600.0

COMMANDS = {
    "enable": ("utracefs.cli.fleet.fleet:enable", "Ask hosts to forward events."),
    "disable": ("utracefs.cli.fleet.fleet:disable", "End wishes."),
    "status": ("utracefs.cli.fleet.show:status", "Show wishes and hosts: results, losses, lag."),
    "events": ("utracefs.cli.fleet.show:events", "The events of all hosts."),
    "top": ("utracefs.cli.fleet.show:top", "Rates by host and event, live."),
    "stream": ("utracefs.cli.fleet.read:stream", "Print the records of all hosts, live."),
    "record": ("utracefs.cli.fleet.read:record", "Write the records of all hosts to a file."),
}


@click.group(cls=LazyGroup, lazy={"Commands": COMMANDS}, aliases={}, context_settings=COMMAND_SETTINGS)
def fleet() -> None:
    """Control the forwarders of many hosts (`utracefs forward --fleet`) over a server of NATS."""


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a wish: 1 to 64 letters, digits, _ and -")
    return text


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@click.option("--name", type=Parsed("name", _name), help="Name of the wish. [default: the first EVENT]")
@filter_option("Only records for which this is true: 'status >= 500'.")
@trigger_option("Set a trigger on these events, which --filter does not affect: 'hist:keys=status', ...")
@click.option(
    "--sample",
    metavar="N",
    type=click.IntRange(1, MAX_SAMPLE),
    default=1,
    help="Forward one of N records; the others are counted.",
)
@pairs_option(
    "--label", "labels", metavar="NAME=GLOB", help="Only hosts with such a label; `host` is the name."
)
@seconds_option("--for", "duration_s", "End by itself after this time: 30s, 15m, 4h, 7d. [default: 1h]")
@click.option("--owner", help="[default: you]")
@click.option("--replace", is_flag=True, help="Change the wish of that name.")
@click.argument("events", metavar="EVENT...", type=EVENT_PATTERN, nargs=-1, required=True)
def enable(
    fleet: Fleet,
    name: str | None,
    filters: tuple[str, ...],
    triggers: tuple[str, ...],
    sample: int,
    labels: dict[str, str],
    duration_s: float | None,
    owner: str | None,
    replace: bool,
    events: tuple[str, ...],
) -> None:
    """Ask hosts to enable EVENTs (SYSTEM:NAME, NAME, or globs of either) and to forward their records."""
    name = name or re.sub(r"[^A-Za-z0-9_-]+", "_", events[0])[:64]
    owner = getpass.getuser() if owner is None else owner
    try:
        wanted = all_filters(filters)
        check_syntax(name, wanted, triggers)
        if unknown := {word for text in triggers for word in needs(text)} - TRIGGER_WORDS:
            raise ValueError(f"there is no trigger {min(unknown)!r}; there are {' '.join(sorted(KINDS))}")
        wish = Wish(events, duration_s or DEFAULT_S, wanted, sample, labels, owner, triggers)
        data = wish.to_bytes()
    except ValueError as error:
        raise Failure(name, str(error)) from None
    fleet.create()
    try:
        if replace:
            fleet.wishes.update(name, data, fleet.wishes.get(name).sequence)
        else:
            fleet.wishes.add(name, data)
    except NotFound:
        raise Failure(name, "there is no such wish to replace") from None
    except WrongLastSequence:
        reason = f"there is a wish of this name{_owner(fleet, name)}; --replace changes it, or use --name"
        if replace:
            reason = "another operator has just changed it: see `utracefs fleet status`, and try again"
        raise Failure(name, reason) from None
    click.echo(name)
    with contextlib.suppress(OSError, ApiError):  # it needs a permission, and the wish is there
        fleet.sweep(time.time())


def _owner(fleet: Fleet, name: str) -> str:
    try:
        return f" by {Wish.from_bytes(fleet.wishes.get(name).data).owner}"
    except (NotFound, ValueError):
        return ""


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@click.argument("names", metavar="NAME...", nargs=-1)
def disable(fleet: Fleet, is_all: bool, names: tuple[str, ...]) -> None:
    """End the wishes of these NAMEs (`fleet enable` printed them)."""
    if is_all == bool(names):
        raise click.UsageError("give NAMEs of wishes, or --all")
    known = {value.key for value in fleet.wishes.present()}
    for name in known if is_all else names:
        if name not in known:
            raise Failure(name, "there is no such wish")
        fleet.wishes.delete(name)
