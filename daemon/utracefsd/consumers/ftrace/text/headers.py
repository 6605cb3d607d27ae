"""The comment lines in front of the records of `trace`, which the compiled `_text.TextRenderer` prints.

They are printed also for an empty buffer, and never by `trace_pipe`.
The choice of the header follows the kernel (kernel/trace/trace.c, `trace_default_header`):

    context-info off                     the two lines `# tracer: NAME` and `#`
    latency-format, buffer empty         the same two lines
    latency-format                       preamble, then the column picture; with verbose only the preamble
    verbose                              the two lines
    otherwise                            entries line and column picture, one of four by irq-info, record-tgid
"""

from collections.abc import Container

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
_LATENCY_PREAMBLE = b"""\
# nop latency trace v1.1.5 on %s
# --------------------------------------------------------------------
# latency: 0 us, #%d/%d, CPU#0 | (M:desktop VP:0, KP:0, SP:0 HP:0 #P:%d)
#    -----------------
#    | task: -0 (uid:0 nice:0 policy:0 rt_prio:0)
#    -----------------
#
"""
"""Latency, cpu, task and the zeros are those of nop, which measures no latency. The preemption model is in
the kernel's configuration, which a process cannot read."""


def header(
    options: Container[str],
    *,
    entries: int,
    overruns: int,
    is_empty: bool,
    online_cpus: int,
    kernel_release: bytes,
) -> bytes:
    """The comment lines at the head of `trace`.

    options: the names of the set ones. entries: unread records in the buffer; overruns: overwritten ones,
    which `entries-written` counts too (consumed ones count in neither). is_empty: there are none to be shown.
    kernel_release: `os.uname().release`.
    """
    if "context-info" not in options:
        return TRACER
    written = entries + overruns
    if "latency-format" in options:
        if is_empty:
            return TRACER
        head = TRACER + _LATENCY_PREAMBLE % (kernel_release, entries, written, online_cpus)
        return head if "verbose" in options else head + _COLUMNS_LATENCY
    if "verbose" in options:
        return TRACER
    head = TRACER + b"# entries-in-buffer/entries-written: %d/%d   #P:%d\n#\n" % (
        entries,
        written,
        online_cpus,
    )
    if "irq-info" in options:
        return head + (_COLUMNS_IRQ_TGID if "record-tgid" in options else _COLUMNS_IRQ)
    return head + (_COLUMNS_TGID if "record-tgid" in options else _COLUMNS)
