"""The options of `utracefs record` for long recordings: `--flight`, `--switch-output`, `--max-files`,
`--compress`, `--lossless`."""

from typing import Any, Final

import attrs
import click

from utracefs.cli import F
from utracefs.cli.common import with_options
from utracefs.cli.record.amount import Amount, amount_type
from utracefs.recordings.trace_dat.compression import NAMES, Compression, compression_of
from utracefs_protocol.limits import MAX_LOSSLESS_US

SIGNAL: Final = "signal"
LOSSLESS_MS: Final = 1000


@attrs.frozen
class LongOptions:
    flight: Amount | None = None
    switch_output: Amount | None = None
    most: int | None = None
    compression: Compression | None = None
    lossless_us: int = 0


def long_options(function: F) -> F:
    """The parameter `long` is a LongOptions."""

    def run(
        *args: Any,
        flight: Amount | None,
        switch_output: Amount | None,
        max_files: int | None,
        compress: str | None,
        lossless: bool,
        lossless_ms: int | None,
        **options: Any,
    ) -> Any:
        # Options that contradict each other; `_check_long` of record.py has the others.
        if flight and switch_output:
            raise click.UsageError("--flight writes when something happens, --switch-output always: take one")
        if max_files and not (flight or switch_output):
            raise click.UsageError("--max-files goes with --switch-output or --flight")
        lossless_us = 1000 * (lossless_ms or LOSSLESS_MS) if lossless or lossless_ms else 0
        long = LongOptions(flight, switch_output, max_files, _compression(compress), lossless_us)
        return function(*args, long=long, **options)

    return with_options(
        function,
        run,
        click.option(
            "--lossless-ms",
            metavar="MS",
            type=click.IntRange(1, MAX_LOSSLESS_US // 1000),
            help=f"--lossless with another bound. [default: {LOSSLESS_MS}]",
        ),
        click.option(
            "--lossless",
            is_flag=True,
            help="Let programs wait for room in full buffers instead of losing records; not for a recorder or"
            " a daemon that makes no room for the time of --lossless-ms.",
        ),
        click.option(
            "--compress",
            metavar="[zstd|zlib]",
            is_flag=False,
            flag_value="any",
            type=click.Choice(["any", *NAMES]),
            help="Compress the trace.dat at its end; zstd, if its library is there. `trace-cmd list -c` says"
            " which one a trace-cmd reads.",
        ),
        click.option(
            "--max-files",
            "--switch-max-files",
            "max_files",
            metavar="N",
            type=click.IntRange(min=1),
            help="Keep only the last N files of --switch-output or --flight. [default: all; --flight: 10]",
        ),
        click.option(
            "--switch-output",
            metavar="SIZE|TIME|signal",
            type=amount_type(SIGNAL),
            help="Begin a new file at 100M, 10m, or only at SIGUSR2 (`signal`); the files are"
            " FILE.YYYYMMDDhhmmssNN.",
        ),
        click.option(
            "--flight",
            metavar="SIZE|TIME",
            type=amount_type(),
            help="Keep the last 64M, or 60s, in the ring buffer, and write them to FILE.YYYYMMDDhhmmssNN at"
            " SIGUSR2, `utracefs dump`, a trigger 'snapshot if usec > 100000', when COMMAND fails, and"
            " without COMMAND at the end.",
        ),
    )


def _compression(name: str | None) -> Compression | None:
    if name is None:
        return None
    try:
        return compression_of("zstd" if name == "any" else name)
    except ImportError:
        if name == "any":
            return compression_of("zlib")
        raise click.UsageError(
            "--compress=zstd: its library is not installed: pip install 'utracefs[zstd]'"
        ) from None
