"""The paths of an instance in the tree, and the option `-B/--instance`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import click

from utracefs.cli import F, Parsed
from utracefs.cli.completion import complete_instance
from utracefs_protocol.text import bytes_of

MAX_NAME = 255
"""Bytes of an instance's name: NAME_MAX."""


@attrs.frozen
class Place:
    name: str = ""
    """Below instances/; empty: the top one."""

    def path(self, file: str) -> str:
        return f"instances/{self.name}/{file}" if self.name else file

    @property
    def consumer(self) -> str:
        """Its name in `stats` of events."""
        return f"ftrace:{self.name}" if self.name else "ftrace"


TOP = Place()
"""The top instance, shared by all."""

if TYPE_CHECKING:
    from utracefs.tree.tracefs import Tracefs


def instance_name(text: str) -> str:
    """Check it. ValueError."""
    if not text or "/" in text or "\0" in text or text in (".", ".."):
        raise ValueError(f"{text!r} is not the name of an instance: a file name")
    if len(bytes_of(text)) > MAX_NAME:
        raise ValueError(f"{text[:20]!r}... is longer than {MAX_NAME} bytes")
    return text


INSTANCE_NAME: Final = Parsed("instance", instance_name)


def instance_option(help_text: str = "In this instance instead of the top one.") -> Callable[[F], F]:
    """`-B/--instance NAME`, like trace-cmd's -B; the parameter `place` is a Place."""
    return click.option(
        "-B",
        "--instance",
        "place",
        metavar="NAME",
        type=INSTANCE_NAME,
        callback=lambda _ctx, _param, value: Place(value or ""),
        shell_complete=complete_instance,
        help=help_text,
    )


def instance_names(tree: "Tracefs") -> list[str]:
    return [name for name, _ in tree.list_dir("instances")]
