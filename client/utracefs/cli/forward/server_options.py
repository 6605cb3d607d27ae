"""Options of commands that talk to servers on other hosts: TLS, secrets, time limit."""

from collections.abc import Callable
from typing import Any

import click

from utracefs.cli import F, Parsed
from utracefs.cli.common import seconds_option, with_options
from utracefs.cli.completion import complete_of_target
from utracefs.forward.target import Settings


def pairs_option(*names: str, metavar: str, **options: Any) -> Callable[[F], F]:
    """An option with NAME=..., repeated; the parameter is a dict."""

    def parse(text: str) -> tuple[str, str]:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise ValueError(f"{text!r} has no NAME= at its begin")
        return name, value

    return click.option(
        *names,
        metavar=metavar,
        type=Parsed("pair", parse),
        multiple=True,
        callback=lambda _ctx, _param, pairs: dict(pairs),
        **options,
    )


def server_options(function: F) -> F:
    """`--ca`, `--cert`, `--key`, `--secret`, `--timeout`; the parameter `settings` is a Settings, also of the
    options of a target."""

    def run(*args: Any, **options: Any) -> Any:
        members = ("options", "timeout_s", "ca", "cert", "key", "secrets")
        given = {name: options.pop(name) for name in members if name in options}
        return function(*args, settings=Settings(**given), **options)

    return with_options(
        function,
        run,
        seconds_option("--timeout", "timeout_s", "For one request to the server.", default="10s"),
        pairs_option(
            "--secret",
            "secrets",
            metavar="NAME=FILE",
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
    )
