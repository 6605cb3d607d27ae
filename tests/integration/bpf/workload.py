"""Programs of bpftrace, their events, and a bpftrace that runs them: for tests of the installed version, and
of newer ones in roots of their own (versions.py)."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, Self

import attrs

import utracefs
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for

REQUEST: Final = "tracepoint:user_events:bt_request"
EVENTS: Final = {
    "bt_request": "u16 status; u32 usec; __rel_loc char[] path",
    "bt_begin": "u64 id",
    "bt_end": "u64 id",
    "bt_first": "",
    "bt_last": "",
    "bt_done": "",
}
REQUESTS: Final = [
    ((200, 404, 500)[n % 3], (100, 200, 400)[n % 3] + n, ("/index", "/cart", "/login")[n % 3])
    for n in range(30)
]
ANSWER_S: Final = 60


@attrs.frozen
class Program:
    text: str
    output: str
    """As `plain` makes it; a regular expression where it begins with ^."""

    def fits(self, output: str) -> bool:
        return bool(re.match(self.output, output)) if self.output[0] == "^" else output == self.output


BAR: Final = "@" * 52
PROGRAMS: Final = {
    "a predicate, and all kinds of sums": Program(
        f"{REQUEST} /args->status >= 500/ {{ @c = count(); @s = sum(args->usec); @a = avg(args->usec);"
        " @m = min(args->usec); @x = max(args->usec); @t = stats(args->usec); }",
        "@a: 415\n@c: 10\n@m: 402\n@s: 4155\n@t: count 10, average 415, total 4155\n@x: 429",
    ),
    "histograms by text": Program(
        f"{REQUEST} {{ @[str(args->path)] = hist(args->usec); }}",
        "".join(
            f"@[{path}]:\n[{low}, {2 * low}) 10 |{BAR}|\n"
            for path, low in (("/cart", 128), ("/index", 64), ("/login", 256))
        ).rstrip(),
    ),
    "a linear histogram": Program(
        f"{REQUEST} {{ @ = lhist(args->usec, 0, 500, 100); }}",
        f"@:\n[100, 200) 10 |{BAR}|\n[200, 300) 10 |{BAR}|\n[300, 400) 0 |{' ' * 52}|\n[400, 500) 10 |{BAR}|",
    ),
    "several keys": Program(
        f"{REQUEST} {{ @[args->status, str(args->path)] = count(); }}",
        "@[200, /index]: 10\n@[404, /cart]: 10\n@[500, /login]: 10",
    ),
    "printf, BEGIN, END": Program(
        'BEGIN { printf("hello\\n"); } END { printf("bye\\n"); }'
        f' {REQUEST} /args->usec > 420/ {{ printf("%d %d %s %d\\n", args->status, args->usec,'
        " str(args->path), pid == tid); }",
        "hello\n500 423 /login 1\n500 426 /login 1\n500 429 /login 1\nbye",
    ),
    "texts": Program(
        f'{REQUEST} /str(args->path) == "/cart"/ {{ @cart = count(); }}'
        f' {REQUEST} /strncmp(str(args->path), "/lo", 3) == 0/ {{ @lo = count(); }}',
        "@cart: 10\n@lo: 10",
    ),
    "loops": Program(
        f"{REQUEST} {{ $i = 0; while ($i < 3) {{ @w = sum($i); $i++; }} unroll(3) {{ @u = count(); }} }}",
        "@u: 90\n@w: 90",
    ),
    "tuples": Program(
        f"{REQUEST} {{ @[args->status] = (args->usec, 5); }}",
        "@[200]: (127, 5)\n@[404]: (228, 5)\n@[500]: (429, 5)",
    ),
    "latency by thread": Program(
        "tracepoint:user_events:bt_begin { @start[tid] = nsecs; }"
        " tracepoint:user_events:bt_end /@start[tid]/ { @ms = max((nsecs - @start[tid]) / 1000000);"
        " delete(@start[tid]); }",
        "^@ms: ([2-9][0-9]|[1-9][0-9]{2})$",
    ),
    "delete, clear, print, time": Program(
        REQUEST
        + """ { @a[args->status] = count(); @n++; if (@n == 30) { time("%H\\n"); print(@a); @n = 7;
            @z[1] = 1; delete(@z[1]); @k[2] = 2; } }
            tracepoint:user_events:bt_end { clear(@k); clear(@a); }""",
        r"^[0-2][0-9]\n@a\[200\]: 10\n@a\[404\]: 10\n@a\[500\]: 10\n@n: 7$",
    ),
    "intervals and profiles": Program(
        "interval:ms:20 { @i = count(); } profile:hz:50 { @p = count(); }"
        " tracepoint:user_events:bt_end { @e = count(); }",
        r"^@e: 3\n@i: [1-9][0-9]*\n@p: [1-9][0-9]*$",
    ),
    "who emitted": Program(
        f"{REQUEST} {{ @[comm, pid, pid == tid] = count(); }}", r"^@\[.+, [0-9]+, (1|true)\]: 30$"
    ),
}


class Bpftrace:
    """A bpftrace that is attached to the events of a Session; it ends when `bt_done` is emitted."""

    def __init__(self, command: Sequence[str], session: utracefs.Session, text: str, *options: str) -> None:
        self._events = {name: session.event(f"{name} {fields}".strip()) for name, fields in EVENTS.items()}
        wait_for(lambda: all(event.registered for event in self._events.values()), "registered")
        around = [
            f'tracepoint:user_events:bt_{name} {{ printf("{name}\\n"); }}' for name in ("first", "last")
        ]
        text = f"{around[0]} {text} {around[1]} tracepoint:user_events:bt_done {{ exit(); }}"
        self._seen = b""
        self.nr_done = 0
        """How often `bt_done` was emitted to end it."""
        self._process = Popen(
            [*command, "-B", "line", *options, "-e", text],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def attached(self) -> Self:
        """Probes are attached one after another: wait for records of the first and the last."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while not (b"first" in self._seen and b"last" in self._seen):
            assert self._process.poll() is None and time.monotonic() < deadline, self.end()
            self._events["bt_first"].emit()
            self._events["bt_last"].emit()
            time.sleep(0.05)
            self._seen += _available(self._process.stdout.fileno())
        return self

    def is_attached(self) -> bool:
        return self._events["bt_done"].enabled

    def emit(self) -> None:
        for request in REQUESTS:
            self._events["bt_request"].emit(*request)
        for n in range(3):
            self._events["bt_begin"].emit(n)
            time.sleep(0.02)
            self._events["bt_end"].emit(n)

    def interrupt(self) -> tuple[int, str, str]:
        """End it by Ctrl-C. bpftrace misses one that does not interrupt its wait."""
        out = error = b""
        while self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
            try:
                out, error = self._process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                continue
        return self._process.returncode, (self._seen + out).decode(), error.decode()

    def end(self) -> tuple[int, str, str]:
        """Its status, output and errors. Behind a flood `bt_done` may be lost, too."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            self._events["bt_done"].emit()
            self.nr_done += 1
            try:
                out, error = self._process.communicate(timeout=5)
                break
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline
        errors = [
            line for line in error.decode().splitlines(True) if not line.startswith("Attached ")
        ]  # 0.27
        return self._process.returncode, (self._seen + out).decode(), "".join(errors)


def command(daemon: DaemonProcess) -> list[str]:
    return [sys.executable, "-m", "utracefs.cli", "--dir", daemon.directory, "bpftrace"]


@contextlib.contextmanager
def started(
    daemon: DaemonProcess, text: str, *options: str, prefix: Sequence[str] = ()
) -> Iterator[tuple[utracefs.Session, Bpftrace]]:
    """A tool that is not attached yet, and a session in which its events are."""
    with (
        utracefs.Session(daemon.directory) as session,
        Bpftrace([*prefix, *command(daemon)], session, text, *options) as tool,
    ):
        yield session, tool


def _available(fd: int) -> bytes:
    return os.read(fd, 1 << 16) if select.select([fd], [], [], 0)[0] else b""


def plain(output: str) -> str:
    """Without what differs between versions: blanks, the order of maps, the form of stats()."""
    lines = [re.sub(r"(?<=[)\]:])\s+(\d*)\s+(?=\|)", r" \1 ", line).rstrip() for line in output.splitlines()]
    lines = [
        re.sub(
            r"\{ \.count = (\d+), \.average = (\d+), \.total = (\d+) \}",
            r"count \1, average \2, total \3",
            line,
        )
        for line in lines
    ]
    kept = [line for line in lines if line and not re.match(r"first|last|Attach", line)]
    printed, *maps = re.split(r"^(?=@)", "\n".join(kept) + "\n", flags=re.MULTILINE)
    return (printed + "".join(sorted(maps))).rstrip()
