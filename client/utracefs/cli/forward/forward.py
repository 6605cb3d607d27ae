"""`utracefs forward`: the daemon's records to another host."""

import contextlib
import ctypes
import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    connect,
    directory_option,
    duration_option,
    handling,
    seconds_option,
    tell,
    tell_absent,
    with_extras,
)
from utracefs.cli.completion import complete_of_target
from utracefs.cli.event_options import Wanted, WantedCommand, wanted_options
from utracefs.cli.filter_errors import about_the_requested_filter
from utracefs.cli.forward.server_options import pairs_option, server_options
from utracefs.cli.instance_option import TOP, Place, instance_option
from utracefs.cli.losses import Losing
from utracefs.cli.run.page_stream import fitting_ring_bytes
from utracefs.cli.tables import counted
from utracefs.fleet.agent import Agent
from utracefs.fleet.buckets import Fleet, connection_of
from utracefs.fleet.instance import instance_name
from utracefs.forward.forwarder import Forwarder
from utracefs.forward.forwarder import Wanted as Records
from utracefs.forward.losses import RING, SPOOL
from utracefs.forward.policy import Policy
from utracefs.forward.spool import MIN_SIZE, Spool, Sync
from utracefs.forward.target import Settings, open_target
from utracefs.nats.login import SECRETS
from utracefs_protocol.text import size_of

_MALLOPT = {-8: 1, -3: 32 << 20, -1: 64 << 20}
"""mallopt(3): M_ARENA_MAX, M_MMAP_THRESHOLD (its maximum), M_TRIM_THRESHOLD (this much free memory is
kept)."""


