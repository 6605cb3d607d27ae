"""The tree's client: against a daemon that can be made to misbehave, and against the real one."""

import array
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from utracefs.rpc import WINDOW, Call, Rpc
from utracefs.tracefs import Tracefs
from utracefs_protocol.connection import (
    Connection,
    Request,
    encode_error,
    encode_notification,
    encode_response,
)

Answer = Callable[[Request], "bytes | tuple[bytes, list[int]]"]


@contextlib.contextmanager
def answering(folder: Path, answer: Answer, *, name: str = "tracefs") -> Iterator[str]:
    """A daemon that answers each request with the bytes (and descriptors) that `answer` gives; b"" hangs up."""
    folder.mkdir(exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / name))
    listener.listen()

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            connection = Connection(max_object=None)
            while data := sock.recv(65536):
                for request in connection.receive(data):
                    assert isinstance(request, Request)
                    reply = answer(request)
                    data, fds = reply if isinstance(reply, tuple) else (reply, [])
                    if not data:
                        return
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                    sock.sendmsg([data], ancillary)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(folder)
    finally:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
            knock.connect(str(folder / name))
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def test_no_daemon(home: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Tracefs(str(home))
    assert caught.value.filename == str(home / "tracefs")


def test_nobody_listens_any_more(home: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_over:
        left_over.bind(str(home / "tracefs"))
        with pytest.raises(ConnectionRefusedError):
            Tracefs(str(home))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EACCES, PermissionError),
        (errno.EBUSY, OSError),
        (errno.EAGAIN, BlockingIOError),
    ],
)
def test_errors_have_number_text_and_path(home: Path, number: int, kind: type[OSError]) -> None:
    with (
        answering(home / "d", lambda r: encode_error(r.msgid, number, "because")) as directory,
        Tracefs(directory) as tree,
        pytest.raises(kind) as caught,
    ):
        tree.read_file("/events/x")
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (
        number,
        "because",
        "events/x",
    )


def test_what_is_asked(home: Path) -> None:
    asked: list[tuple[str, list[Any]]] = []

    def answer(request: Request) -> bytes:
        asked.append((request.method, request.params))
        result = {"stat": {"kind": "f", "mode": 0o640, "size": 0}, "list_dir": [["a", "f"], [b"\xff", "d"]]}
        return encode_response(request.msgid, result.get(request.method, 7))

    with answering(home / "d", answer) as directory, Tracefs(directory) as tree:
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


def test_write_all_goes_on_where_a_write_stopped(home: Path) -> None:
    writes: list[tuple[bytes, bool]] = []

    def answer(request: Request) -> bytes:
        _, data, truncate = request.params
        writes.append((data, truncate))
        return encode_response(request.msgid, 2 if data != b"e" else 0)

    with answering(home / "d", answer) as directory, Tracefs(directory) as tree:
        tree.write_all("set_event", b"abcd")
        with pytest.raises(OSError, match="1 bytes were not taken"):
            tree.write_all("set_event", b"e")
    assert writes == [(b"abcd", True), (b"cd", False), (b"e", True)]


def test_many_calls_are_under_way_at_once_and_answers_may_come_in_any_order(home: Path) -> None:
    waiting: list[Request] = []
    most = 0

    def answer(request: Request) -> bytes:
        nonlocal most
        waiting.append(request)
        most = max(most, len(waiting))
        if len(waiting) < WINDOW and request.params[0] != "last":
            return encode_notification("nothing", [])
        replies = b"".join(
            encode_error(r.msgid, errno.ENOENT, "no")
            if r.params[0].endswith("3")
            else encode_response(r.msgid, r.params[0].encode())
            for r in reversed(waiting)
        )
        waiting.clear()
        return replies

    names = [f"f{n}" for n in range(WINDOW * 2 - 1)] + ["last"]
    with answering(home / "d", answer) as directory, Tracefs(directory) as tree:
        outcomes = tree.read_files(names)
    assert most == WINDOW
    for name, outcome in zip(names, outcomes, strict=True):
        if name.endswith("3"):
            assert isinstance(outcome, FileNotFoundError)
            assert outcome.filename == name
        else:
            assert outcome == name.encode()


