"""Bad input on every file that can be written: the errno of the kernel, and nothing changed.

The expectations are the answers of Linux 6.18 to the same writes in an instance of its own. Files with a
command language of their own (filter, trigger and the like) have their own tests.
"""

import errno
import os
from collections.abc import Iterator

import pytest

from tests.daemon.tree.world import World
from utracefs_protocol.errors import TraceError

E = errno

BAD = {
    "empty": b"",
    "newline": b"\n",
    "blank": b" ",
    "blanks": b"  \n",
    "text": b"foo\n",
    "negative": b"-1\n",
    "hexadecimal": b"0x1\n",
    "two": b"1 1\n",
    "fraction": b"1.5\n",
    "long number": b"1" * 4096,
    "long blank": b" " * 4096,
    "long text": b"a" * 5000,
    "nul": b"\0",
    "behind a nul": b"1\0junk",
    "huge": b"9" * 30 + b"\n",
    "2^64": b"18446744073709551616\n",
    "2^32": b"4294967296\n",
    "not utf-8": b"\xff\xfe\n",
    "plus": b"+1\n",
    "blank in front": b" 1\n",
    "blank behind": b"1 \n",
    "two lines": b"1\n1\n",
}

# The result of each for a kind of file: an errno, 0 for success. `else` is all others.
Answers = dict[str, int]

NUMBER: Answers = {
    "else": E.EINVAL,
    "long number": E.ERANGE,
    "huge": E.ERANGE,
    "2^64": E.ERANGE,
    "behind a nul": 0,
    "plus": 0,
}
WORD: Answers = {"else": E.EINVAL}
ANYTHING: Answers = {"else": 0}
PIDS: Answers = {
    "else": 0,
    "text": E.EINVAL,
    "negative": E.EINVAL,
    "fraction": E.EINVAL,
    "long number": E.EINVAL,
    "long text": E.EINVAL,
    "behind a nul": E.EINVAL,
    "huge": E.EINVAL,
    "2^64": E.EINVAL,
    "not utf-8": E.EINVAL,
}
EVENT_WORDS: Answers = {
    "else": E.EINVAL,
    "empty": 0,
    "newline": 0,
    "blank": 0,
    "blanks": 0,
    "long blank": 0,
    "nul": 0,
}
MASK: Answers = {
    "else": 0,
    "empty": E.EINVAL,
    "text": E.EINVAL,
    "negative": E.EINVAL,
    "hexadecimal": E.EINVAL,
    "fraction": E.EINVAL,
    "not utf-8": E.EINVAL,
    "plus": E.EINVAL,
    "two": E.EOVERFLOW,
    "long number": E.EOVERFLOW,
    "long text": E.EOVERFLOW,
    "huge": E.EOVERFLOW,
    "2^64": E.EOVERFLOW,
    "2^32": E.EOVERFLOW,
}
RAW_MARKER: Answers = {
    "else": E.EINVAL,
    **dict.fromkeys(
        ("text", "hexadecimal", "two", "fraction", "behind a nul", "huge", "2^64", "2^32", "two lines"), 0
    ),
}
SIZE = {**NUMBER, "2^32": E.ENOMEM}

INSTANCE_FILES: dict[str, Answers] = {
    "buffer_percent": NUMBER,
    "buffer_size_kb": SIZE,
    "buffer_subbuf_size_kb": NUMBER,
    "current_tracer": WORD,
    "error_log": ANYTHING,
    "events/enable": NUMBER,
    "events/user_events/alpha/enable": NUMBER,
    "events/user_events/enable": NUMBER,
    "free_buffer": ANYTHING,
    "per_cpu/cpu0/buffer_size_kb": SIZE,
    # 2^32 clears an allocated snapshot, and there is none.
    "per_cpu/cpu0/snapshot": {**NUMBER, "2^32": 0},
    "per_cpu/cpu0/trace": ANYTHING,
    "set_event": EVENT_WORDS,
    "set_event_notrace_pid": PIDS,
    "set_event_pid": PIDS,
    "snapshot": {**NUMBER, "2^32": 0},
    "trace": ANYTHING,
    "trace_clock": WORD,
    "trace_marker": ANYTHING,
    "trace_marker_raw": RAW_MARKER,
    "trace_options": WORD,
    "tracing_cpumask": MASK,
    "tracing_on": {**NUMBER, "2^32": 0},
}