def _size(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """Bytes."""
    with contextlib.suppress(ValueError):
        if (size := size_of(text)) >= MIN_SIZE:
            return size
    raise click.BadParameter(f"{text!r} is not a size of at least 1M: 500M, 2G")


@click.command(cls=WantedCommand, context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("Only events that are enabled in this instance.")
@wanted_options(
    "Only these events, enabled or not: SYSTEM:NAME, NAME, or globs; events registered later, too. "
    "[default: all]",
    triggers=False,
)
@click.option(
    "--spool",
    metavar="DIR",
    envvar="STATE_DIRECTORY",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for records on their way. [default: $STATE_DIRECTORY]",
)
@click.option(
    "--spool-size",
    metavar="SIZE",
    callback=_size,
    default="1G",
    show_default=True,
    help="Limit of the spool; when it is full, the oldest records are dropped and counted.",
)
@click.option(
    "--fsync",
    type=click.Choice([sync.value for sync in Sync]),
    default=Sync.INTERVAL.value,
    show_default=True,
    help="Call fsync for the spool: after each batch, each second, or never.",
)
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    help="TOML file: the events and values that may leave the host. [default: all]",
)
@server_options
@pairs_option(
    "-O",
    "--option",
    "options",
    metavar="NAME=VALUE",
    shell_complete=complete_of_target,
    help="An option of the target; a wrong NAME lists them.",
)
@seconds_option(
    "--drain",
    "drain_s",
    "Time for sending at the end; the rest stays in the spool.",
    default="5s",
    with_0=True,
)
@duration_option("End after 10 seconds, 5m, 2h, ...")
@click.option("--host-name", metavar="NAME", default="", help="Name of this host. [default: the system's]")
@click.option(
    "--fleet",
    "fleet_address",
    metavar="NATS",
    help="nats://HOST: forward the events of wishes (`utracefs fleet`), instead of -e, --filter, -B.",
)
@pairs_option(
    "--label", "labels", metavar="NAME=VALUE", help="A label of this host, for the wishes of --fleet."
)
@click.argument("address", metavar="TARGET")
def forward(
    directory: str | None,
    place: Place,
    wanted: tuple[Wanted, ...],
    spool: Path,
    spool_size: int,
    fsync: str,
    policy_file: str | None,
    settings: Settings,
    drain_s: float,
    duration_s: float | None,
    host_name: str,
    fleet_address: str | None,
    labels: dict[str, str],
    address: str,
) -> int:
    """Forward records to TARGET (otlp://HOST, parquet:FOLDER, nats://HOST/STREAM, ...) until SIGTERM or
    Ctrl-C, over a spool on disk, so that they survive outages. Waits for the daemon. SIGUSR1: its status.

    utracefs forward otlp://localhost:4318 -e 'http_*' --spool /var/lib/app/spool
    """
    # With --fleet the wishes decide about records; the agent changes them in an instance of its own.
    filters = {one.filter for one in wanted}
    if len(filters) > 1:
        raise click.UsageError("the target gets one stream: give one --filter for all -e")
    if fleet_address is not None and (wanted or place != TOP):
        raise click.UsageError("--fleet decides about events and filters: give no -e, --filter and -B")
    if fleet_address is None:
        records = Records(
            [one.pattern for one in wanted],
            next(iter(filters), "") or None,
            () if place == TOP else [place.name],
            directory,
        )
    else:
        records = Records(instances=[instance_name()], directory=directory, filtered=True)
    host = host_name or os.uname().nodename
    agent: Agent | None = None
    settings = attrs.evolve(settings, directory=spool)
    with about_the_requested_filter(records.filter), contextlib.ExitStack() as stack:
        stack.enter_context(with_extras())
        # Target and policy first: a mistake in them leaves no spool behind.
        try:
            policy = Policy() if policy_file is None else Policy.read(Path(policy_file))
            if fleet_address is not None:
                agent = _agent(fleet_address, settings, policy, host, labels, directory)
            target = open_target(address, settings, others=SECRETS if fleet_address else ())
        except (LookupError, ValueError) as error:
            raise Failure("", str(error.args[0])) from None
        stack.callback(target.close)
        kept = stack.enter_context(contextlib.closing(Spool(spool, spool_size, Sync(fsync))))
        forwarder = Forwarder(
            target,
            kept,
            records,
            policy=policy,
            address=address,
            drain_s=drain_s,
            host=host,
            sample=agent.sample if agent is not None else None,
            tell=tell,
            watch=_losses_told(),
            ring_bytes=fitting_ring_bytes(),
        )
        if agent is not None:
            stack.enter_context(agent.running(forwarder.status))
        # All that has to be said and set before the first record is read.
        _tell_absent(directory, [*records.events, *policy.events, *policy.fields])
        if getattr(target, "metrics_s", 0):
            from utracefs.cli.forward.histograms import sending_histograms
            from utracefs.forward.otlp import OtlpTarget

            at = Place(records.instances[0]) if records.instances else TOP
            own = stack.enter_context(contextlib.closing(OtlpTarget(address, settings)))
            stack.enter_context(
                sending_histograms(own, at, directory=directory, policy=policy, host=host, tell=tell)
            )
        stack.enter_context(_signals(forwarder))
        _keep_memory()
        forwarder.run(duration_s)
        _tell_what_was_sent(forwarder.status(), "" if kept.is_empty else str(spool))
    return 0


def _tell_what_was_sent(status: dict[str, Any], spool: str) -> None:
    """spool: where records are still; empty: in none."""
    lost: Counter[str] = Counter()
    for causes in status["lost"].values():
        lost.update({cause: number or 0 for cause, number in causes.items()})
    causes_of = ", ".join(f"{cause} {number}" for cause, number in lost.items() if number)
    text = f"{lost.total()} lost ({causes_of})" if causes_of else "nothing lost"
    text += ", more lost that were not counted" if status["lost_unknown"] else ""
    tell(f"{status['target']}: {counted(status['records_sent'], 'record')} sent, {text}")
    if spool:
        tell(f"records stay in the spool {spool}; the next forwarder sends them")


def _tell_absent(directory: str | None, patterns: Iterable[str]) -> None:
    """They may be misspelt."""
    with contextlib.suppress(Failure), connect(directory) as tree:
        tell_absent(tree, patterns, "yet")


def _losses_told() -> Callable[[dict[str, Any]], None]:
    """Tell losses before the target while they happen."""
    rings, spool = "in rings", "in the spool"
    losing = Losing(
        "forward",
        (rings, "UTRACEFS_RING_KB=65536 for the program may hold more"),
        (spool, "a larger --spool-size, on a disk with room for it, holds more"),
    )

    def watch(status: dict[str, Any]) -> None:
        lost = {
            place: sum(n.get(cause) or 0 for n in status["lost"].values())
            for place, cause in ((rings, RING), (spool, SPOOL))
        }
        losing.look(status["records_read"] + lost[rings], lost)

    return watch


def _keep_memory() -> None:
    """Keep freed memory for the next batches, for which the system would have to zero and map it again.
    Exclude the objects of modules, which are never freed, from garbage collection."""
    gc.freeze()
    with contextlib.suppress(AttributeError):  # another C library
        for parameter, value in _MALLOPT.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def _agent(
    address: str, settings: Settings, policy: Policy, host: str, labels: dict[str, str], directory: str | None
) -> Agent:
    """ValueError: the address, the host's name or a label is invalid."""
    return Agent(
        Fleet(connection_of(address, settings, f"utracefs {host}")),
        host,
        labels,
        policy=policy,
        directory=directory,
        tell=tell,
    )


@contextlib.contextmanager
def _signals(forwarder: Forwarder) -> Iterator[None]:
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with (
        handling(lambda *_: forwarder.stop(), *ends),
        handling(lambda *_: forwarder.tell_status(), signal.SIGUSR1),
    ):
        yield
