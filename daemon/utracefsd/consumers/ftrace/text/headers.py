"""The text around the records of `trace`: headers, and options for all of the text.

Everything here is a pure function of its arguments and returns bytes; no clock, no file, no /proc. The
compiled `_text.TextRenderer` renders the records; it takes the same `TextOptions`.

A reader of `trace` sees, in this order:

    header(...)                          printed also for an empty buffer; `trace_pipe` never prints one
    TextRenderer.render(cursor, ...)     the records, with lines `CPU:n [LOST k EVENTS]` and
                                         `##### CPU n buffer started ####`

The choice of the header follows the kernel (kernel/trace/trace.c, `trace_default_header`):

    context-info off                     the two lines `# tracer: NAME` and `#`
    latency-format, buffer empty         the same two lines
    latency-format                       preamble, then the column picture; with verbose only the preamble
    verbose                              the two lines
    otherwise                            entries line and column picture, one of four by irq-info, record-tgid

`raw`, `hex`, `bin` and `fields` change the records but not the header.
"""

from collections.abc import Container

import attrs


@attrs.frozen
class TextOptions:
    """The trace options that change text; the defaults are those of a new instance."""

    raw: bool = False
    """Numbers instead of columns, and `type: ID` instead of the fields of an event."""
    hex: bool = False
    """Like raw, in hexadecimal; takes precedence over raw."""
    bin: bool = False
    """Like raw, in binary; takes precedence over hex and raw."""
    fields: bool = False
    """Print by field declarations: changes nothing for user events, internal records become `UNKNOWN
    TYPE N`."""
    verbose: bool = False
    """Drops the column picture; with latency-format also widens the columns of each record."""
    context_info: bool = True
    """Task, cpu and time before each record."""
    irq_info: bool = True
    """The five flag characters."""
    latency_format: bool = False
    """Times in microseconds since the buffer was cleared, marks for the gap to the next record."""
    record_tgid: bool = False
    """A column for the thread group id."""
    annotate: bool = True
    """`##### CPU n buffer started ####` lines in `trace`, once anything was overwritten."""
    printk_msg_only: bool = False
    """A marker prints only its text (needs the option trace_printk too, on by default)."""
    sym_addr: bool = False
    """The address behind the function's name: `tracing_mark_write <ffffffff81000000>`."""
    sym_offset: bool = False
    """The offset in the function: `tracing_mark_write+0x0/0x170`."""

    @classmethod
    def from_names(cls, on: Container[str]) -> "TextOptions":
        """From the kernel's names of the options that are on (`context-info`, `latency-format`, ...)."""
        return cls(
            raw="raw" in on,
            hex="hex" in on,
            bin="bin" in on,
            fields="fields" in on,
            verbose="verbose" in on,
            context_info="context-info" in on,
            irq_info="irq-info" in on,
            latency_format="latency-format" in on,
            record_tgid="record-tgid" in on,
            annotate="annotate" in on,
            printk_msg_only="printk-msg-only" in on and "trace_printk" in on,
            sym_addr="sym-addr" in on,
            sym_offset="sym-offset" in on,
        )


TRACER = b"# tracer: nop\n#\n"
"""The beginning of every header: nop is the only tracer here."""

# The pictures as the kernel prints them, blanks at the ends of lines included.
_COLUMNS = b"""\
#           TASK-PID     CPU#     TIMESTAMP  FUNCTION
#              | |         |         |         |
"""
_COLUMNS_TGID = b"""\
#           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION
#              | |           |       |         |         |
"""
_COLUMNS_IRQ = b"""\
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"""
_COLUMNS_IRQ_TGID = b"""\
#                                          _-----=> irqs-off/BH-disabled
#                                         / _----=> need-resched
#                                        | / _---=> hardirq/softirq
#                                        || / _--=> preempt-depth
#                                        ||| / _-=> migrate-disable
#                                        |||| /     delay
#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION
#              | |           |       |   |||||     |         |
"""
_COLUMNS_LATENCY = (
    b"".join(
        b"#%-46s\n" % line
        for line in (
            b"                    _------=> CPU#",
            b"                   / _-----=> irqs-off/BH-disabled",
            b"                  | / _----=> need-resched",
            b"                  || / _---=> hardirq/softirq",
            b"                  ||| / _--=> preempt-depth",
            b"                  |||| / _-=> migrate-disable",
            b"                  ||||| /     delay",
            b"  cmd     pid     |||||| time  |   caller",
        )
    )
    + b"#     \\   /        ||||||  \\    |    /       \n"
)


def header(
    options: TextOptions,
    *,
    entries: int,
    overruns: int,
    online_cpus: int,
    empty: bool | None = None,
    kernel_release: bytes | str = b"",
    tracer: bytes = b"nop",
    cpu: int = 0,
    preemption_model: bytes = b"desktop",
) -> bytes:
    """The comment lines at the head of `trace`.

    entries: unread records in the buffer; overruns: overwritten ones, which `entries-written` counts too
    (consumed ones count in neither). empty: whether there are none to be shown; None: when there are no
    entries.
    kernel_release: `os.uname().release`, shown by latency-format only; so is cpu (of a measuring tracer)
    and preemption_model, which the kernel takes from its configuration and a process cannot read.
    """
    head = b"# tracer: %s\n#\n" % tracer
    if not options.context_info:
        return head
    written = entries + overruns
    if options.latency_format:
        if not entries if empty is None else empty:
            return head
        release = kernel_release.encode() if isinstance(kernel_release, str) else kernel_release
        head += _latency_preamble(tracer, release, entries, written, cpu, preemption_model, online_cpus)
        return head if options.verbose else head + _COLUMNS_LATENCY
    if options.verbose:
        return head
    head += b"# entries-in-buffer/entries-written: %d/%d   #P:%d\n#\n" % (entries, written, online_cpus)
    if options.irq_info:
        return head + (_COLUMNS_IRQ_TGID if options.record_tgid else _COLUMNS_IRQ)
    return head + (_COLUMNS_TGID if options.record_tgid else _COLUMNS)


def _latency_preamble(
    tracer: bytes, release: bytes, entries: int, written: int, cpu: int, model: bytes, online_cpus: int
) -> bytes:
    """Latency, task and the zeros are those of a tracer that measures no latency, as nop does."""
    return (
        b"# %s latency trace v1.1.5 on %s\n"
        b"# --------------------------------------------------------------------\n"
        b"# latency: 0 us, #%d/%d, CPU#%d | (M:%s VP:0, KP:0, SP:0 HP:0 #P:%d)\n"
        b"#    -----------------\n"
        b"#    | task: -0 (uid:0 nice:0 policy:0 rt_prio:0)\n"
        b"#    -----------------\n"
        b"#\n" % (tracer, release, entries, written, cpu, model, online_cpus)
    )
