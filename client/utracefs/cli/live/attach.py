"""`utracefs attach`: give events to a plug-in of the daemon (consumers/NAME), and show its report."""

import contextlib
import errno
import sys
import time
from collections.abc import Sequence

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    available_events,
    connect,
    directory_option,
    duration_option,
    echo,
    event_stats,
    events_option,
    selected,
    tell,
    write_word,
)
from utracefs.cli.completion import complete_command
from utracefs.cli.run.run_loop import Surroundings, run_steps, signals_blocked
from utracefs.cli.run.traced_command import Launch, launch_options, launched
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName, parse_event_list, select
from utracefs.tree.tracefs import Tracefs

LOOK_S = 0.02
"""Interval of looking for new events, as the tree has no standing subscriptions for plug-ins; and of asking a
busy plug-in again."""

BUSY_S = 10.0


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@events_option("Events to attach it to: SYSTEM:NAME, NAME, or globs.")
@click.option("--detach", is_flag=True, help="Detach it from the events (default: all) instead.")
@click.option("--report", "show_report", is_flag=True, help="Show its report.")
@click.option("--list", "show_list", is_flag=True, help="List plug-ins and what they are attached to.")
@duration_option("Only for 10 seconds, 5m, 2h, ...")
@launch_options
@click.argument("name", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command)
def attach(
    directory: str | None,
    events: tuple[str, ...],
    detach: bool,
    show_report: bool,
    show_list: bool,
    duration_s: float | None,
    launch: Launch,
    name: str | None,
    command: tuple[str, ...],
) -> int:
    """Attach plug-in NAME to events; with COMMAND or --duration only for that time, and then print its
    report.

    utracefs attach count -e 'user_events:*' -- python app.py
    """
    if show_list:
        with connect(directory) as tree:
            _list(tree)
        return 0
    if name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    with connect(directory) as tree:
        if name not in (known for known, _ in tree.list_dir("consumers")):
            raise Failure(name, "no such plug-in; `utracefs attach --list` shows all")
        path = f"consumers/{name}/set_event"
        if detach:
            for event in select(events or ["*"], parse_event_list(tree.read_file(path))):
                write_word(tree, path, f"!{event}")
        elif command or duration_s is not None:
            with launched(launch, tree, command) as surroundings:
                patterns = events or (ALL_USER_EVENTS,)
                return _attach_for_a_while(tree, name, patterns, command, surroundings, duration_s)
        elif events:
            for event in selected(tree, events):
                write_word(tree, path, str(event))
        elif not show_report:
            raise click.UsageError("give events (-e), --report, --detach or --list")
        if show_report:
            return _show_report(tree, name, 0)
    return 0


def _attach_for_a_while(
    tree: Tracefs,
    name: str,
    patterns: Sequence[str],
    command: Sequence[str],
    surroundings: Surroundings,
    duration_s: float | None,
) -> int:
    """Attach existing and new events until the end; then report, and detach the events attached here."""
    path = f"consumers/{name}/set_event"
    before = set(parse_event_list(tree.read_file(path)))
    lost_before = _lost(tree, name)
    attached: set[EventName] = set()

    def step() -> float:
        for event in select(patterns, available_events(tree)):
            if event not in before and event not in attached:
                with contextlib.suppress(FileNotFoundError):
                    write_word(tree, path, str(event))
                    attached.add(event)
        return LOOK_S

    try:
        with signals_blocked(alone=not command) as blocked:
            step()
            status = run_steps(
                command, step, blocked=blocked, surroundings=surroundings, duration_s=duration_s
            )
        status = _show_report(tree, name, lost_before) or status
    finally:
        for event in parse_event_list(tree.read_file(path)):
            if event in attached:
                write_word(tree, path, f"!{event}")
    return status


def _show_report(tree: Tracefs, name: str, lost_before: int) -> int:
    """The status: 1 if the report does not have all records."""
    sys.stdout.buffer.write(report_of(tree, name))
    sys.stdout.buffer.flush()
    lost = _lost(tree, name) - lost_before
    if lost > 0:
        tell(f"{name} lost {lost} records: it raised an error, or was too slow; the daemon's log says which")
    return int(lost > 0)


def _lost(tree: Tracefs, name: str) -> int:
    """Records of all events that the plug-in did not get, or for which it raised an exception."""
    texts = tree.read_files(f"{event.directory}/stats" for event in available_events(tree))
    known = [event_stats(text) for text in texts if not isinstance(text, OSError)]  # else it was just removed
    return sum(stats.consumers.get(name, {}).get("lost", 0) for stats in known)


def report_of(tree: Tracefs, name: str) -> bytes:
    """A plug-in's report. OSError; EBUSY only if the plug-in is busy for BUSY_S."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return tree.read_file(f"consumers/{name}/report")
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_S)


def _list(tree: Tracefs) -> None:
    for name, _ in tree.list_dir("consumers"):
        events = parse_event_list(tree.read_file(f"consumers/{name}/set_event"))
        echo(" ".join([name, *map(str, events)]))
