"""`utracefs daemon` and `utracefs completion`."""

import os

import click

from utracefs.cli import COMMAND_SETTINGS, Failure, cli
from utracefs_protocol.own_processes import python

SHELLS = ("bash", "zsh", "fish")


@click.command(
    context_settings={
        **COMMAND_SETTINGS,
        "help_option_names": [],
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def daemon(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Run a daemon in this process; takes the options of utracefsd."""
    directory = ctx.find_root().params.get("directory")
    words, env = python("utracefsd", *(["--dir", directory] if directory else []), *options)
    try:
        os.execve(words[0], words, env)
    except OSError as error:
        raise Failure(words[0], error.strerror or str(error)) from None


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL: commands, options, and event names of the running daemon.

    \b
    utracefs completion bash > ~/.local/share/bash-completion/completions/utracefs
    utracefs completion zsh > ~/.zfunc/_utracefs
    utracefs completion fish > ~/.config/fish/completions/utracefs.fish
    """
    from click.shell_completion import get_completion_class

    make = get_completion_class(shell)
    assert make is not None
    # Not `source`, which runs bash to check its version: the script may be for another machine.
    made = make(cli, {}, "utracefs", "_UTRACEFS_COMPLETE")
    click.echo(made.source_template % made.source_vars())
