"""`utracefs status` and `utracefs list`: events, their consumers, their counts."""

from collections.abc import Mapping
from typing import Any

import click

from utracefs.cli import COMMAND_SETTINGS
from utracefs.cli.common import (
    EventStats,
    all_buffers,
    available_events,
    buffer_numbers,
    connect,
    directory_option,
    echo,
    echo_json,
    events_argument,
    json_option,
    refused_events,
    selected,
    standing_events,
)
from utracefs.cli.instance_option import TOP, Place, instance_names, instance_option
from utracefs.cli.losses import OF_ALL, all_lost, ever, lost_text, share
from utracefs.cli.run.ledger import read_stats
from utracefs.cli.tables import table_lines
from utracefs.recordings.trace_dat.format import clock_in_use
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.text import text_of


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("The buffer and the consumer of this instance, instead of the top one and all.")
@events_argument(required=False)
@json_option
def status(directory: str | None, place: Place, events: tuple[str, ...], as_json: bool) -> None:
    """Show the daemon, its ring buffer, and for each EVENT (default: all) its consumers and counts.

    A line for each consumer that is or was (detached) attached to it; its three numbers add up to the records
    emitted while it was attached. Without EVENT several detached ones are one line. Further lines list the
    records that programs refused to write, because a value did not fit its field.
    """
    with connect(directory, place) as tree:
        chosen = selected(tree, events) if events else available_events(tree)
        state = buffer_state(tree, place)
        stats = read_stats(tree, chosen)
        if place != TOP:
            stats = {event: one.of(place.consumer) for event, one in stats.items()}
        rows = _event_rows(stats, users_of(tree))
        buffers = all_buffers(tree) if place == TOP else {place.name: buffer_numbers(tree, place)}
        standing = standing_events(tree, place)
        instances = sorted(instance_names(tree))
        refused = refused_events(tree, events)
        where = tree.directory
    # Everything is read by now: printing may block, and must not keep the connection.
    lost, of = all_lost(stats.values(), {} if events else buffers)
    if as_json:
        echo_json(
            {
                "directory": where,
                "instance": place.name or None,
                "instances": instances,
                "buffer": state,
                "lost": {**lost, "share": round(sum(lost.values()) / max(1, of), 6)},
                "overwritten": {name: numbers["overrun"] for name, numbers in buffers.items()},
                "standing_events": standing,
                "events": rows,
                "refused_events": refused,
            }
        )
        return
    click.echo(f"daemon    {where}")
    if place != TOP:
        echo(f"instance  {place.name}")
    on = "recording" if state["tracing_on"] else "tracing_on is 0"
    click.echo(
        f"buffer    {on}, clock {state['clock']}, {state['size_kb']} KiB on each of {state['cpus']} cpus: "
        f"{state['entries']} records, {state['overrun']} overwritten, {state['dropped']} dropped"
    )
    # Lines that would say "none" are left out.
    if standing:
        echo(f"standing  {' '.join(standing)}")
    if instances and place == TOP:
        echo(f"instances {' '.join(name + _overwritten(buffers.get(name, {})) for name in instances)}")
    if any(lost.values()):
        echo(f"losses    {lost_text(lost, of, kinds=OF_ALL)}")
    for line in refused:
        echo(f"off       {line}")
    if not rows:
        click.echo("events    none")
        return
    # An event's columns are in its first line only, one line for each consumer.
    table: list[tuple[str, ...]] = [
        ("EVENT", "USED BY", "CONSUMER", "EMITTED", "RECORDED", "FILTERED", "LOST")
    ]
    for row in rows:
        first = (f"{row['system']}:{row['name']}", " ".join(row["used_by"]) or "-")
        emitted = str(row["emitted"])
        gone = row["consumers"].keys() & row["detached"]  # with --instance there are fewer
        # Each `record`, `hist` or `top` that has ended is one: in a week they would hide the others.
        hidden = set() if events or len(gone) < 2 else gone
        for consumer, counts in row["consumers"].items() or [("-", {})]:
            if consumer in hidden:
                continue
            numbers_of = [str(counts.get(key, 0)) for key in ("recorded", "filtered", "lost")]
            if counts.get("lost"):
                numbers_of[-1] += f" ({share(counts['lost'], counts['recorded'] + counts['lost'])})"
            shown = f"{consumer} (detached)" if consumer in gone else consumer
            table.append((*first, shown, emitted, *numbers_of))
            first, emitted = ("", ""), ""
        if hidden:
            lost_by_them = sum(row["consumers"][consumer]["lost"] for consumer in hidden)
            table.append((*first, f"{len(hidden)} (detached)", emitted, "", "", str(lost_by_them)))
    for line in table_lines(table, left=range(3)):
        echo(line)
    for row in rows:
        for reason, count in row["refused"].items():
            echo(f"refused   {count} of {row['system']}:{row['name']}: {reason}")


