"""The options of an ftrace instance: names, order, defaults, and which of them cannot be changed.

The order is that of `trace_options` on Linux 6.12 (copy_trace_marker is of 6.16); tools print the list in its
order. Some options concern things that exist only in a kernel (stacks, function tracing, symbols of
addresses): they can be set, so that scripts work, and have no effect.

    with an effect         raw hex bin fields verbose context-info irq-info latency-format annotate sym-addr
                           sym-offset trace_printk printk-msg-only (text); overwrite disable_on_free markers
                           pause-on-trace copy_trace_marker event-fork (recording); record-cmd
                           (saved_cmdlines); record-tgid (saved_tgids); block (poll)
    without                the others
"""

import errno
from typing import Protocol

import attrs

from utracefs_protocol.errors import TraceError


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


class OptionsHolder(Protocol):
    """The object that stores the options of an instance (`settings.Settings`)."""

    options: frozenset[str]
    """Names of the options that are on."""


class Options:
    """The options of one instance. `Instance.set_option` carries out the effects of a change.

    holder: stores them. top: the options of the top instance, which stores the global ones for all instances;
    None: these are the top instance's.
    """

    def __init__(self, holder: OptionsHolder, top: "Options | None" = None) -> None:
        self._holder = holder
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
            return self._holder.options
        return self._holder.options | (self._top.on & _GLOBAL)

    def __getitem__(self, name: str) -> bool:
        return name in self._kept_by(name)._holder.options

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
        """Option and desired state of a word written to `trace_options`. EINVAL: no such option."""
        name = word.decode("ascii", "replace")
        if name in OPTIONS:
            return name, True
        if name.startswith("no") and name[2:] in OPTIONS:
            return name[2:], False
        raise TraceError(errno.EINVAL, f"no option {name!r}; trace_options lists them")

    def set(self, name: str, value: bool) -> None:
        """EINVAL for two options: test_nop_refuse always, trace_printk_dest when it would be taken from the
        top instance; and for one that only named instances have."""
        if self._top is None and OPTIONS[name].further_only:
            raise TraceError(errno.EINVAL, f"the top instance has no option {name!r}")
        if name == "test_nop_refuse":
            raise TraceError(errno.EINVAL, "this option is there to refuse")
        if name == "trace_printk_dest" and self._top is None and not value and self[name]:
            raise TraceError(errno.EINVAL, "the top instance gives this up only when another one takes it")
        kept_by = self._kept_by(name)
        on = kept_by._holder.options
        kept_by._holder.options = on | {name} if value else on - {name}
        kept_by._changes += 1

    def _kept_by(self, name: str) -> "Options":
        return self._top if self._top is not None and name in _GLOBAL else self
