"""The parts of a hist definition, before fields are looked up: parse_hist_trigger_attrs().

    keys=K,K:vals=V,V:sort=S,S.descending:size=N:name=N:clock=C:x=EXPR,y=EXPR:nohitcount:pause:
        HANDLER(...).ACTION(...)

Parts are separated by colons, in any order; the last of several counts. A part with a `=` and an unknown name
defines variables. ` if FILTER` is cut off before (`split_filter`).
"""

import enum
import re
from typing import Any

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.hist.errors import Log
from utracefs_protocol.text import unsigned_of

MAX_VARIABLES = 16
"""TRACING_MAP_VARS_MAX."""

MAX_ACTIONS = 8
"""HIST_ACTIONS_MAX."""

MIN_BITS, MAX_BITS = 7, 17
"""TRACING_MAP_BITS_MIN and _MAX: 128 to 131072 entries."""

_HANDLERS = (b"onmatch(", b"onmax(", b"onchange(")

_FILTER = re.compile(rb"[ \t]if[ \t]")


class Command(enum.Enum):
    """Operation on the trigger that already has this definition."""

    NONE = enum.auto()
    PAUSE = enum.auto()
    CONTINUE = enum.auto()
    CLEAR = enum.auto()


_COMMANDS = {
    b"pause": Command.PAUSE,
    b"cont": Command.CONTINUE,
    b"continue": Command.CONTINUE,
    b"clear": Command.CLEAR,
}

_LISTS = {
    b"key": "keys",
    b"keys": "keys",
    b"val": "values",
    b"vals": "values",
    b"values": "values",
    b"sort": "sort",
}
"""Members of Parts by their names in a command."""


@attrs.frozen
class Parts:
    keys: bytes
    """Separated by commas, like the next two."""
    values: bytes | None = None
    """None: there is no such part, as for the next two."""
    sort: bytes | None = None
    name: bytes | None = None
    """With `name=`, as shown."""
    clock: bytes = b"global"
    """Used only with time stamps."""
    bits: int = 11
    """Logarithm of the number of entries."""
    no_hitcount: bool = False
    """Do not show the count of hits."""
    command: Command = Command.NONE
    """Operation on a trigger with this definition."""
    assignments: tuple[bytes, ...] = ()
    """`x=EXPR,y=EXPR`."""
    actions: tuple[bytes, ...] = ()
    """`onmatch(...)...`."""


def split_filter(text: bytes, log: Log) -> tuple[bytes, bytes | None]:
    """The definition and the filter behind ` if `; None: no filter. HistError: EINVAL, `if` without a
    filter."""
    text = text.strip()
    found = _FILTER.search(text)
    if found is None:
        if text.startswith(b"if") or text.endswith((b" if", b"\tif")):
            raise log.refused("a definition must precede 'if', and a filter follow it")
        return text, None
    return text[: found.start()].strip(), text[found.end() :].strip()


def parse_parts(text: bytes, log: Log) -> Parts:
    """HistError: EINVAL (no keys, an unknown word, a bad size); ERANGE (a size of more than 64 bits)."""
    found: dict[str, Any] = {}
    commands: list[Command] = []
    assignments: list[bytes] = []
    actions: list[bytes] = []
    for part in text.split(b":"):
        name, equals, value = part.partition(b"=")
        if equals and not value:
            raise log.fault("Empty assignment", part)
        # A handler's parameters may contain a `=`: the kernel takes that for an assignment, too.
        if not equals:
            if part in _COMMANDS:
                commands.append(_COMMANDS[part])
            elif part in (b"nohitcount", b"NOHC"):
                found["no_hitcount"] = True
            elif part.startswith(_HANDLERS) and len(actions) < MAX_ACTIONS:
                actions.append(part)
            else:
                raise log.refused(f"{part[:200]!r} is no part of a hist trigger, nor NAME=EXPRESSION")
        elif name in _LISTS:
            found[_LISTS[name]] = value
        elif name == b"name":
            found["name"] = part
        elif name == b"clock":
            found["clock"] = value.strip()
        elif name == b"size":
            found["bits"] = _parse_size(value, log)
        else:
            if len(assignments) == MAX_VARIABLES:
                raise log.fault("Too many variables defined", part)
            assignments.append(part)
    if "keys" not in found:
        raise log.refused("a hist trigger needs keys=FIELD")
    # The order of existing_hist_update_only(), that of the members.
    command = next((one for one in Command if one in commands), Command.NONE)
    return Parts(**found, command=command, assignments=tuple(assignments), actions=tuple(actions))


def _parse_size(text: bytes, log: Log) -> int:
    try:
        size = unsigned_of(text)
    except TraceError as error:
        raise log.refused(f"size {error.text}", error.errno) from None
    bits = max(0, size - 1).bit_length()
    if not MIN_BITS <= bits <= MAX_BITS:
        raise log.refused(f"a hist trigger has {1 << MIN_BITS} to {1 << MAX_BITS} entries, not {size}")
    return bits
