"""`utracefs fleet status`, `events` and `top`: what hosts report.

Ages are by the clock of this machine against the server's."""

import sys
import time
from collections import defaultdict
from typing import Any

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, common
from utracefs.cli.common import duration_option, echo_json, json_option
from utracefs.cli.fleet.options import fleet_options
from utracefs.cli.tables import printable, table_lines
from utracefs.cli.terminal import quit_key
from utracefs.fleet.buckets import Fleet
from utracefs.fleet.report import PERIOD_S, Host
from utracefs.fleet.wish import Wish
from utracefs.tree.event_names import EventName, matches, select


def echo(text: str) -> None:
    """Print one line without control characters, since hosts and operators choose the texts."""
    common.echo(printable(text))


_SAID = 20
"""Limit of printed refusals of a wish; --json has all."""


@attrs.frozen
class _Shown:
    name: str
    wish: Wish | None
    """None: it is invalid."""
    reason: str
    left_s: float


def _hosts(fleet: Fleet) -> list[Host]:
    return sorted(map(Host.of, fleet.hosts.present()), key=lambda host: host.name)


def _wishes(fleet: Fleet, now_s: float) -> list[_Shown]:
    found = []
    for value in fleet.wishes.present():
        try:
            wish = Wish.from_bytes(value.data)
        except ValueError as error:
            found.append(_Shown(value.key, None, str(error), 0))
        else:
            found.append(_Shown(value.key, wish, "", value.time_s + wish.duration_s - now_s))
    return found


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@json_option
def status(fleet: Fleet, as_json: bool) -> int:
    """Show wishes and hosts. The exit status is 1 if a host is away, refuses a wish, or reports an error."""
    now_s = time.time()
    hosts = _hosts(fleet)
    wishes = _wishes(fleet, now_s)
    if as_json:
        echo_json({"wishes": [_told_wish(one, hosts) for one in wishes], "hosts": _told_hosts(hosts, now_s)})
    else:
        _print_wishes(wishes, hosts)
        _print_hosts(hosts, now_s)
        _print_unknown_events(wishes, hosts)
    is_well = all(
        not host.is_away(now_s)
        and not host.text("error")
        and all(text == "ended" or text == "obeyed" for text in host.wishes.values())
        for host in hosts
        if not host.members.get("is_ended")
    )
    return int(not is_well)


def _told_wish(one: _Shown, hosts: list[Host]) -> dict[str, Any]:
    members: dict[str, Any] = {
        "name": one.name,
        "left_s": max(0.0, one.left_s),
        "invalid": one.reason or None,
    }
    if one.wish is not None:
        members |= attrs.asdict(one.wish)
    return {
        **members,
        "hosts": {host.name: host.wishes[one.name] for host in hosts if one.name in host.wishes},
    }


def _told_hosts(hosts: list[Host], now_s: float) -> list[dict[str, Any]]:
    return [
        {
            "host": host.name,
            "seen_s": round(now_s - host.seen_s, 1),
            "is_away": host.is_away(now_s),
            "clock_off_s": round(host.number("time") - host.seen_s, 1),
            **host.members,
        }
        for host in hosts
    ]


def _print_wishes(wishes: list[_Shown], hosts: list[Host]) -> None:
    if not wishes:
        echo("wishes  none")
        return
    rows: list[tuple[str, ...]] = [
        ("WISH", "EVENTS", "FILTER", "HOSTS", "OWNER", "OBEYED", "REFUSED", "ENDS IN")
    ]
    for one in wishes:
        texts = [host.wishes[one.name] for host in hosts if one.name in host.wishes]
        obeyed = sum(text.startswith("obeyed") for text in texts)
        refused = sum(text.startswith("refused") for text in texts)
        ends = f"{one.left_s:.0f} s" if one.left_s > 0 else "ended"
        if one.wish is None:
            rows.append((one.name, f"invalid: {one.reason}", "", "", "", "0", str(refused), "-"))
            continue
        sample = f" 1/{one.wish.sample}" if one.wish.sample > 1 else ""
        labels = " ".join(f"{name}={glob}" for name, glob in one.wish.labels.items())
        rows.append(
            (
                one.name,
                " ".join(one.wish.events) + sample + "".join(f" -R {text!r}" for text in one.wish.triggers),
                one.wish.filter or "-",
                labels or "all",
                one.wish.owner or "-",
                str(obeyed),
                str(refused),
                ends,
            )
        )
    for line in table_lines(rows, left=range(5)):
        echo(line)


