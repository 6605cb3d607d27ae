"""Output to a terminal, without control characters from programs.

Names of events, fields, threads and instances, and texts in records, are bytes chosen by unprivileged
programs; escape sequences among them would move the cursor, set titles or type answers. So all output of the
command line to a terminal passes one function (`harmless`): `guard` puts it below sys.stdout and sys.stderr,
and `?` replaces

    C0 (but tab and newline), DEL, C1, also as bytes that are not UTF-8     steer terminals
    U+2028, U+2029, U+202A to U+202E, U+2066 to U+2069                      end lines, or turn their order

Files and pipes get the bytes, but LF and CR in a record of `report`, `stream` and `perf` are `?` there, too
(`in_one_line`). The command line's own sequences (`top`, `hist`, progress bars) go to `own(stream)`,
bypassing this, and never with rich's redirect_stdout; text of programs is passed through `harmless` there.
"""

import codecs
import contextlib
import io
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from utracefs_protocol.terminal import harmless

if TYPE_CHECKING:
    from rich.live import Live


class _File(io.FileIO):
    """The descriptor of a standard stream. Its errors are about that stream: others of no file are not."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self.name
            raise


class _Terminal(io.RawIOBase):
    """Writes to a terminal without control characters. Owns nothing: closing it leaves the stream below
    open."""

    def __init__(self, below: io.TextIOWrapper) -> None:
        self.below = below
        # An incomplete character waits for its rest.
        self._decoder = codecs.getincrementaldecoder(below.encoding)("surrogateescape")

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.below.fileno()

    def write(self, data: Any) -> int:
        text = harmless(self._decoder.decode(bytes(data)))
        self.below.buffer.write(text.encode(self.below.encoding, "replace"))
        self.below.buffer.flush()
        return len(data)


def guard() -> None:
    """From now on sys.stdout and sys.stderr replace control characters if they are terminals; errors of
    writing to other files name the stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and own(stream) is stream:
            stream.flush()
            is_terminal = stream.isatty()
            raw: Any = _Terminal(stream) if is_terminal else _File(stream.fileno(), "w", closefd=False)
            raw.name = name
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    io.BufferedWriter(raw),
                    stream.encoding,
                    stream.errors,
                    line_buffering=is_terminal or name == "stderr",
                    write_through=name == "stderr",
                ),
            )


@contextlib.contextmanager
def quit_key(*, wanted: bool = True) -> Iterator[Callable[[float], bool]]:
    """For live views: a function that waits for at most so many seconds, and says whether `q` was pressed. It
    never is without a terminal to read from, or if not `wanted`: a command reads it."""
    fd = sys.stdin.fileno() if wanted and sys.stdin is not None and sys.stdin.isatty() else -1
    is_ours = fd >= 0
    with contextlib.suppress(OSError):  # it is not our controlling terminal: nobody else reads it
        is_ours = is_ours and os.tcgetpgrp(fd) == os.getpgrp()
    if not is_ours:
        yield lambda seconds: bool(select.select([], [], [], seconds)[0])
        return
    modes = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSANOW)
    try:
        yield lambda seconds: bool(select.select([fd], [], [], seconds)[0]) and b"q" in os.read(fd, 1024)
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, modes)


def live(*, screen: bool = False) -> "Live":
    """rich's view that is renewed in place, begun. Without rich's thread: signals are blocked, and programs
    are started."""
    from rich.console import Console
    from rich.live import Live

    found = Live(
        console=Console(file=own(sys.stdout), highlight=False),
        screen=screen,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    found.start()
    return found


def own(stream: TextIO) -> TextIO:
    """The stream below, flushed, for the command line's own escape sequences."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(raw, _Terminal):
        return stream
    stream.flush()
    return raw.below
