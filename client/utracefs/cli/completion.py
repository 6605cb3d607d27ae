"""Shell completion: names of the daemon's events, fields, instances, files and clocks, and of the options of
targets.

Completion must not disturb the user: without an answer of the daemon within a second it offers nothing, and
no error is shown.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from utracefs.tree.event_names import EventName, parse_event_list, select
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.text import text_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from utracefs.tree.tracefs import Tracefs


PATIENCE_S = 1.0
"""Timeout for the daemon."""

_COMMON_KEYS = ("common_pid", "common_cpu", "common_timestamp", "common_stacktrace")
_MODIFIERS: dict[str | None, tuple[str, ...]] = {
    "keys": ("log2", "buckets=", "hex", "execname", "sym", "sym-offset", "syscall"),
    "vals": ("hex", "percent", "graph"),
    "sort": ("ascending", "descending"),
}
_COMMON_FIELDS = ("common_pid", "CPU", "COMM")


def complete_event(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of events without system: bash splits words at `:`, so only these work everywhere."""
    return _ask(ctx, incomplete, lambda tree: sorted({event.name for event in _events(tree)}))


def complete_pattern(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Events by name, and by SYSTEM:NAME for shells that support it; the last one of a list."""
    from click.shell_completion import CompletionItem

    def ask(tree: "Tracefs") -> list[str]:
        events = _events(tree)
        return sorted({event.name for event in events} | {str(event) for event in events})

    head, comma, word = incomplete.rpartition(",")
    return [CompletionItem(head + comma + name) for name in _ask(ctx, word, ask)]


def complete_instance(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _ask(ctx, incomplete, lambda tree: sorted(name for name, _ in tree.list_dir("instances")))


def complete_path(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Paths of the tree, or of the instance that `-B` names, one directory at a time."""
    above = incomplete.rpartition("/")[0]
    prefix = f"{above}/" if above else ""
    # A Place if it was parsed already; this module does not import that class.
    place: Any = ctx.params.get("place")
    where = above if place is None else place.path(above)
    return _ask(
        ctx,
        incomplete,
        lambda tree: [
            f"{prefix}{name}{'/' if kind == 'd' else ''}" for name, kind in sorted(tree.list_dir(where))
        ],
    )


def complete_clock(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    def ask(tree: "Tracefs") -> list[str]:
        return [word.strip("[]") for word in tree.read_file("trace_clock").decode().split()]

    return _ask(ctx, incomplete, ask)


def complete_of_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the target's options or secrets, whichever the parameter is called; before TARGET is given,
    those of all built-in targets."""
    from utracefs.forward.target import BUILT_IN, target_class

    # (an option without its value ends the parsing in front of the arguments)
    address = ctx.params.get("address") or next(iter(ctx.args), None)
    with contextlib.suppress(LookupError):
        classes = [target_class(one) for one in ([address] if address else BUILT_IN)]
        names = {name for one in classes for name in getattr(one, str(param.name), ())}
        return _beginning(incomplete, [f"{name}=" for name in sorted(names)])
    return []


def complete_value(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The next value of `emit`: `<type field>`, of the given event."""

    def ask(tree: "Tracefs") -> list[str]:
        wanted = str(ctx.params.get("declaration") or "").rpartition(":")[2]
        given = len(ctx.params.get("values") or ())
        for event in _events(tree):
            if event.name == wanted:
                fields = _fields(tree, event)
                return [
                    f"<{text_of(field.type)} {text_of(field.name)}>" for field in fields[given : given + 1]
                ]
        return []

    return [] if incomplete else _ask(ctx, "", ask)


def complete_filter(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The last field in an expression, of the `-e` or EVENTs before it."""
    given: list[str | tuple[str, ...]] = list(ctx.params.get("events") or ())
    patterns = [name for one in given for name in ([one] if isinstance(one, str) else one)]
    head, word = re.fullmatch(r"(?s)(.*?)(\w*)", incomplete).groups()  # type: ignore[union-attr]
    # Inside a text, or behind an operator: a value, not a field.
    if re.search(r"""(?:[=<>~]|(?<!&)&)\s*$""", head) or any(head.count(quote) % 2 for quote in "\"'"):
        return []
    return [head + name for name in _names_of_fields(ctx, patterns[-1:], word, _COMMON_FIELDS)]


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Fields for keys, values and sorting of `hist`, the last one of a comma-separated list; after a dot the
    modifiers."""
    head, comma, word = incomplete.rpartition(",")
    field, dot, _ = word.partition(".")
    if dot:
        return _beginning(incomplete, [f"{head}{comma}{field}.{one}" for one in _MODIFIERS[param.name]])
    event = str(ctx.params.get("event") or "")
    return [
        head + comma + name
        for name in _names_of_fields(ctx, [event] if event else [], word, (*_COMMON_KEYS, "hitcount"))
    ]


def complete_command(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """The command to run, from PATH; else the shell completes files."""
    from click.shell_completion import CompletionItem

    found = set()
    if not ctx.params.get(param.name or "") and "/" not in incomplete:
        for folder in os.get_exec_path():
            with contextlib.suppress(OSError):
                found.update(_beginning(incomplete, os.listdir(folder)))
    return [CompletionItem(name) for name in sorted(found)] or [CompletionItem(incomplete, type="file")]


def _names_of_fields(
    ctx: click.Context, patterns: Iterable[str], word: str, further: tuple[str, ...]
) -> list[str]:
    def ask(tree: "Tracefs") -> list[str]:
        names = {
            text_of(field.name)
            for event in select(patterns, _events(tree))[:16]
            for field in _fields(tree, event)
        }
        return [*sorted(names), *(name for name in further if name not in names)]

    return _ask(ctx, word, ask)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _events(tree: "Tracefs") -> list[EventName]:
    return parse_event_list(tree.read_file("available_events"))


def _fields(tree: "Tracefs", event: EventName) -> tuple[Field, ...]:
    return tuple(parse_format(tree.read_file(f"{event.directory}/format")).fields)


def _ask(ctx: click.Context, incomplete: str, question: Callable[["Tracefs"], list[str]]) -> list[str]:
    """Those of the daemon's names that begin so; none without its answer."""
    from utracefs.tree.tracefs import Tracefs

    directory = ctx.params.get("directory") or ctx.find_root().params.get("directory")
    try:
        with Tracefs(directory, timeout_s=PATIENCE_S) as tree:
            return _beginning(incomplete, question(tree))
    except (OSError, TraceError):
        return []
