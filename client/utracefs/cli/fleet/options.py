"""The server of a fleet: options, connection, errors."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import click

from utracefs.cli import F, Failure
from utracefs.cli.forward.server_options import server_options
from utracefs.fleet.buckets import Fleet, connection_of
from utracefs.forward.target import Settings
from utracefs.nats.errors import ApiError, NotFound
from utracefs.nats.login import SECRETS


def fleet_options(function: F) -> Any:
    """`--server` and those of the connection; the parameter `fleet` is a Fleet."""

    @functools.wraps(function)
    def run(*args: Any, server: str, settings: Settings, **options: Any) -> Any:
        if unknown := settings.secrets.keys() - set(SECRETS):
            raise click.UsageError(f"--secret: no secret {min(unknown)!r}; there are: {', '.join(SECRETS)}")
        try:
            fleet = Fleet(connection_of(server, settings, "utracefs fleet"))
        except ValueError as error:
            raise click.UsageError(f"--server: {error}") from None
        with contextlib.closing(fleet), told_errors(server):
            return function(*args, fleet=fleet, **options)

    return click.option(
        "-s",
        "--server",
        metavar="NATS",
        envvar="UTRACEFS_FLEET",
        required=True,
        help="nats://[USER@]HOST[:PORT]. [default: $UTRACEFS_FLEET]",
    )(server_options(run))


@contextlib.contextmanager
def told_errors(server: str) -> Iterator[None]:
    """Errors of the server as Failure."""
    try:
        yield
    except NotFound as error:
        reason = f"{error}: there is no fleet yet, `utracefs fleet enable` makes it"
        raise Failure(server, reason) from None
    except ApiError as error:
        raise Failure(server, str(error)) from None
    except BrokenPipeError:  # stdout
        raise
    except (ConnectionError, PermissionError, TimeoutError) as error:
        raise Failure(server, error.strerror or str(error)) from None
