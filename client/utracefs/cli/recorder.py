"""Bring what a daemon records into a trace.dat while it is being recorded.

    per_cpu/cpuN/trace_pipe_raw ──▶ pages ──▶ TraceDatWriter
    set_event, events/*/format  ──▶ formats, looked for again and again: an event may be gone at the end

A round reads every cpu that is due, many pages at a time, all in a few round trips. A cpu that gave full
pages is read again at once; one that gave nothing, less and less often up to IDLE_S. That is well below the
time in which a busy program fills a buffer of the default size (1.4 MB; at 200,000 records/s of 40 bytes some
170 ms).
"""

import errno
import os
import time
from collections.abc import Sequence
from typing import Self

import attrs

from utracefs.cli.common import numbers
from utracefs.event_names import EventName, parse_event_list
from utracefs.trace_dat import Contents, TraceDatWriter
from utracefs.tracefs import Tracefs
from utracefs_protocol.subbuf import MARKER_IP
from utracefs_protocol.text import bytes_of

__all__ = ["Recorder", "Summary"]

BUSY_S = 0.02
IDLE_S = 0.1
TEXTS_S = 1.0
MAX_PAGES = 32
"""Pages asked of one cpu in one round."""

MARKER_SYMBOL = b"%x t tracing_mark_write\n" % MARKER_IP
"""The one line of the symbol table: readers look a marker's ip up in it and print the name."""


@attrs.frozen
class Summary:
    """What became of a recording."""

    records: int
    lost: int
    """Overwritten before they were read, or dropped because the buffer was full."""
    size: int
    """Bytes of the file."""


class _Cpu:
    """One cpu's trace_pipe_raw."""

    def __init__(self, number: int, handle: int) -> None:
        self.number = number
        self.handle = handle
        self.pages = 1
        """To ask for in the next round."""
        self.wait_s = BUSY_S
        self.due = 0.0


class Recorder:
    """A context manager that gives up the file unless it was finished. `step` while it runs, `drain` and
    `finish` at the end.

    Where the daemon goes away (ConnectionError, TimeoutError from `step`), `finish` writes what came until
    then.
    """

    def __init__(self, tree: Tracefs, path: str) -> None:
        self._tree = tree
        self._page_size = int(tree.read_file("buffer_subbuf_size_kb")) * 1024
        internal = [
            f"events/ftrace/{name}/format" for name, kind in tree.list_dir("events/ftrace") if kind == "d"
        ]
        self._contents = Contents(
            header_page=tree.read_file("events/header_page"),
            header_event=tree.read_file("events/header_event"),
            ftrace_formats=[text for text in tree.read_files(internal) if isinstance(text, bytes)],
            kallsyms=MARKER_SYMBOL,
            printk_formats=tree.read_file("printk_formats"),
            trace_clock=tree.read_file("trace_clock"),
        )
        cpus = sorted(int(name[3:]) for name, kind in tree.list_dir("per_cpu") if kind == "d")
        self._writer = TraceDatWriter(path, nr_cpus=len(cpus), page_size=self._page_size)
        flags = os.O_RDONLY | os.O_NONBLOCK
        self._cpus = [_Cpu(cpu, tree.open(f"per_cpu/cpu{cpu}/trace_pipe_raw", flags)) for cpu in cpus]
        self._formats: dict[EventName, bytes] = {}
        self._texts_due = 0.0
        self._before = self._stats = self._read_stats()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def step(self) -> float:
        """One round; how many seconds may pass until the next."""
        now = time.monotonic()
        if now >= self._texts_due:
            self.read_texts()
            self._texts_due = time.monotonic() + TEXTS_S
        due = [cpu for cpu in self._cpus if cpu.due <= now]
        self._round(due)
        now = time.monotonic()
        for cpu in due:
            cpu.due = now + cpu.wait_s
        return max(0.0, min(cpu.due for cpu in self._cpus) - now)

    def read_texts(self) -> None:
        """What the file holds besides pages and may change or vanish: formats of enabled events, names of
        threads."""
        tree = self._tree
        events = parse_event_list(tree.read_file("set_event"))
        new = [event for event in events if event not in self._formats]
        contents = tree.read_files(f"{event.directory}/format" for event in new)
        for event, content in zip(new, contents, strict=True):
            if isinstance(content, bytes):
                self._formats[event] = content
        self._contents = attrs.evolve(self._contents, cmdlines=tree.read_file("saved_cmdlines"))
        self._stats = self._read_stats()

    def drain(self) -> None:
        """All that is there. Recording should have stopped, or this may never end."""
        while self._round(self._cpus):
            pass
        self.read_texts()

    def finish(self, *, uname: str, version: str, trace_id: int, offset_ns: int | None) -> Summary:
        """Write the file. Asks the daemon nothing."""
        formats: dict[bytes, list[bytes]] = {}
        for event, text in self._formats.items():
            formats.setdefault(bytes_of(event.system), []).append(text)
        size = self._writer.finish(
            attrs.evolve(
                self._contents,
                formats=formats,
                cpu_stats=dict(enumerate(self._stats)),
                uname=uname,
                version=version,
                trace_id=trace_id,
                offset_ns=offset_ns,
            )
        )
        grown = {
            name: sum(numbers(text).get(name, 0) for text in self._stats)
            - sum(numbers(text).get(name, 0) for text in self._before)
            for name in ("read events", "overrun", "dropped events")
        }
        return Summary(grown["read events"], grown["overrun"] + grown["dropped events"], size)

    def _round(self, cpus: Sequence[_Cpu]) -> bool:
        """Read each of them once, so many pages at a time as it seems to have; whether one may have more."""
        outcomes = iter(
            self._tree.read_many([(cpu.handle, self._page_size) for cpu in cpus for _ in range(cpu.pages)])
        )
        more = False
        for cpu in cpus:
            got = 0
            for _ in range(cpu.pages):
                outcome = next(outcomes)
                if isinstance(outcome, bytes):
                    if len(outcome) == self._page_size:
                        self._writer.add_page(cpu.number, outcome)
                        got += 1
                elif outcome.errno != errno.EAGAIN:
                    raise outcome
            if got == cpu.pages:
                cpu.pages = min(cpu.pages * 2, MAX_PAGES)
                cpu.wait_s = 0.0 if got > 1 else BUSY_S
                more = True
            elif got:
                cpu.pages = max(got + 1, 2)
                cpu.wait_s = BUSY_S
            else:
                cpu.pages = 1
                cpu.wait_s = min(cpu.wait_s * 2, IDLE_S) or BUSY_S
        return more

    def _read_stats(self) -> list[bytes]:
        texts = self._tree.read_files(f"per_cpu/cpu{cpu.number}/stats" for cpu in self._cpus)
        found = [text for text in texts if isinstance(text, bytes)]
        if len(found) < len(texts):
            raise next(text for text in texts if isinstance(text, OSError))
        return found
