"""The settings of an instance, which the next daemon restores. (It also restores events and records.)

The settings are authoritative; the instance copies them to the compiled core (the sink's switches, the
buffer's `overwrite`). A setting is changed only by assignment:

    instance.settings.clock = "mono"    checked, noted in `unsaved`, and `on_unsaved` is called

All values are immutable, so every change is noticed. The state writes the `unsaved` ones: 200 instances
without changes cost nothing. A new setting is a new field here. In the state's log each is a line of its own,
as plain values (`saved`); a line that fails `parse_setting` makes the log damaged.

The order of the options is that of `trace_options` on Linux 6.12 (copy_trace_marker is of 6.16); tools print
the list in its order. Some concern things that exist only in a kernel (stacks, function tracing, symbols of
addresses): they can be set, so that scripts work, and have no effect.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import SUBBUF_SIZE


@attrs.frozen
class Option:
    """One line of `trace_options`."""

    name: str
    """As shown when on; off is shown with `no` in front."""
    default: bool = False
    top_default: bool | None = None
    """State in a new top instance, if different."""
    top_file_only: bool = False
    """One state for all instances: only the top instance has its file."""
    further_only: bool = False
    """Only named instances have it."""


_TABLE = (
    Option("print-parent", True),
    Option("sym-offset"),
    Option("sym-addr"),
    Option("verbose"),
    Option("raw"),
    Option("hex"),
    Option("bin"),
    Option("block"),
    Option("fields"),
    Option("trace_printk", True, top_file_only=True),
    Option("annotate", True),
    Option("userstacktrace"),
    Option("sym-userobj"),
    Option("printk-msg-only", top_file_only=True),
    Option("context-info", True),
    Option("latency-format"),
    Option("record-cmd", True, top_file_only=True),
    Option("record-tgid"),
    Option("overwrite", True),
    Option("disable_on_free"),
    Option("irq-info", True),
    Option("markers", True),
    Option("event-fork"),
    Option("trace_printk_dest", False, top_default=True),
    Option("copy_trace_marker", further_only=True),
    Option("pause-on-trace"),
    Option("hash-ptr", True),
    Option("function-trace", True),
    Option("function-fork"),
    Option("display-graph"),
    Option("stacktrace"),
    Option("test_nop_accept"),
    Option("test_nop_refuse"),
)

OPTIONS = {option.name: option for option in _TABLE}
"""By name, in the order of `trace_options`."""


_GLOBAL = frozenset(option.name for option in _TABLE if option.top_file_only)


def default_options(*, top: bool) -> frozenset[str]:
    """Names of the options that are on in a new instance, without options that only the top one stores."""
    return frozenset(
        option.name
        for option in _TABLE
        if (option.top_default if top and option.top_default is not None else option.default)
        and (top or not option.top_file_only)
    )


class Options:
    """The options of one instance. `Instance.set_option` carries out the effects of a change.

    top: those of the top instance, whose settings store the global ones for all instances; None: these are.
    """

    def __init__(self, settings: "Settings", top: "Options | None" = None) -> None:
        self._settings = settings
        self._top = top
        self._changes = 0

    @property
    def changes(self) -> int:
        """A number that changes whenever one of these options is set."""
        return self._changes + (0 if self._top is None else self._top.changes)

    @property
    def on(self) -> frozenset[str]:
        """Names of the options that are on."""
        if self._top is None:
            return self._settings.options
        return self._settings.options | (self._top.on & _GLOBAL)

    def __getitem__(self, name: str) -> bool:
        return name in self._kept_by(name)._settings.options

    def files(self) -> list[str]:
        """Names below options/."""
        return [
            option.name
            for option in _TABLE
            if not (option.further_only if self._top is None else option.top_file_only)
        ]

    def text(self) -> bytes:
        """`trace_options`."""
        on = self.on
        names = [name for name in OPTIONS if self._top is not None or not OPTIONS[name].further_only]
        return b"".join((name if name in on else "no" + name).encode() + b"\n" for name in names)

    def parse(self, word: bytes) -> tuple[str, bool]:
        """Option and desired state of a word. EINVAL."""
        name = word.decode("ascii", "replace")
        if name in OPTIONS:
            return name, True
        if name.startswith("no") and name[2:] in OPTIONS:
            return name[2:], False
        raise TraceError(errno.EINVAL, f"no option {name!r}; trace_options lists them")

    def set(self, name: str, value: bool) -> None:
        """EINVAL."""
        if self._top is None and OPTIONS[name].further_only:
            raise TraceError(errno.EINVAL, f"the top instance has no option {name!r}")
        if name == "test_nop_refuse":
            raise TraceError(errno.EINVAL, "this option is there to refuse")
        if name == "trace_printk_dest" and self._top is None and not value and self[name]:
            raise TraceError(errno.EINVAL, "the top instance gives this up only when another one takes it")
        kept_by = self._kept_by(name)
        on = kept_by._settings.options
        kept_by._settings.options = on | {name} if value else on - {name}
        kept_by._changes += 1

    def _kept_by(self, name: str) -> "Options":
        return self._top if self._top is not None and name in _GLOBAL else self


CLOCKS = (
    *("local", "global", "counter", "uptime", "perf", "mono", "mono_raw", "boot", "tai"),
    *(["x86-tsc"] if os.uname().machine in ("x86_64", "i386", "i486", "i586", "i686") else []),
)
"""Names of trace clocks, in the order of `trace_clock`."""

MAX_SUBBUF_ORDER = 7
"""Sub-buffers have 4 KiB to 512 KiB, in powers of two."""


@attrs.frozen
class _Form:
    """Conversion of a value to and from the log."""

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

    return attrs.field(default=default, validator=check, metadata={"form": form})


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
    """Called by an assignment: note the change."""
    if getattr(settings, attribute.name) != value:
        settings.changed.add(attribute.name)
        settings.unsaved.add(attribute.name)
        settings.on_unsaved()
    return value


@attrs.define(eq=False, kw_only=True, on_setattr=[attrs.setters.validate, _note])
class Settings:
    """The settings of one instance. ValueError for an assignment of an invalid value."""

    in_memory: tuple[int, ...] = _setting((), _is_shape, _LIST)
    """For a buffer in memory, which cannot be taken over: bytes of a sub-buffer, then KiB of each cpu. Else
    empty."""
    expanded: bool = _setting(False, _is(bool))
    """The buffer has its full size; the top instance gets it when something is to be recorded."""
    snapshot: bool = _setting(False, _is(bool))
    """There is a spare buffer for a snapshot."""
    tracing_on: bool = _setting(True, _is(bool))
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
    """`standing_events`, in the order of writing."""
    standing_filters: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """Lines of that file, in the order of writing."""
    standing_triggers: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """Lines of that file, in the order of writing."""
    clear_pending: bool = _setting(False, _is(bool))
    """An event was removed whose records the buffer may hold: the next removal through dynamic_events clears
    the buffer."""
    remove_on_close: bool = _setting(False, _is(bool))
    """Remove the instance when its last open file is closed."""
    owner_returns: bool = _setting(False, _is(bool))
    """After a restart, `remove_on_close` waits for its owner to open a file again."""
    buffer_percent: int = _setting(50, lambda percent: type(percent) is int and 0 <= percent <= 100)
    time_start: int = _setting(0, _is(int))
    """When the buffer was last cleared, in its clock: latency-format counts from that time."""
    error_log: tuple[bytes, ...] = _setting((), _all(bytes), _LIST)
    """Entries of `error_log`, oldest first."""
    changed: set[str] = attrs.field(factory=set, init=False, on_setattr=attrs.setters.NO_OP)
    """Names of settings that were ever changed; the others are as in a new instance."""
    unsaved: set[str] = attrs.field(factory=set, init=False, on_setattr=attrs.setters.NO_OP)
    """Names of settings changed since the last `take_unsaved`."""
    on_unsaved: Callable[[], None] = attrs.field(
        default=lambda: None, init=False, on_setattr=attrs.setters.NO_OP
    )
    """Called just before each change."""

    def saved(self) -> list[tuple[str, Any]]:
        """Settings that may differ from those of a new instance, as (name, plain value)."""
        return [(name, self._saved(name)) for name in _FORMS if name in self.changed]

    def take_unsaved(self) -> list[tuple[str, Any]]:
        """Changed settings, as in `saved`; from now on they count as saved."""
        changed = [(name, self._saved(name)) for name in _FORMS if name in self.unsaved]
        self.unsaved.clear()
        return changed

    def _saved(self, name: str) -> Any:
        return _FORMS[name].save(getattr(self, name))


_FORMS: dict[str, _Form] = {
    field.name: field.metadata["form"] for field in attrs.fields(Settings) if "form" in field.metadata
}


def parse_setting(name: str, saved: Any) -> Any:
    """The value of the log's `saved`. ValueError: no such setting, or an invalid value."""
    if name not in _FORMS:
        raise ValueError(f"there is no setting {name!r:.100}")
    value = _FORMS[name].parse(saved)
    field = getattr(attrs.fields(Settings), name)
    field.validator(None, field, value)
    return value
