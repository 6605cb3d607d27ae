"""The daemon of a command: the running one, or its own for as long as it runs a COMMAND.

a daemon answers           it is used
none, and a COMMAND        a daemon of its own, for as long as the command runs (embedded_daemon.py)
none, and no COMMAND       an error: no program would find our daemon
"""

import contextlib
from collections.abc import Iterator

import click

from utracefs.cli import Failure
from utracefs.cli.common import NoAnswer, connect
from utracefs.tree.tracefs import Tracefs


@contextlib.contextmanager
def running_or_own(
    directory: str | None, *, has_command: bool, embedded: bool = False
) -> Iterator[tuple[Tracefs, bool]]:
    """The running daemon, or a new one, and whether it is new. A daemon that does not answer does not prevent
    the command.

    embedded: always start a new one. Without a command a running one is required: no program would find ours.
    """
    if not embedded:
        try:
            tree = connect(directory)
        except NoAnswer as error:
            if not has_command:
                raise
            click.echo(
                f"utracefs: {error.about}: {error.reason}; recording with a daemon of its own", err=True
            )
        except Failure:
            if directory or not has_command:
                raise
        else:
            with tree:
                yield tree, False
            return
    from utracefs.cli.run.embedded_daemon import embedded_daemon

    with embedded_daemon() as own, connect(own) as tree:
        yield tree, True