@click.command("list", context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("With --json: show whether events are enabled in this instance.")
@events_argument(required=False)
@click.option("--fields", is_flag=True, help="Show the fields, too.")
@json_option
def list_events(
    directory: str | None, place: Place, events: tuple[str, ...], fields: bool, as_json: bool
) -> None:
    """List the EVENTs that programs have declared (default: all), oldest first."""
    with connect(directory, place) as tree:
        chosen = selected(tree, events) if events else available_events(tree)
        if not as_json and not fields:
            for event in chosen:
                echo(str(event))
            return
        enabled = set(parse_event_list(tree.read_file(place.path("set_event"))))
        formats = tree.read_files(f"{event.directory}/format" for event in chosen)
    described: list[dict[str, Any]] = []
    for event, text in zip(chosen, formats, strict=True):
        if not isinstance(text, bytes):
            continue  # removed meanwhile
        try:
            format_ = parse_format(text)
        except TraceError:
            continue
        described.append(
            {
                "system": event.system,
                "name": event.name,
                "id": format_.id,
                "enabled": event in enabled,
                "fields": [
                    {
                        "type": text_of(field.type),
                        "name": text_of(field.name),
                        "offset": field.offset,
                        "size": field.size,
                        "signed": field.signed,
                    }
                    for field in format_.fields
                ],
            }
        )
    if as_json:
        echo_json(described)
        return
    for one in described:
        declared = "; ".join(f"{field['type']} {field['name']}" for field in one["fields"])
        echo(f"{one['system']}:{one['name']} {declared}".rstrip())


def _overwritten(buffer: Mapping[str, int]) -> str:
    if not (overrun := buffer.get("overrun", 0)):
        return ""
    return f" ({overrun} overwritten, {share(overrun, ever(buffer))})"


def users_of(tree: Tracefs) -> dict[str, list[str]]:
    """Tracepoint name to `ftrace`, `perf`, `other`: user_events_status."""
    found = {}
    for line in text_of(tree.read_file("user_events_status")).split("\n"):
        if not line:
            break
        name, _, users = line.partition(" # Used by ")
        found[name] = users.split()
    return found


def buffer_state(tree: Tracefs, place: Place = TOP) -> dict[str, Any]:
    """The ring buffer of an instance, all cpus together."""
    found = buffer_numbers(tree, place)
    size = tree.read_file(place.path("buffer_size_kb")).decode().strip()
    return {
        "tracing_on": tree.read_file(place.path("tracing_on")).strip() != b"0",
        "clock": clock_in_use(tree.read_file(place.path("trace_clock"))),
        "overwrite": tree.read_file(place.path("options/overwrite")).strip() == b"1",
        "size_kb": int(size) if size.isdigit() else size,
        "cpus": found["cpus"],
        "entries": found["entries"],
        "bytes": found["bytes"],
        "overrun": found["overrun"],
        "dropped": found["dropped events"],
        "read": found["read events"],
        "late": found["late events"],
    }


def _event_rows(
    stats: Mapping[EventName, EventStats], users: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    return [
        {
            "system": event.system,
            "name": event.name,
            "used_by": users.get(event.name, []),
            "emitted": one.emitted,
            "lost_in_rings": one.lost_in_rings,
            "refused": one.refused,
            "detached": sorted(one.detached),
            "consumers": one.consumers,
        }
        for event, one in stats.items()
    ]
