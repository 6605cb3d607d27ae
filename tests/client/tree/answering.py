"""A daemon that answers as a test wants it to, for the blocking clients."""

import array
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from utracefs_protocol.connection import Connection, Request

Answer = Callable[[Request], "bytes | tuple[bytes, list[int]]"]


@contextlib.contextmanager
def answering(folder: Path, answer: Answer, *, name: str = "tracefs") -> Iterator[str]:
    """A daemon that answers each request with the bytes (and descriptors) that `answer` gives; b"" hangs
    up."""
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
        thread.join(60)
        listener.close()
        assert not thread.is_alive()
