"""Blocking calls, against a daemon that can be made to misbehave."""

import errno
import os
import resource
import socket
from pathlib import Path

import pytest

from tests.client.tree.answering import answering
from utracefs.tree.rpc import WINDOW, Rpc, checked
from utracefs_protocol.connection import Request, encode_error, encode_notification, encode_response
from utracefs_protocol.messages.data import MmapStatus, StatusMapped, Sync
from utracefs_protocol.messages.tracefs import ReadFile


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EACCES, PermissionError),
        (errno.EBUSY, OSError),
        (errno.EAGAIN, BlockingIOError),
    ],
)
def test_errors_have_number_text_and_path(directory: Path, number: int, kind: type[OSError]) -> None:
    with (
        answering(directory / "d", lambda r: encode_error(r.msgid, number, "because")) as place,
        Rpc("tracefs", place) as rpc,
        pytest.raises(kind) as caught,
    ):
        rpc.call(ReadFile(b"events/x"), "events/x")
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (
        number,
        "because",
        "events/x",
    )


def test_many_calls_are_under_way_at_once_and_answers_may_come_in_any_order(directory: Path) -> None:
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
    with answering(directory / "d", answer) as place, Rpc("tracefs", place) as rpc:
        outcomes = rpc.call_many((ReadFile(name.encode()), name) for name in names)
    assert most == WINDOW
    for name, outcome in zip(names, outcomes, strict=True):
        if name.endswith("3"):
            assert isinstance(outcome, FileNotFoundError)
            assert outcome.filename == name
        else:
            assert outcome == name.encode()


@pytest.mark.parametrize("count", [3, WINDOW * 2])
def test_answers_before_the_daemon_hangs_up(directory: Path, count: int) -> None:
    """A read takes records away, so its answer is not dropped."""
    left = 2

    def answer(request: Request) -> bytes:
        nonlocal left
        left -= 1
        return encode_response(request.msgid, b"page") if left >= 0 else b""

    calls = [(ReadFile(b"x"), "x")] * count
    with answering(directory / "d", answer) as place, Rpc("tracefs", place) as rpc:
        outcomes = rpc.call_many(calls, keeps=True)
        assert outcomes[:2] == [b"page"] * 2 and len(outcomes) == count
        assert all(isinstance(outcome, ConnectionResetError) for outcome in outcomes[2:])
        with pytest.raises(ConnectionResetError):
            rpc.call_many(calls)


def test_the_daemon_hangs_up(directory: Path) -> None:
    with answering(directory / "d", lambda r: b"") as place, Rpc("tracefs", place) as rpc:
        with pytest.raises(ConnectionResetError) as caught:
            rpc.call(ReadFile(b"trace"), "trace")
        assert caught.value.filename == f"{place}/tracefs"
        with pytest.raises(ConnectionResetError):
            rpc.call(ReadFile(b"trace"), "trace")


def test_the_daemon_says_why_it_hangs_up(directory: Path) -> None:
    refusal = encode_notification("error", [errno.EMFILE, "too many connections"])
    with answering(directory / "d", lambda r: refusal) as place, Rpc("tracefs", place) as rpc:
        with pytest.raises(OSError, match="too many connections") as caught:
            rpc.call(ReadFile(b"trace"), "trace")
        assert caught.value.errno == errno.EMFILE


def test_descriptors_come_where_none_is_left(directory: Path) -> None:
    with answering(directory / "d", lambda r: b"") as place, Rpc("tracefs", place) as rpc:
        ours, theirs = socket.socketpair()
        rpc._socket.close()
        rpc._socket = ours
        socket.send_fds(theirs, [b"x"], [0, 1])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(ConnectionError, match="ulimit -n") as caught:
                rpc._receive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caught.value.errno == errno.EMFILE
        theirs.close()


def test_what_comes_is_no_answer(directory: Path) -> None:
    with (
        answering(directory / "d", lambda r: b"HTTP/1.1 400 Bad Request") as place,
        Rpc("tracefs", place) as rpc,
    ):
        with pytest.raises(OSError, match="invalid answer") as caught:
            rpc.call(ReadFile(b"trace"), "trace")
        assert caught.value.errno == errno.EPROTO


def test_an_answer_that_never_comes(directory: Path) -> None:
    silence = encode_notification("nothing", [])
    with answering(directory / "d", lambda r: silence) as place, Rpc("tracefs", place, timeout_s=0.05) as rpc:
        with pytest.raises(TimeoutError) as caught:
            rpc.call(ReadFile(b"trace"), "trace")
        assert caught.value.strerror == "the daemon does not answer"
        with pytest.raises(
            ConnectionResetError
        ) as closed:  # and not whatever has the descriptor's number now
            rpc.call(ReadFile(b"trace"), "trace")
        assert closed.value.strerror == "the connection is closed"


def test_descriptors_that_were_not_taken_are_closed(directory: Path) -> None:
    read_end, write_end = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    reply = (encode_response(1, b""), [read_end])
    with answering(directory / "d", lambda r: reply) as place, Rpc("tracefs", place) as rpc:
        rpc.call(ReadFile(b"trace"), "trace")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(read_end)
    os.close(write_end)


def test_calls_over_the_data_socket(directory: Path) -> None:
    with (
        answering(
            directory / "d", lambda r: encode_response(r.msgid, r.method), name="user_events_data"
        ) as place,
        Rpc("user_events_data", place) as data,
    ):
        assert data.call(Sync(), "x") == "sync"
        assert data.call_many([(MmapStatus(), "x"), (Sync(), "x")]) == ["mmap_status", "sync"]


def test_results_that_are_not_understood() -> None:
    assert checked(StatusMapped.from_wire, {"size": 4096}, "x") == StatusMapped(4096)
    with pytest.raises(OSError, match="invalid answer: size must be an integer") as caught:
        checked(StatusMapped.from_wire, {}, "x")
    assert (caught.value.errno, caught.value.filename) == (errno.EPROTO, "x")


def test_asking_and_passing_over(directory: Path) -> None:
    """Nothing is waited for but by `answer`; what was passed over does not disturb a call."""
    waiting: list[Request] = []

    def answer(request: Request) -> bytes:
        waiting.append(request)
        replies = (
            [encode_response(r.msgid, r.params[0].encode()) for r in waiting] if len(waiting) > 1 else []
        )
        return b"".join(replies) or encode_notification("nothing", [])

    with answering(directory / "d", answer) as place, Rpc("tracefs", place, timeout_s=20) as rpc:
        assert rpc.fileno() >= 0
        rpc.ask(ReadFile(b"one"))
        rpc.pass_over()
        second = rpc.ask(ReadFile(b"two"))
        assert rpc.answer(second, "two") == b"two"
        assert rpc.call(ReadFile(b"three"), "three") == b"three"
        rpc.pass_over()
        with pytest.raises(ConnectionResetError):
            rpc.close()
            rpc.ask(ReadFile(b"four"))
