"""`utracefs hist`: count records by the values of their fields, live.

    utracefs hist http_request status                       how many of each status
    utracefs hist http_request path --vals usec             and the sum of usec
    utracefs hist http_request usec.log2 --filter 'status == 200'

The counting is a hist trigger in a private instance without recording, which is removed with the connection,
however the command ends, and with which it continues after a restart of the daemon. The command waits for an
event that is not declared yet, and counts it from its first record on. Without KEYS it shows the event's
existing histograms.

    with a terminal     a table that is renewed every --interval, until Ctrl-C
    without             the table once, at the end; with --interval that often, too
    --json              a list, as often as the table without a terminal
    with a COMMAND      while it runs; once, at the end, since the terminal is its own
"""

import contextlib
import math
import re
import sys
import time
from collections.abc import Sequence
from functools import partial

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    EVENT_PATTERN,
    connect,
    directory_option,
    duration_option,
    json_option,
    seconds_option,
    selected,
    subbuf_size_option,
    tell,
)
from utracefs.cli.completion import complete_key
from utracefs.cli.event_options import CHECK_S, Wanted, WantedEvents, all_filters, filter_option
from utracefs.cli.instance_option import TOP, Place, instance_option
from utracefs.cli.live.hist_view import JsonView, LiveView, PlainView, Shown
from utracefs.cli.losses import AS_FAR_AS_REPORTED
from utracefs.cli.run.choose_daemon import running_or_own
from utracefs.cli.run.ledger import Account, Ledger
from utracefs.cli.run.own_instance import own_instance
from utracefs.cli.run.run_loop import run_steps, signals_blocked
from utracefs.cli.run.traced_command import Launch, launch_options, launched
from utracefs.cli.run.watch import Watch, come_back
from utracefs.cli.terminal import quit_key
from utracefs.tree.event_names import similar_event
from utracefs.tree.tracefs import Tracefs

INTERVAL_S = 1.0
"""Interval of updating a terminal, and of reading the losses."""


MAX_KEYS = 3
"""TRACING_MAP_KEYS_MAX of the kernel."""


