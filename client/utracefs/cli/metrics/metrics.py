"""`utracefs metrics`: prints the metrics once, or serves them."""

import click

from utracefs.cli import COMMAND_SETTINGS
from utracefs.cli.common import directory_option, tell
from utracefs.cli.metrics.collector import Collector
from utracefs.cli.metrics.listener import Address, parse_address, serve


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.option(
    "--listen",
    "address",
    metavar="ADDRESS",
    callback=lambda _ctx, _param, value: None if value is None else parse_address(value),
    help="Serve GET /metrics until SIGTERM or Ctrl-C: unix:PATH, or 127.0.0.1:PORT (loopback only).",
)
@click.option(
    "--spool",
    "spools",
    metavar="DIR",
    multiple=True,
    type=click.Path(),
    help="Also the status of the forwarder with this spool; may be repeated.",
)
@click.option(
    "--max-events",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=200,
    show_default=True,
    help='The oldest N events have series of their own; event="other" is the sum of all others.',
)
@click.option("--text", "as_text", is_flag=True, help="Print Prometheus' older text format, for promtool.")
def metrics(
    directory: str | None, address: Address | None, spools: tuple[str, ...], max_events: int, as_text: bool
) -> int:
    """Print the numbers of a running daemon as OpenMetrics text.

    Without a daemon that answers it prints `utracefs_up 0`, and the exit status is 1.
    """
    collector = Collector(directory, max_events=max_events, spools=spools)
    if address is not None:
        if as_text:
            raise click.UsageError("--text goes without --listen: each request names its format")
        serve(address, collector.collect)
        return 0
    click.echo(collector.collect().text(is_new=not as_text), nl=False)
    if collector.why:
        tell(collector.why)
    return int(bool(collector.why))
