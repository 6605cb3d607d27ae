"""Options of commands that talk to servers on other hosts: TLS, secrets, time limit."""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from utracefs.cli import Parsed
from utracefs.cli.common import seconds_option
from utracefs.cli.completion import complete_of_target

F = TypeVar("F", bound=Callable[..., Any])


def _pair(text: str) -> str:
    if not re.match(r"[^=]+=", text):
        raise ValueError(f"{text!r} has no NAME= at its begin")
    return text


PAIR: Final = Parsed("pair", _pair)


def pairs(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    return {name: text for name, _, text in (value.partition("=") for value in values)}


def server_options(function: F) -> F:
    """`--ca`, `--cert`, `--key`, `--secret`, `--timeout`, as members of `forward.target.Settings`."""
    for option in (  # the help shows the last one first
        seconds_option("--timeout", "timeout_s", "For one request to the server.", default="10s"),
        click.option(
            "--secret",
            "secrets",
            metavar="NAME=FILE",
            type=PAIR,
            multiple=True,
            callback=pairs,
            shell_complete=complete_of_target,
            help="A secret for the server. [default: systemd's credential NAME]",
        ),
        click.option("--key", metavar="FILE", help="Its key. [default: in --cert]"),
        click.option("--cert", metavar="FILE", help="Client certificate."),
        click.option(
            "--ca",
            metavar="FILE",
            help="Certificates of the authorities of the server. [default: the system's]",
        ),
    ):
        function = option(function)
    return function
