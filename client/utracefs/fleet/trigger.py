"""Triggers in wishes, as lines of the tree's files `trigger`: the kinds that a policy must allow, and
conflicts between triggers.

The daemon parses them. Here only their kinds matter, and the two parts of a hist trigger that reach beyond
the instance: a `name=`, which shares one table with all instances, and an action that records a synthetic
event. A text that might have such a part counts as if it had it.
"""

import re
from typing import Final

from utracefs.forward.policy import NAMED, TRACING

_KIND: Final = re.compile(r"[^: ]*")
_HANDLER: Final = re.compile(r" *on[a-z]+\(")
_INSIDE: Final = re.compile(r" *on(max|change)\([^()]*\)\.(save|snapshot)\([^()]*\)( .*)?")
"""An action that changes nothing but the histogram and the instance's buffers."""

_ONE_OF_BOTH: Final = {"traceon": "tracing", "traceoff": "tracing"}
_OF_A_TARGET: Final = ("enable_event", "disable_event", "enable_hist", "disable_hist")


def needs(text: str) -> set[str]:
    """Words that the policy's `triggers` must have to allow this trigger."""
    kind, rest = _split(text)
    found = {kind}
    for part in rest.split(":"):
        if part.strip().startswith("name"):
            found.add(NAMED)
        if _HANDLER.match(part) and not _INSIDE.fullmatch(part):
            found.add(TRACING)
    return found


def slot(text: str) -> str:
    """An event can have one trigger for each slot; hist triggers have a slot for each definition."""
    kind, rest = _split(text)
    if kind in _OF_A_TARGET:
        target = ":".join(re.split("[: ]", rest)[:2])
        return f"{kind.partition('_')[2]} {target}"
    return text if kind == "hist" else _ONE_OF_BOTH.get(kind, kind)


def _split(text: str) -> tuple[str, str]:
    """Kind and rest. The daemon accepts a colon or blanks between them."""
    kind = _KIND.match(text)[0]  # type: ignore[index]
    return kind, text[len(kind) + 1 :].lstrip()


def has_word(text: str, name: str) -> bool:
    """Whether a filter or trigger may use the field of that name, which may have any characters."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.ASCII) is not None