def test_the_daemon_hangs_up(home: Path) -> None:
    with answering(home / "d", lambda r: b"") as directory, Tracefs(directory) as tree:
        with pytest.raises(ConnectionResetError) as caught:
            tree.read_file("trace")
        assert caught.value.filename == f"{directory}/tracefs"
        with pytest.raises(ConnectionResetError):
            tree.read_file("trace")


def test_the_daemon_says_why_it_hangs_up(home: Path) -> None:
    refusal = encode_notification("error", [errno.EMFILE, "too many connections"])
    with answering(home / "d", lambda r: refusal) as directory, Tracefs(directory) as tree:
        with pytest.raises(OSError, match="too many connections") as caught:
            tree.read_file("trace")
        assert caught.value.errno == errno.EMFILE


def test_what_comes_is_no_answer(home: Path) -> None:
    with (
        answering(home / "d", lambda r: b"HTTP/1.1 400 Bad Request") as directory,
        Tracefs(directory) as tree,
    ):
        with pytest.raises(OSError, match="what came is no answer") as caught:
            tree.read_file("trace")
        assert caught.value.errno == errno.EPROTO


def test_an_answer_that_never_comes(home: Path) -> None:
    silence = encode_notification("nothing", [])
    with answering(home / "d", lambda r: silence) as directory, Tracefs(directory, timeout_s=0.05) as tree:
        with pytest.raises(TimeoutError) as caught:
            tree.read_file("trace")
        assert caught.value.strerror == "the daemon does not answer"


def test_descriptors(home: Path) -> None:
    read_end, write_end = os.pipe()

    def answer(request: Request) -> tuple[bytes, list[int]]:
        fds = [read_end, write_end] if request.params[0]["name"] == "a" else []
        return encode_response(request.msgid, {"handle": 3}), fds

    before = len(os.listdir("/proc/self/fd"))
    with answering(home / "d", answer) as directory, Tracefs(directory) as tree:
        handle, fd = tree.perf_event_open({"name": "a"})
        assert handle == 3
        assert fd is not None
        assert os.path.samestat(os.fstat(fd), os.fstat(read_end))
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert tree.perf_event_open({"name": "b"}) == (3, None)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(read_end)
    os.close(write_end)


def test_descriptors_that_nobody_took_are_closed(home: Path) -> None:
    read_end, write_end = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    reply = (encode_response(1, b""), [read_end])
    with answering(home / "d", lambda r: reply) as directory, Tracefs(directory) as tree:
        tree.read_file("trace")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(read_end)
    os.close(write_end)


def test_calls_over_the_data_socket(home: Path) -> None:
    with (
        answering(
            home / "d", lambda r: encode_response(r.msgid, r.method), name="user_events_data"
        ) as directory,
        Rpc("user_events_data", directory) as data,
    ):
        assert data.call("sync", [], "x") == "sync"
        assert data.call_many([Call("a", [], "x"), Call("b", [], "x")]) == ["a", "b"]


def test_the_real_tree(traced: Cli) -> None:
    directory = traced.env["UTRACEFS_DIR"]
    with Tracefs(directory, timeout_s=30) as tree:
        assert tree.directory == directory
        assert tree.read_file("tracing_on") == b"1\n"
        tree.write_file("tracing_on", b"0")
        assert tree.read_file("/tracing_on") == b"0\n"
        assert ("trace", "f") in tree.list_dir("")
        assert tree.stat("events").kind == "d"
        with pytest.raises(OSError) as caught:
            tree.write_file("tracing_on", b"x")
        assert caught.value.errno == errno.EINVAL
        pipe = tree.open("trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            tree.read(pipe, 100)
        with pytest.raises(OSError) as caught:
            tree.open("trace_pipe")
        assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, "trace_pipe")
        tree.close_handle(pipe)
        tree.write_file("dynamic_events", b"u:ev u32 a\n", truncate=False)
        handle, fd = tree.perf_event_open({"name": "user_events:ev", "data_pages": 2, "sample_period": 1})
        assert fd is not None
        assert os.fstat(fd).st_size == 3 * 4096
        os.close(fd)
        assert tree.read(handle, 8) == bytes(8)
        with pytest.raises(FileNotFoundError) as caught_missing:
            tree.perf_event_open({"name": "user_events:nosuch"})
        assert caught_missing.value.filename == "user_events:nosuch"