class _HistCommand(click.Command):
    """The words after `--` are the command, those before it the event, unless -e names it, and the keys."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[end + 1 :])
        rest = super().parse_args(ctx, args[:end])
        first, named = ctx.params["event"], ctx.params.pop("named")
        if named is not None:
            ctx.params["event"] = named
            ctx.params["keys"] = (*filter(None, [first]), *ctx.params["keys"])
        elif first is None and not ctx.resilient_parsing:
            raise click.UsageError("Missing argument 'EVENT'", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


_RANGE = re.compile(r"(\w+)\.(?:log2|buckets=\w+)")
"""A key whose values are ranges, alone."""

_COMMAND = "utracefs.cli.live.hist.command"


@click.command(cls=_HistCommand, context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("Without KEYS: of this instance.")
@click.option(
    "--vals",
    metavar="FIELDS",
    multiple=True,
    shell_complete=complete_key,
    help="Fields to sum up, beside hitcount; at most two.",
)
@click.option(
    "--sort",
    metavar="FIELDS",
    multiple=True,
    shell_complete=complete_key,
    help="By these keys or values, .ascending or .descending. [default: hitcount.descending; a KEY with .log2"
    " or .buckets alone: by its value]",
)
@click.option("--size", metavar="N", type=click.IntRange(min=1), help="Limit of entries. [default: 2048]")
@subbuf_size_option
@filter_option("Count only what this is true for: 'status >= 500'.")
@seconds_option("--interval", "interval_s", "Time between updates of the table. [default: 1s on a terminal]")
@click.option("--once", is_flag=True, help="Print once, after the interval, and end.")
@duration_option("Count for 10 seconds, 5m, 2h, ...")
@launch_options
@json_option
@click.option(
    "-e",
    "--event",
    "named",
    metavar="EVENT",
    type=EVENT_PATTERN,
    help="EVENT, if it is not the first argument.",
)
@click.argument("event", type=EVENT_PATTERN, required=False)
@click.argument("keys", nargs=-1, metavar="[KEYS...]", shell_complete=complete_key)
@click.pass_context
def hist(
    ctx: click.Context,
    directory: str | None,
    place: Place,
    vals: tuple[str, ...],
    sort: tuple[str, ...],
    size: int | None,
    subbuf_size_kb: int | None,
    filters: tuple[str, ...],
    interval_s: float | None,
    once: bool,
    duration_s: float | None,
    launch: Launch,
    as_json: bool,
    event: str,
    keys: tuple[str, ...],
) -> int:
    """Count the records of EVENT by KEYS, at most three of its fields, until Ctrl-C or while COMMAND runs.

    KEYS are fields, common_pid, common_cpu, common_stacktrace, with a modifier: .log2, .buckets=N, .hex,
    .execname (common_pid). Without KEYS: the histograms that EVENT has already.

    utracefs hist http_request path status --vals usec --filter 'status >= 500'
    """
    command: tuple[str, ...] = ctx.meta[_COMMAND]
    # Without KEYS nothing is changed: the histograms that others made are shown.
    if not keys:
        if vals or sort or size or subbuf_size_kb or filters or command or interval_s or once or duration_s:
            raise click.UsageError("give KEYS, the fields to count by")
        _show_present(directory, place, event, JsonView() if as_json else PlainView())
        return 0
    if len(keys) > MAX_KEYS:
        raise click.UsageError(f"a histogram has at most {MAX_KEYS} keys, not {len(keys)} ({' '.join(keys)})")
    if place != TOP:
        raise click.UsageError(
            "-B shows histograms of that instance; KEYS make one in an instance of its own"
        )
    live = not as_json and not once and not command and sys.stdout.isatty()
    view: PlainView = JsonView() if as_json else LiveView() if live else PlainView()
    renew_s = interval_s or INTERVAL_S if live else None if once else interval_s
    if once:
        duration_s = duration_s or interval_s or INTERVAL_S
    text = trigger_text(keys, vals, sort, size, all_filters(filters))
    with contextlib.ExitStack() as stack:
        # In an instance of our own, so that nothing is left and no other user's histogram is changed. Signals
        # wait until that is sure to be removed.
        blocked = stack.enter_context(signals_blocked(alone=not command))
        tree, own = stack.enter_context(running_or_own(directory, has_command=bool(command)))
        surroundings = stack.enter_context(launched(launch, tree, command))
        place = stack.enter_context(own_instance(tree, "hist", returns=not own))
        if subbuf_size_kb is not None:
            tree.write_file(place.path("buffer_subbuf_size_kb"), b"%d\n" % subbuf_size_kb)
        counts = _Counts(tree, place, event, view, renew_s)
        asked = WantedEvents(tree, place, [Wanted(event, triggers=(text,))])
        asked.begin(enable=False)
        shown = counts.shown
        if not shown.events() and not command and sys.stderr.isatty():
            tell(f"{event}: no such event yet; waiting for it{similar_event(event, shown.there)}")
        stack.enter_context(view)
        quitting = stack.enter_context(quit_key(wanted=live))
        watch = Watch(counts, asked, None if own else partial(come_back, tree, place))
        status = watch.run(
            lambda step: run_steps(
                command,
                lambda: None if quitting(0) else step(),
                blocked=blocked,
                surroundings=surroundings,
                duration_s=duration_s,
            )
        )
        # Last, when the command has ended: all its records are counted.
        with watch.until_the_daemon_goes():
            asked.check()
            asked.check_log()
            counts.end()
    counts.tell_losses()
    if watch.error is not None:
        raise Failure(str(watch.error.filename), f"{watch.error.strerror}; the last counts are lost")
    if not shown.anything and not asked.refused:
        tell(f"{event}: no such event came{similar_event(event, shown.there)}")
        return status or 1
    return status or asked.finish()


def _show_present(directory: str | None, place: Place, event: str, view: PlainView) -> None:
    with connect(directory, place) as tree:
        selected(tree, [event])
        view.show(found := Shown(tree, place, event).read())
        if not found:
            raise Failure(event, "has no histogram; give KEYS, the fields to count by")


class _Counts:
    """The counts of one instance, shown every `renew_s`; None: at the end."""

    def __init__(
        self, tree: Tracefs, place: Place, event: str, view: PlainView, renew_s: float | None
    ) -> None:
        self.shown = Shown(tree, place, event)
        self._ledger = Ledger(tree, place)
        self._view = view
        self._renew_s = renew_s or math.inf
        self._due = time.monotonic() + self._renew_s
        self._read_due = 0.0
        self._account = Account()
        self._came_back = False

    def step(self) -> float:
        now = time.monotonic()
        if now >= self._read_due:
            self._account = self._ledger.read(self.shown.events())
            self._read_due = now + INTERVAL_S
        if now >= self._due:
            self._view.show(self.shown.read())
            self._due = time.monotonic() + self._renew_s
        return max(0.0, min(self._due - time.monotonic(), CHECK_S))

    def come_back(self) -> None:
        self._came_back = True
        self._ledger.come_back()

    def end(self) -> None:
        self._view.show(self.shown.read())
        self._account = self._ledger.read(self.shown.events())

    def tell_losses(self) -> None:
        if lost := self._account.lost:
            large = self._account.too_large
            where = f", {large} too large for a page (--subbuf-size KB)" if large else ""
            until = AS_FAR_AS_REPORTED if self._came_back else ""
            tell(f"{lost} records were lost before they could be counted{where}{until}")


def trigger_text(
    keys: Sequence[str], vals: Sequence[str], sort: Sequence[str], size: int | None, filter_text: str
) -> str:
    """The text for the file `trigger`."""
    parts = [f"hist:keys={','.join(keys)}"]
    if vals:
        parts.append(f"vals={','.join(vals)}")
    range_key = _RANGE.fullmatch(",".join(keys))
    parts.append(f"sort={','.join(sort) or (range_key[1] if range_key else 'hitcount.descending')}")
    if size is not None:
        parts.append(f"size={size}")
    return ":".join(parts) + (f" if {filter_text}" if filter_text else "")
