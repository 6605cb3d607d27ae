"""What several commands have in common: options, the connection, output.

`--dir` may stand before or after the command's name: `utracefs --dir D status`, `utracefs status --dir D`.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from utracefs.cli import Failure
from utracefs.event_names import EventName, parse_event_list, select
from utracefs.runtime_dir import TRACEFS_SOCKET, candidates
from utracefs.tracefs import Tracefs

__all__ = [
    "ANSWER_S",
    "COMMAND_SETTINGS",
    "EventPattern",
    "available_events",
    "connect",
    "consumer_stats",
    "directory_option",
    "echo_json",
    "events_argument",
    "events_option",
    "json_option",
    "numbers",
    "selected",
]

F = TypeVar("F", bound=Callable[..., Any])

COMMAND_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

ANSWER_S = 30.0
"""How long to wait for any one answer of a daemon: it is one thread, and may just have 64 MiB to print."""

MAX_WORD_BYTES = 127
"""The longest word that set_event and standing_events take (EVENT_BUF_SIZE of kernel/trace/trace_events.c)."""


def directory_option(function: F) -> F:
    """`--dir`; the one before the command's name counts where none stands behind it."""
    return click.option(
        "--dir",
        "directory",
        metavar="DIR",
        callback=lambda ctx, _param, value: value or ctx.find_root().params.get("directory"),
        help="Directory of the daemon's sockets.",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    TextType = click.ParamType[str]
else:
    TextType = click.ParamType  # generic only since click 8.4


class EventPattern(TextType):
    """SYSTEM:NAME, a bare name, or a glob of either; completed from the events of the daemon."""

    name = "event"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        data = text.encode("utf-8", "surrogateescape")
        if not text or re.search(r"\s", text) or text.startswith("!"):
            self.fail(f"{text!r} is no event: SYSTEM:NAME, NAME, or a glob of either", param, ctx)
        if text.count(":") > 1:
            self.fail(f"{text!r} has more than one ':'", param, ctx)
        if len(data) > MAX_WORD_BYTES:
            self.fail(f"{text[:20]!r}... is longer than {MAX_WORD_BYTES} bytes", param, ctx)
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        directory = ctx.params.get("directory") or ctx.find_root().params.get("directory")
        try:
            with Tracefs(directory, timeout_s=1.0) as tree:
                events = available_events(tree)
        except OSError:
            return []
        # bash cuts words at `:`, so the bare names are what works everywhere.
        names = sorted({event.name for event in events} | {str(event) for event in events})
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def events_option(help_text: str) -> Callable[[F], F]:
    """`-e EVENT`, repeated."""
    return click.option(
        "-e", "--event", "events", metavar="EVENT", type=EventPattern(), multiple=True, help=help_text
    )


def events_argument(*, required: bool) -> Callable[[F], F]:
    """EVENT..., as arguments."""
    return click.argument("events", metavar="EVENT...", type=EventPattern(), nargs=-1, required=required)


def connect(directory: str | None) -> Tracefs:
    """A connection to the tree, or a Failure that says what to do."""
    try:
        return Tracefs(directory, timeout_s=ANSWER_S)
    except OSError as error:
        path = str(error.filename or os.path.join(candidates(directory)[0], TRACEFS_SOCKET))
        raise Failure(path, why_no_connection(error)) from None


def why_no_connection(error: OSError) -> str:
    """What a failed connect(2) means to a user."""
    match error.errno:
        case errno.ENOENT:
            return "no daemon is there; start one with `utracefs daemon`"
        case errno.ECONNREFUSED:
            return "no daemon answers there any more; start one with `utracefs daemon`"
        case errno.EACCES | errno.EPERM:
            return f"{error.strerror}; only the daemon's user, root and the group of --tracefs-group may look"
        case _:
            return error.strerror or str(error)


def available_events(tree: Tracefs) -> list[EventName]:
    """All events, oldest first."""
    return parse_event_list(tree.read_file("available_events"))[::-1]


def selected(tree: Tracefs, patterns: Iterable[str]) -> list[EventName]:
    """The events that the patterns mean; Failure for a pattern that means none."""
    events = available_events(tree)
    for pattern in patterns:
        if not select([pattern], events):
            raise Failure(pattern, "no such event; `utracefs list` shows all")
    return select(patterns, events)


_CONSUMER = re.compile(r"^(\S+): recorded (\d+) filtered (\d+) lost (\d+)$", re.MULTILINE)


def consumer_stats(text: bytes) -> tuple[int, dict[str, dict[str, int]]]:
    """events/SYSTEM/NAME/stats: emitted, and recorded, filtered, lost of each consumer."""
    content = text.decode("utf-8", "surrogateescape")
    emitted = re.match(r"emitted: (\d+)", content)
    return int(emitted[1]) if emitted else 0, {
        found[1]: {"recorded": int(found[2]), "filtered": int(found[3]), "lost": int(found[4])}
        for found in _CONSUMER.finditer(content)
    }


def numbers(text: bytes) -> dict[str, int]:
    """`name: number` lines, as per_cpu/cpuN/stats has them; lines with other values are left out."""
    found = {}
    for line in text.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if value.strip().isdigit():
            found[name.strip()] = int(value)
    return found


def echo_json(value: Any) -> None:
    """For scripts: keys in the order in which they were made, bytes that are no UTF-8 as U+FFFD."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(text.encode("utf-8", "replace"))
