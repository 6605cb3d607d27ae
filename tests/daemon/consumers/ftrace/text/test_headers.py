"""The headers of `trace`, and the options that shape its text."""

import attrs
import pytest

from utracefsd.consumers.ftrace.text.headers import TextOptions, header

ENTRIES = b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 158/600   #P:2\n#\n"
HEADERS = [
    (
        TextOptions(),
        ENTRIES
        + b"#                                _-----=> irqs-off/BH-disabled\n"
        + b"#                               / _----=> need-resched\n"
        + b"#                              | / _---=> hardirq/softirq\n"
        + b"#                              || / _--=> preempt-depth\n"
        + b"#                              ||| / _-=> migrate-disable\n"
        + b"#                              |||| /     delay\n"
        + b"#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n"
        + b"#              | |         |   |||||     |         |\n",
    ),
    (
        TextOptions(irq_info=False),
        ENTRIES
        + b"#           TASK-PID     CPU#     TIMESTAMP  FUNCTION\n"
        + b"#              | |         |         |         |\n",
    ),
    (
        TextOptions(record_tgid=True),
        ENTRIES
        + b"#                                          _-----=> irqs-off/BH-disabled\n"
        + b"#                                         / _----=> need-resched\n"
        + b"#                                        | / _---=> hardirq/softirq\n"
        + b"#                                        || / _--=> preempt-depth\n"
        + b"#                                        ||| / _-=> migrate-disable\n"
        + b"#                                        |||| /     delay\n"
        + b"#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION\n"
        + b"#              | |           |       |   |||||     |         |\n",
    ),
    (
        TextOptions(record_tgid=True, irq_info=False),
        ENTRIES
        + b"#           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION\n"
        + b"#              | |           |       |         |         |\n",
    ),
    (TextOptions(context_info=False), b"# tracer: nop\n#\n"),
    (TextOptions(context_info=False, latency_format=True), b"# tracer: nop\n#\n"),
    (TextOptions(verbose=True), b"# tracer: nop\n#\n"),
]
PREAMBLE = (
    b"# tracer: nop\n#\n"
    b"# nop latency trace v1.1.5 on 6.12.117\n"
    b"# --------------------------------------------------------------------\n"
    b"# latency: 0 us, #158/600, CPU#0 | (M:desktop VP:0, KP:0, SP:0 HP:0 #P:2)\n"
    b"#    -----------------\n"
    b"#    | task: -0 (uid:0 nice:0 policy:0 rt_prio:0)\n"
    b"#    -----------------\n"
    b"#\n"
)
LATENCY_COLUMNS = (
    b"#                    _------=> CPU#            \n"
    b"#                   / _-----=> irqs-off/BH-disabled\n"
    b"#                  | / _----=> need-resched    \n"
    b"#                  || / _---=> hardirq/softirq \n"
    b"#                  ||| / _--=> preempt-depth   \n"
    b"#                  |||| / _-=> migrate-disable \n"
    b"#                  ||||| /     delay           \n"
    b"#  cmd     pid     |||||| time  |   caller     \n"
    b"#     \\   /        ||||||  \\    |    /       \n"
)
HEADERS += [
    (TextOptions(latency_format=True), PREAMBLE + LATENCY_COLUMNS),
    (TextOptions(latency_format=True, verbose=True), PREAMBLE),
]


@pytest.mark.parametrize(("options", "text"), HEADERS)
def test_header(options: TextOptions, text: bytes) -> None:
    assert header(options, entries=158, overruns=442, online_cpus=2, kernel_release="6.12.117") == text
    for ignored in ("raw", "hex", "bin", "fields"):
        changed = attrs.evolve(options, **{ignored: True})
        assert header(changed, entries=158, overruns=442, online_cpus=2, kernel_release=b"6.12.117") == text


def test_header_of_an_empty_buffer() -> None:
    assert header(TextOptions(), entries=0, overruns=0, online_cpus=8).startswith(
        b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 0/0   #P:8\n#\n#        "
    )
    assert (
        header(TextOptions(latency_format=True), entries=0, overruns=0, online_cpus=8)
        == b"# tracer: nop\n#\n"
    )


def test_options_by_their_names() -> None:
    assert TextOptions.from_names({"context-info", "irq-info", "annotate", "trace_printk"}) == TextOptions()
    assert TextOptions.from_names(()) == TextOptions(context_info=False, irq_info=False, annotate=False)
    every = [field.name.replace("_", "-") for field in attrs.fields(TextOptions)] + ["trace_printk"]
    assert TextOptions.from_names(every) == TextOptions(
        **{field.name: True for field in attrs.fields(TextOptions)}
    )
    assert not TextOptions.from_names({"printk-msg-only"}).printk_msg_only