def _print_hosts(hosts: list[Host], now_s: float) -> None:
    rows: list[tuple[str, ...]] = [
        ("HOST", "LABELS", "SEEN", "ENABLED", "FORWARDED", "LOST", "UNKNOWN", "LAG", "UTRACEFS")
    ]
    for host in hosts:
        seen = f"{max(0.0, now_s - host.seen_s):.0f} s ago"
        is_new = host.members.get("is_new") is True
        ended = "ended" if host.members.get("is_ended") else "AWAY" if host.is_away(now_s) else ""
        rows.append(
            (
                host.name,
                " ".join(f"{name}={value}" for name, value in host.labels.items() if name != "host") or "-",
                f"{ended} {seen}".strip(),
                f"{len(host.names('enabled'))} of {len(host.names('events'))}",
                f"{sent:.0f}" if (sent := host.number("records_sent")) or not is_new else "not reported yet",
                str(sum(host.lost.values())),
                f"{host.number('lost_unknown'):.0f}",
                f"{host.number('lag_s'):.1f} s",
                host.text("utracefs"),
            )
        )
    for line in table_lines(rows, left=range(3)) if hosts else ["hosts   none"]:
        echo(line)
    said: dict[str, int] = defaultdict(int)
    for host in hosts:
        if host.text("error"):
            echo(f"error    {host.name}: {host.text('error')}")
        for name, text in host.wishes.items():
            if text not in ("obeyed", "ended"):
                said[name] += 1
                if said[name] <= _SAID:
                    echo(f"{name}  {host.name}: {text}")
    for name, number in said.items():
        if number > _SAID:
            echo(f"{name}  and {number - _SAID} more hosts")


def _print_unknown_events(wishes: list[_Shown], hosts: list[Host]) -> None:
    """They may be misspelt."""
    if not hosts or any(host.number("left_out") for host in hosts):
        return
    names = {name for host in hosts for name in host.names("events")}
    known = [EventName(system, event) for system, _, event in (name.partition(":") for name in names)]
    for one in wishes:
        for word in one.wish.events if one.wish is not None else ():
            if not select([word], known):
                echo(f"{one.name}  no host has an event {word} that may leave yet")


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@click.argument("patterns", metavar="[EVENT...]", nargs=-1)
@json_option
def events(fleet: Fleet, patterns: tuple[str, ...], as_json: bool) -> None:
    """List the events that programs have registered on the hosts, and where; `*` behind a host: enabled."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for host in _hosts(fleet):
        enabled = set(host.names("enabled"))
        for event in host.names("events"):
            system, _, name = event.partition(":")
            if not patterns or any(matches(one, EventName(system, name)) for one in patterns):
                found[event][host.name] = event in enabled
    if as_json:
        echo_json(found)
        return
    rows = [("EVENT", "HOSTS")] + [
        (event, " ".join(host + "*" * is_on for host, is_on in hosts.items()))
        for event, hosts in sorted(found.items())
    ]
    for line in table_lines(rows, left=range(2)):
        echo(line)


@click.command(context_settings=COMMAND_SETTINGS)
@fleet_options
@duration_option("End after this time.")
def top(fleet: Fleet, duration_s: float | None) -> None:
    """Print records a second by host and event, as hosts report them, until q or Ctrl-C."""
    end = None if duration_s is None else time.monotonic() + duration_s
    before: dict[str, Host] = {}
    rates: dict[str, dict[str, tuple[float, float]]] = {}
    with quit_key(wanted=sys.stdout.isatty()) as quitting:
        while True:
            hosts = _hosts(fleet)
            for host in hosts:
                last = before.get(host.name)
                if last is not None and host.seen_s > last.seen_s:
                    rates[host.name] = _rates(last, host)
                before[host.name] = host
            if sys.stdout.isatty():
                click.clear()
            _print_rates(rates)
            left = PERIOD_S if end is None else min(PERIOD_S, end - time.monotonic())
            if left <= 0 or quitting(left):
                return


def _rates(last: Host, host: Host) -> dict[str, tuple[float, float]]:
    """By event: records and lost records a second. A forwarder that was restarted begins anew."""
    elapsed_s = host.seen_s - last.seen_s
    found = {}
    for event in host.counts("forwarded").keys() | host.lost.keys():
        those = []
        for counts, old in ((host.counts("forwarded"), last.counts("forwarded")), (host.lost, last.lost)):
            those.append(max(0, counts.get(event, 0) - old.get(event, 0)) / elapsed_s)
        if any(those):
            found[event] = (those[0], those[1])
    return found


def _print_rates(rates: dict[str, dict[str, tuple[float, float]]]) -> None:
    rows = [("HOST", "EVENT", "RECORDS/S", "LOST/S")] + [
        (host, event, f"{records:.1f}", f"{lost:.1f}")
        for host, by_event in rates.items()
        for event, (records, lost) in sorted(by_event.items(), key=lambda one: -one[1][0])
    ]
    for line in table_lines(rows, left=range(2)):
        echo(line)
