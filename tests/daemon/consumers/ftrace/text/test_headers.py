"""The headers of `trace` with options together; 09_trace_text.txt has each of them alone."""

from functools import partial

import pytest

from tests.daemon.consumers.ftrace.text.text_model import text_options
from utracefsd.consumers.ftrace.text.headers import header

trace_header = partial(header, kernel_release=b"6.12.117")
ENTRIES = b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 158/600   #P:2\n#\n"
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
HEADERS = [
    (
        text_options(record_tgid=True, irq_info=False),
        ENTRIES
        + b"#           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION\n"
        + b"#              | |           |       |         |         |\n",
    ),
    (text_options(context_info=False, latency_format=True), b"# tracer: nop\n#\n"),
    (text_options(latency_format=True, verbose=True), PREAMBLE),
]


@pytest.mark.parametrize(("options", "text"), HEADERS)
def test_header(options: frozenset[str], text: bytes) -> None:
    for ignored in (set(), {"raw"}, {"hex"}, {"bin"}, {"fields"}):
        shown = trace_header(options | ignored, entries=158, overruns=442, is_empty=False, online_cpus=2)
        assert shown == text


def test_header_of_an_empty_buffer() -> None:
    empty = partial(trace_header, entries=0, overruns=0, is_empty=True, online_cpus=8)
    assert empty(text_options()).startswith(
        b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 0/0   #P:8\n#\n#        "
    )
    assert empty(text_options(latency_format=True)) == b"# tracer: nop\n#\n"
