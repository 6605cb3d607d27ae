"""What of an instance outlives its daemon, besides events and records: its settings.

The settings are the truth; what the compiled core looks at (the sink's switches, the buffer's `overwrite`) is
copied from them by the instance. A setting changes in one way only, by assigning it:

    instance.settings.clock = "mono"    checked, noted in `unsaved`, and `on_unsaved` is called

All values are immutable, so no change escapes this. The state writes what is `unsaved` and compares nothing:
200 instances that do not change cost nothing.

One more setting is one more field here. In the state's log each is a line of its own, as plain values
(`saved`); a line that does not pass `parse_setting` makes the log damaged. What an instance does with one
event (enabled or not) is no setting; event_file.py has it.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from utracefs_protocol.limits import SUBBUF_SIZE
from utracefsd.consumers.ftrace.options import OPTIONS

__all__ = ["CLOCKS", "Settings", "parse_setting"]

CLOCKS = (
    *("local", "global", "counter", "uptime", "perf", "mono", "mono_raw", "boot", "tai"),
    *(["x86-tsc"] if os.uname().machine in ("x86_64", "i386", "i486", "i586", "i686") else []),
)
"""Names of trace clocks, in the order of `trace_clock`."""

MAX_SUBBUF_ORDER = 7
"""A sub-buffer is 4 KiB to 512 KiB, in powers of two."""

_Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


@attrs.frozen
class _Form:
    """How a value stands in the log, and what is made of it when it is read."""

    save: Callable[[Any], Any]
    """To MessagePack."""

    parse: Callable[[Any], Any]
    """The reverse. ValueError."""


def _parse_list(make: Callable[[Iterable[Any]], Any]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not list or any(isinstance(item, list | dict) for item in value):
            raise ValueError("not a list of plain values")
        return make(value)

    return parse


def _parse_mask(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not str or re.fullmatch("[0-9a-f]{1,4096}", value) is None:
        raise ValueError("not a hexadecimal number")
    return int(value, 16)


_PLAIN = _Form(lambda value: value, lambda value: value)
_LIST = _Form(list, _parse_list(tuple))
_SET = _Form(sorted, _parse_list(frozenset))
_MASK = _Form(lambda mask: None if mask is None else f"{mask:x}", _parse_mask)
"""MessagePack has no integers above 64 bits, and a machine may have more cpus."""


def _setting(default: Any, valid: Callable[[Any], bool], form: _Form = _PLAIN) -> Any:
    def check(settings: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not valid(value):
            raise ValueError(f"{attribute.name} is {value!r:.100}")

    checks: _Check = check
    return attrs.field(default=default, validator=checks, metadata={"form": form})


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda values: all(type(value) is kind for value in values)


def _is_shape(shape: tuple[Any, ...]) -> bool:
    if not shape:
        return True
    sizes = [SUBBUF_SIZE << order for order in range(MAX_SUBBUF_ORDER + 1)]
    return _all(int)(shape) and len(shape) > 1 and shape[0] in sizes and min(shape[1:]) > 0


def _note(settings: "Settings", attribute: "attrs.Attribute[Any]", value: Any) -> Any:
    """What an assignment does besides."""
    if getattr(settings, attribute.name) != value:
        settings.unsaved.add(attribute.name)
        if settings.on_unsaved is not None:
            settings.on_unsaved()
    return value


@attrs.define(eq=False, kw_only=True, on_setattr=[attrs.setters.validate, _note])
class Settings:
    """The settings of one instance. ValueError for an assignment of an invalid value."""

    in_memory: tuple[int, ...] = _setting((), _is_shape, _LIST)
    """Of a buffer that is in no file, and cannot be taken over: bytes of a sub-buffer, then KiB of each cpu.
    Else empty."""

    expanded: bool = _setting(False, _is(bool))
    """The buffer has its real size; the top instance waits with that until something is to be recorded."""

    snapshot: bool = _setting(False, _is(bool))
    """There is a spare buffer for a snapshot."""

    tracing_on: bool = _setting(True, _is(bool))
    """`tracing_on`."""

    clock: str = _setting("local", lambda clock: type(clock) is str and clock in CLOCKS)
    """`trace_clock`."""

    options: frozenset[str] = _setting(frozenset(), lambda names: names <= OPTIONS.keys(), _SET)
    """Names of the options that are on (`Options`)."""

    cpumask: int | None = _setting(
        None, lambda mask: mask is None or (type(mask) is int and mask >= 0), _MASK
    )
    """`tracing_cpumask`, a bit per cpu; None: all."""

    pids: frozenset[int] = _setting(frozenset(), _all(int), _SET)
    """`set_event_pid`; empty: no filtering."""

    notrace_pids: frozenset[int] = _setting(frozenset(), _all(int), _SET)
    """`set_event_notrace_pid`."""

    standing: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """`standing_events`, in the order in which they were written."""

    standing_filters: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """Lines of that file, in the order in which they were written."""

    standing_triggers: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """Lines of that file, in the order in which they were written."""

    clear_pending: bool = _setting(False, _is(bool))
    """An event whose records the buffer may hold is gone: the next removal through dynamic_events clears the
    buffer."""

    remove_on_close: bool = _setting(False, _is(bool))
    """The instance goes with the last open file in it."""

    buffer_percent: int = _setting(50, lambda percent: type(percent) is int and 0 <= percent <= 100)
    """`buffer_percent`."""

    time_start: int = _setting(0, _is(int))
    """When the buffer was last cleared, in its clock: latency-format counts from there."""

    error_log: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """Entries of `error_log`, oldest first."""

    unsaved: set[str] = attrs.field(factory=set, init=False, on_setattr=attrs.setters.NO_OP)
    """Names of what was changed since the last `take_unsaved`."""

    on_unsaved: Callable[[], None] | None = attrs.field(
        default=None, init=False, on_setattr=attrs.setters.NO_OP
    )
    """Called at each change, just before it."""

    def saved(self) -> list[tuple[str, Any]]:
        """All of them, as (name, plain value)."""
        return [(name, self._saved(name)) for name in _FORMS]

    def take_unsaved(self) -> list[tuple[str, Any]]:
        """Those that changed, as `saved`; from now on they count as saved."""
        changed = [(name, self._saved(name)) for name in _FORMS if name in self.unsaved]
        self.unsaved.clear()
        return changed

    def _saved(self, name: str) -> Any:
        return _FORMS[name].save(getattr(self, name))


_FORMS: dict[str, _Form] = {
    field.name: field.metadata["form"] for field in attrs.fields(Settings) if "form" in field.metadata
}


def parse_setting(name: str, saved: Any) -> Any:
    """The value that stands in the log as `saved`. ValueError: no such setting, or not a value of it."""
    if name not in _FORMS:
        raise ValueError(f"there is no setting {name!r:.100}")
    value = _FORMS[name].parse(saved)
    field = getattr(attrs.fields(Settings), name)
    field.validator(None, field, value)
    return value