TOP_FILES: dict[str, Answers] = {
    "dynamic_events": {
        "else": E.EINVAL,
        **dict.fromkeys(("empty", "newline", "blank", "blanks"), 0),
    },
    "saved_cmdlines_size": NUMBER,
    "user_events_data": {"else": E.EPERM},
}

OURS = {
    "remove_on_close",
    "standing_events",
    "standing_filters",
    "standing_triggers",
    "consumers",
    "event_counts",
}
"""Files that no kernel has; their own tests have their errors."""

ELSEWHERE = {"filter", "trigger", "inject", "synthetic_events"}
"""Files with a language of their own, and tests of their own."""


@pytest.fixture
def world(world: World) -> World:
    world.tree.mkdir(b"instances/a")
    world.event(b"alpha u32 n")
    return world


def writable(world: World, path: bytes) -> Iterator[bytes]:
    """Every file with a `w` in its mode below a directory, relative to it."""
    for name, kind in world.tree.list_dir(path or b"."):
        below = b"/".join(filter(None, (path, name)))
        if name.decode() in OURS | ELSEWHERE:
            continue
        if kind == "d":
            if name != b"instances":
                yield from writable(world, below)
        elif world.tree.stat(below).mode & 0o200:
            yield below


def test_no_file_is_missing_here(world: World) -> None:
    found = {path.removeprefix(b"instances/a/").decode() for path in writable(world, b"instances/a")}
    found = {path for path in found if not path.startswith(("options/", "per_cpu/cpu1/"))}
    assert found == set(INSTANCE_FILES)
    top = {path.decode() for path in writable(world, b"")}
    top = {path for path in top if not path.startswith(("options/", "per_cpu/cpu1/"))}
    assert top == {*INSTANCE_FILES, *TOP_FILES}


def expected(answers: Answers, name: str) -> int:
    return answers.get(name, answers["else"])


def answer(world: World, path: bytes, data: bytes) -> int:
    file = world.open(path, os.O_WRONLY)
    try:
        file.write(data)
    except TraceError as error:
        assert error.text
        return error.errno
    finally:
        file.close()
    return 0


@pytest.mark.parametrize(
    ("where", "file", "answers"),
    [
        *(("", file, answers) for file, answers in TOP_FILES.items()),
        *(("instances/a/", file, answers) for file, answers in INSTANCE_FILES.items()),
        *(
            ("instances/a/", f"options/{option}", NUMBER)
            for option in ("overwrite", "raw", "test_nop_accept")
        ),
    ],
)
def test_the_errno_is_the_kernel_s_and_nothing_changes(
    world: World, where: str, file: str, answers: Answers
) -> None:
    path = (where + file).encode()
    readable = world.tree.stat(path).mode & 0o400 and file != "user_events_data"
    for name, data in BAD.items():
        before = world.cat(path) if readable else b""
        wanted = expected(answers, name)
        assert answer(world, path, data) == wanted, name
        if wanted and readable:
            assert world.cat(path) == before, name


def test_an_option_that_refuses(world: World) -> None:
    """Also a number that is one: as all nop options it says EINVAL, or that it has this value."""
    answers = {**NUMBER, "behind a nul": E.EINVAL, "plus": E.EINVAL}
    for name, data in BAD.items():
        assert answer(world, b"instances/a/options/test_nop_refuse", data) == expected(answers, name), name
        assert world.cat(b"instances/a/options/test_nop_refuse") == b"0\n"
