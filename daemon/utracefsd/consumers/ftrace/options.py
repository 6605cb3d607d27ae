"""The options of an ftrace instance: names, order, defaults, and which of them cannot be changed.

The order is the one of `trace_options` on Linux 6.12; tools print the list as they find it. Some options name things
that exist only in a kernel (stacks, function tracing, symbols of addresses): they are kept so that a script that sets
them goes on, and have no effect.

    have an effect here    raw hex bin fields verbose context-info irq-info latency-format annotate trace_printk
                           printk-msg-only (text); overwrite, disable_on_free, markers, pause-on-trace (recording);
                           record-tgid (saved_tgids)
    have none              the others
"""

import errno
from collections.abc import Iterable

import attrs

from utracefs_protocol.errors import TraceError

__all__ = ["OPTIONS", "Option", "Options"]


@attrs.frozen
class Option:
    """One line of `trace_options`."""

    name: str
    """As shown when on; off is shown with `no` in front."""

    default: bool = False
    """State in a fresh instance."""

    top_default: bool | None = None
    """State in the fresh top instance where that differs."""

    top_file_only: bool = False
    """One state for all instances: only the top one has it under options/."""


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


class Options:
    """The options of one instance. What a change does beyond the text is for the instance to do (`Instance.set_option`)."""

    def __init__(self, *, top: bool) -> None:
        self.top = top
        self._on = {
            option.name
            for option in _TABLE
            if (option.top_default if top and option.top_default is not None else option.default)
        }

    @property
    def on(self) -> frozenset[str]:
        """Names of the options that are on."""
        return frozenset(self._on)

    def __getitem__(self, name: str) -> bool:
        return name in self._on

    def restore(self, on: Iterable[str]) -> None:
        """Exactly these are on, as they were in another process."""
        self._on = set(on)

    def files(self) -> list[str]:
        """Names below options/."""
        return [option.name for option in _TABLE if self.top or not option.top_file_only]

    def text(self) -> bytes:
        """`trace_options`."""
        return b"".join((name if name in self._on else "no" + name).encode() + b"\n" for name in OPTIONS)

    def parse(self, word: bytes) -> tuple[str, bool]:
        """Option and wanted state of a word written to `trace_options`. EINVAL: no such option."""
        name = word.decode("ascii", "replace")
        if name in OPTIONS:
            return name, True
        if name.startswith("no") and name[2:] in OPTIONS:
            return name[2:], False
        raise TraceError(errno.EINVAL, f"no option {name!r}; trace_options lists them")

    def set(self, name: str, value: bool) -> None:
        """EINVAL for the two that refuse: test_nop_refuse always, trace_printk_dest being taken from the top instance."""
        if name == "test_nop_refuse":
            raise TraceError(errno.EINVAL, "this option is there to refuse")
        if name == "trace_printk_dest" and self.top and not value and name in self._on:
            raise TraceError(errno.EINVAL, "the top instance gives this up only when another one takes it")
        if value:
            self._on.add(name)
        else:
            self._on.discard(name)
