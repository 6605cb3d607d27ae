"""Recordings for readers of streams that know only a daemon: a socket that answers as the tracefs socket.

    trace.dat ─▶ Recording ─▶ RingWriter ─▶ ring ─▶ reader (utracefs_stream.h)
                    └─ available_events, format, id ─▶ read_file

It has the files of events, and streams of the records, from the first one to the last: the end of the
doorbell is the end of the recordings. It waits for the reader. There are no filters.
"""

import contextlib
import errno
import os
import shutil
import socket
import socketserver
import tempfile
import threading
from typing import Any, Final

from utracefs.recordings.recording import Recording
from utracefs.streaming._ring_writer import RingWriter
from utracefs.tree.closing import Closing
from utracefs_protocol.connection import Connection, Request, encode_error, encode_response
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.events.event_names import matches
from utracefs_protocol.messages.rows import Params
from utracefs_protocol.messages.tracefs import (
    METHODS,
    ReadFile,
    Ready,
    StreamAttr,
    StreamOpened,
)
from utracefs_protocol.places import TRACEFS_SOCKET
from utracefs_protocol.text import bytes_of, text_of

_PAUSE_S: Final = 0.001
"""How long the ring of a slow reader may be full before it is looked at again."""


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class Replay(Closing):
    """Serves a recording in a directory of its own; a context manager that ends it."""

    def __init__(self, recording: Recording) -> None:
        """recording: opened with raw_eventheader."""
        # Socket paths have at most 107 bytes, so not below a TMPDIR that may be deep.
        self.directory: Final = tempfile.mkdtemp(prefix="utracefs-", dir="/tmp")
        self.error: TraceError | None = None
        """Invalid data, at which the records end."""
        self.notes: Final[set[str]] = set()
        """Losses, for the end of the reader."""
        self._recording = recording
        self._ids: dict[int, int] = {}
        self._described: dict[int, bytes] = {}
        self._names: dict[int, tuple[bytes, bytes]] = {}
        self._files: dict[bytes, bytes] = {}
        self._over = threading.Event()
        self._describe()
        self._server = _Server(f"{self.directory}/{TRACEFS_SOCKET}", self._serve)  # type: ignore[arg-type]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _describe(self) -> None:
        """Give every event of every file an id: the same one to events of one name and one declaration."""
        known: dict[tuple[str, bytes, object], int] = {}
        for number, one in enumerate(self._recording.files):
            for system, event in one.formats:
                kind = (system, event.name, event.fields)
                id_ = known.setdefault(kind, len(known) + 1)
                self._ids[number << 16 | event.id] = id_
                self._names[id_] = bytes_of(system), event.name
                text = format_text(event.name, id_, event.fields, event.print_fmt)
                self._described[id_] = bytes_of(system) + b"\0" + text
                folder = b"events/%s/%s/" % (bytes_of(system), event.name)
                self._files.setdefault(folder + b"format", text)
                self._files.setdefault(folder + b"id", b"%d\n" % id_)
        names = sorted({f"{system}:{text_of(name)}\n" for system, name, _ in known})
        self._files[b"available_events"] = bytes_of("".join(names))

    def _serve(self, sock: socket.socket, *_: object) -> None:
        protocol = Connection(max_object=1 << 20)
        over = threading.Event()
        with contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                for message in protocol.receive(data):
                    if not isinstance(message, Request):
                        continue
                    try:
                        fds, result = self._answer(message, over)
                    except TraceError as error:
                        sock.sendall(encode_error(message.msgid, error.errno, error.text))
                        continue
                    answer = encode_response(message.msgid, result)
                    sent = socket.send_fds(sock, [answer], fds) if fds else 0
                    sock.sendall(answer[sent:])
                    for fd in fds:
                        os.close(fd)
        over.set()

    def _answer(self, request: Request, over: threading.Event) -> tuple[list[int], Any]:
        kind = METHODS.get(request.method)
        params: Params | None = kind.from_params(request.params) if kind else None
        match params:
            case ReadFile(path=path):
                if path in self._files:
                    return [], self._files[path]
                inside = any(name.startswith(path.rstrip(b"/") + b"/") for name in self._files)
                number = errno.EISDIR if inside else errno.ENOENT
                raise TraceError(number, f"{text_of(path)}: {os.strerror(number)}")
            case StreamAttr():
                return self._open(params, over), StreamOpened(handle=1).to_wire()
            case Ready():
                return [], True
        raise TraceError(errno.ENOSYS, f"a recording has no {request.method}")

    def _open(self, attr: StreamAttr, over: threading.Event) -> list[int]:
        if attr.filter is not None or attr.instances:
            raise TraceError(errno.EINVAL, "a recording has no filters and no instances; record with them")
        ids = {
            number: id_ if any(matches(word, *self._names[id_]) for word in attr.events) else 0
            for number, id_ in self._ids.items()
        }
        bell, ring_bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        writer = RingWriter(self._recording.reading().records, ids, self._described, attr.size)
        threading.Thread(
            target=self._write, args=(writer, ring_bell, over, any(ids.values())), daemon=True
        ).start()
        return [os.dup(writer.fd), bell]

    def _write(self, writer: RingWriter, ring_bell: int, over: threading.Event, is_any: bool) -> None:
        try:
            while is_any and not over.is_set() and not self._over.is_set():
                written = writer.write()
                with contextlib.suppress(BlockingIOError):
                    os.write(ring_bell, b"!")
                if written is None:
                    break
                if not written:
                    over.wait(_PAUSE_S)
        except BrokenPipeError:
            pass  # the reader is gone
        except ValueError as error:
            self.error = TraceError(errno.EINVAL, f"{self._recording.path}: broken: {error}")
        finally:
            if writer.unknown:
                self.notes.add(f"{writer.unknown} records of events without a format were left out")
            if writer.records.lost_uncounted:
                self.notes.add("more records were lost than could be counted")
            os.close(ring_bell)
