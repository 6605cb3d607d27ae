"""The tree's client: what it asks, and what it makes of the answers."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.client.tree.answering import answering
from utracefs.tree.tracefs import PerfAttr, Stat, Tracefs
from utracefs_protocol.connection import Request, encode_response


def test_what_is_asked(directory: Path) -> None:
    asked: list[tuple[str, list[Any]]] = []

    def answer(request: Request) -> bytes:
        asked.append((request.method, request.params))
        result = {"stat": {"kind": "f", "mode": 0o640, "size": 0}, "list_dir": [["a", "f"], [b"\xff", "d"]]}
        return encode_response(request.msgid, result.get(request.method, 7))

    with answering(directory / "d", answer) as place, Tracefs(place) as tree:
        tree.write_file("/set_event", b"x", truncate=False)
        assert tree.stat("trace").mode == 0o640
        assert tree.list_dir() == [("a", "f"), ("\udcff", "d")]
        handle = tree.open("\udcff/trace", os.O_RDONLY | os.O_NONBLOCK)
        tree.read(handle, 100)
        tree.write(handle, b"data")
        tree.close_handle(handle)
        tree.mkdir("instances/a")
        tree.rmdir("instances/a")
        tree.perf_ioctl(3, "ID")
    assert asked == [
        ("write_file", ["set_event", b"x", False]),
        ("stat", ["trace"]),
        ("list_dir", [""]),
        ("open", [b"\xff/trace", os.O_RDONLY | os.O_NONBLOCK]),
        ("read", [7, 100]),
        ("write", [7, b"data"]),
        ("close", [7]),
        ("mkdir", ["instances/a"]),
        ("rmdir", ["instances/a"]),
        ("perf_ioctl", [3, "ID", 0]),
    ]


def test_write_all_continues_where_a_write_stopped(directory: Path) -> None:
    writes: list[tuple[bytes, bool]] = []

    def answer(request: Request) -> bytes:
        _, data, truncate = request.params
        writes.append((data, truncate))
        return encode_response(request.msgid, 2 if data != b"e" else 0)

    with answering(directory / "d", answer) as place, Tracefs(place) as tree:
        tree.write_all("set_event", b"abcd")
        with pytest.raises(OSError, match="1 bytes were not taken"):
            tree.write_all("set_event", b"e")
    assert writes == [(b"abcd", True), (b"cd", False), (b"e", True)]


def test_descriptors(directory: Path) -> None:
    read_end, write_end = os.pipe()

    def answer(request: Request) -> tuple[bytes, list[int]]:
        fds = [read_end, write_end] if request.params[0]["name"] == "a" else []
        return encode_response(request.msgid, {"handle": 3}), fds

    before = len(os.listdir("/proc/self/fd"))
    with answering(directory / "d", answer) as place, Tracefs(place) as tree:
        handle, fd = tree.perf_event_open(PerfAttr(name=b"a"))
        assert handle == 3
        assert fd is not None
        assert os.path.samestat(os.fstat(fd), os.fstat(read_end))
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert tree.perf_event_open(PerfAttr(name=b"b")) == (3, None)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(read_end)
    os.close(write_end)


def test_whole_answers(directory: Path) -> None:
    results: dict[str, Any] = {
        "stat": {"kind": "d", "mode": 0o755, "size": 0, "later": 1},
        "read_file": b"content",
        "list_dir": [["a", "f"], ["b"]],
    }
    with (
        answering(directory / "d", lambda r: encode_response(r.msgid, results[r.method])) as place,
        Tracefs(place) as tree,
    ):
        assert tree.directory == place
        assert tree.stat("events") == Stat("d", 0o755)
        assert tree.read_file("trace") == b"content"
        with pytest.raises(OSError, match=r"entry of a directory must be \[name, kind\]") as caught:
            tree.list_dir("x")
        assert (caught.value.errno, caught.value.filename) == (errno.EPROTO, "x")
