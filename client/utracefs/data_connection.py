"""One connection to the daemon: what the session thread asks on it, and what it makes of the answers.

    ask        mmap_status, mmap_ring, then DIAG_IOCSREG for every event, in the order of their declaration; `sync` for
               each flush
    receive    the status file and the data ring are mapped; answered events follow their byte; refused ones stay off

Events move to a connection together (see session.py, "Reconnect"): until the status file is mapped and every event that
the connection before this one knew is answered, nothing but requests is sent. What is declared later moves by itself.

The data ring outlives a connection: what was committed while no daemon looked is still in it. On the next connection it
is offered for adoption (adopt_ring) once the old events are answered, if they have the write_index they had, because that
is what its records carry. Otherwise, or when the daemon does not want it, what it holds is lost, which is counted, and a new
one is asked for. A daemon that gives none, or UTRACEFS_DATA_RING=0, leaves the socket: everything works there, too.

The daemon is trusted with what it says, but not with what would crash the application: numbers out of range and a status
file shorter than it claims end the connection (EPROTO).
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from utracefs import _producer
from utracefs._producer import Event, StatusMap
from utracefs.declaring import name_args
from utracefs.session import CONNECTING, PATIENCE_S, UP, Flush, Session
from utracefs_protocol.connection import Connection, Notification, Response, encode_request
from utracefs_protocol.errors import ProtocolError, TraceError
from utracefs_protocol.limits import DATA_RING_SIZE, MAX_DATA_RING, MAX_UNANSWERED, MIN_DATA_RING
from utracefs_protocol.messages import Registered, wire_text

if TYPE_CHECKING:
    import threading

__all__ = ["DataConnection"]


def _wants_ring() -> bool:
    return os.environ.get("UTRACEFS_DATA_RING", "1") != "0"


def _ring_size() -> int:
    """Bytes: UTRACEFS_RING_KB rounded up to what a ring can have. Nonsense there is not the application's fault: ignored."""
    text = os.environ.get("UTRACEFS_RING_KB", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return DATA_RING_SIZE
    return min(max(1 << (int(text) * 1024 - 1).bit_length(), MIN_DATA_RING), MAX_DATA_RING)


_RECEIVE_BYTES: Final = 64 << 10
_MAX_DESCRIPTORS: Final = 4


class DataConnection:
    """What is said on one connection: requests out, answers in. Used by the session thread only."""

    def __init__(self, session: Session, no_fork: threading.RLock) -> None:
        self._session = session
        self._no_fork = no_fork
        self._messages = Connection(max_object=None)
        self._requests: dict[int, str | Event | list[Flush]] = {}
        # Until the ring is settled, one way or the other, no event moves to this connection.
        self._ring_settled = not _wants_ring()
        self._adopts = not self._ring_settled and session.sink.ring_size > 0
        self._next_msgid = 0
        self._asked = 0
        self._map: StatusMap | None = None
        self._answers: list[tuple[Event, int, int]] = []
        self._by_old_index = session.events_by_index()
        # Events that records may be waiting for, which are all that were registered before.
        self._first_batch = {id(event) for event in self._by_old_index if event is not None}
        self._taken_over = False
        session.sink.start_stream(True)

    @property
    def answered(self) -> bool:
        return self._map is not None

    def flushes_under_way(self) -> list[Flush]:
        requests = list(self._requests.values())
        return [flush for flushes in requests if isinstance(flushes, list) for flush in flushes]

    def ask(self) -> None:
        """Hand the sink what there is to ask, if it has sent the last batch."""
        sink = self._session.sink
        if sink.control_pending:
            return
        requests: list[bytes] = []
        after = 0
        if not self._next_msgid:
            requests.append(self._request("mmap_status", [], "mmap_status"))
            if not self._ring_settled and not self._adopts:
                requests.append(self._ask_ring())
        declared = self._session.declared
        while self._asked < len(declared) and len(self._requests) < MAX_UNANSWERED - 1:
            event = declared[self._asked]
            self._asked += 1
            reg: dict[str, Any] = {"name_args": wire_text(name_args(event))}
            if event.flags:
                reg["flags"] = event.flags
            requests.append(self._request("DIAG_IOCSREG", [reg], event))
        if self._session.flushes and self._taken_over and len(self._requests) < MAX_UNANSWERED:
            flushes: list[Flush] = []
            while self._session.flushes:
                flushes.append(self._session.flushes.pop())
            # All that those calls speak of stands before this place.
            after = sink.position
            requests.append(self._request("sync", [], flushes))
        if requests:
            sink.set_control(b"".join(requests), after)

    def _ask_ring(self) -> bytes:
        return self._request("mmap_ring", [{"size": _ring_size()}], "mmap_ring")

    def _request(self, method: str, params: list[Any], about: str | Event | list[Flush]) -> bytes:
        msgid = self._next_msgid
        self._next_msgid = msgid + 1 & 0xFFFF_FFFF
        self._requests[msgid] = about
        return encode_request(msgid, method, params)

    def receive(self, sock: socket.socket) -> bool:
        """Read and act on it; False at the end of the connection. ProtocolError: not a daemon of ours."""
        with self._no_fork:
            try:
                data, fds, _, _ = socket.recv_fds(
                    sock, _RECEIVE_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._session.received_fds += fds
        if not data:
            return False
        for message in self._messages.receive(data):
            if isinstance(message, Response):
                self._take_response(message)
            elif isinstance(message, Notification):
                self._take_notification(message)
            else:
                raise ProtocolError(errno.EPROTO, f"the daemon sent a {type(message).__name__}")
        self._settle_answers()
        if self._adopts and not self._requests and self._map is not None and self._asked_first_batch:
            self._offer_ring(sock)
        return True

    @property
    def _asked_first_batch(self) -> bool:
        """Whether every event that the connection before this one knew was asked for and answered."""
        return self._first_batch <= {id(event) for event, _, _ in self._answers}

    def _take_response(self, response: Response) -> None:
        about = self._requests.pop(response.msgid, None)
        match about:
            case None:
                raise ProtocolError(errno.EPROTO, f"response to msgid {response.msgid}, which was not asked")
            case Event():
                if response.error is None:
                    try:
                        registered = Registered.from_wire(response.result)
                    except TraceError as error:
                        raise ProtocolError(errno.EPROTO, error.text) from None
                    self._answers.append((about, registered.status_index, registered.write_index))
                else:
                    self._refuse(about, TraceError(*response.error))
            case list():
                for flush in about:
                    flush.done = response.error is None
                    if flush.done:
                        self._session.flushed_records = max(self._session.flushed_records, flush.records)
                    flush.release()
            case "mmap_status":
                self._map_status(response)
            case "mmap_ring":
                self._map_ring(response)
            case _:
                self._adopted(response)

    def _map_status(self, response: Response) -> None:
        if response.error is not None:
            raise ProtocolError(response.error[0], f"mmap_status: {response.error[1]}")
        match response.result:
            case {"size": int() as size} if size > 0 and self._session.received_fds:
                pass
            case _:
                raise ProtocolError(errno.EPROTO, "mmap_status: no size or no descriptor")
        fd = self._session.received_fds[0]
        # A file shorter than what is mapped would be SIGBUS at some `if event:`.
        if os.fstat(fd).st_size < size:
            raise ProtocolError(errno.EPROTO, f"mmap_status: the file has less than {size} bytes")
        try:
            self._map = StatusMap(fd, size)
        except OSError as error:
            raise ProtocolError(error.errno or errno.EPROTO, f"mmap_status: {error.strerror}") from None
        with self._no_fork:
            self._session.received_fds.remove(fd)
            os.close(fd)

    def _map_ring(self, response: Response) -> None:
        """Refused for whatever reason: the socket will do."""
        self._ring_settled = True
        if response.error is not None:
            return
        session = self._session
        match response.result:
            case {"size": int() as size, "version": 1} if len(session.received_fds) >= 2:
                fd, doorbell = session.received_fds[:2]
            case _:
                raise ProtocolError(errno.EPROTO, "mmap_ring: no size, another version, or no descriptors")
        try:
            if os.fstat(fd).st_size < size:
                raise ProtocolError(errno.EPROTO, f"mmap_ring: the memory has less than {size} bytes")
            session.sink.map_ring(fd, doorbell, size)
        except OSError as error:
            session.warn("no data ring: %s", error.strerror)
            return
        with self._no_fork:
            del session.received_fds[:2]
            session.ring_fds[:] = [fd, doorbell]

    def _offer_ring(self, sock: socket.socket) -> None:
        """Every old event is answered: offer the ring that there is, or give it up and ask for another."""
        session = self._session
        places = {id(event): write_index for event, _, write_index in self._answers}
        same = all(
            event is None or places.get(id(event)) == index for index, event in enumerate(self._by_old_index)
        )
        self._adopts = False
        if same:
            request = self._request("adopt_ring", [{}], "adopt_ring")
            # Nothing else is being sent: records are held, and requests wait for one another.
            if socket.send_fds(sock, [request], session.ring_fds) != len(request):
                raise ProtocolError(errno.EPROTO, "the socket does not take a request")
        else:
            self._give_up_ring()

    def _adopted(self, response: Response) -> None:
        if response.error is None:
            self._ring_settled = True
        else:
            self._session.warn("the data ring was not taken over: %s", response.error[1])
            self._give_up_ring()

    def _give_up_ring(self) -> None:
        self._session.sink.drop_ring(self._by_old_index)
        self._session.close_ring_fds()
        self._session.sink.set_control(self._ask_ring(), 0)

    def _refuse(self, event: Event, error: TraceError) -> None:
        self._first_batch.discard(id(event))
        seen = event.error is not None and event.error.errno == error.errno
        event.error = error
        event._set_off()
        if not seen:
            self._session.warn("event %s is off: %s (%s)", event.name, error.text, error.errno_name)

    def _take_notification(self, notification: Notification) -> None:
        match notification.method, notification.params:
            case "error", [int(), str() as text]:
                self._session.warn("the daemon ends the connection: %s", text)
            case "write_error", [int() as number, int() as write_index, int() as count]:
                self._count_refused(number, write_index, count)
            case _:
                pass  # additions to the protocol are nothing to stumble over

    def _count_refused(self, number: int, write_index: int, count: int) -> None:
        name = TraceError(number, "").errno_name
        for event in self._session.declared:
            if event.index == write_index:
                event.refused[name] = event.refused.get(name, 0) + count
                return

    def _settle_answers(self) -> None:
        """Let the events go where the answers say, once all that must move together is there."""
        session = self._session
        if self._map is not None:
            moves = [
                (event, self._map, status_index, write_index)
                for event, status_index, write_index in self._answers
            ]
            try:
                if self._taken_over:
                    _producer.settle(moves)
                    self._answers.clear()
                elif self._ring_settled and self._asked_first_batch:
                    session.sink.take_over(moves, self._by_old_index)
                    self._taken_over = True
                    self._answers.clear()
                    if session.state == CONNECTING:
                        session.state = UP
            except ValueError as error:
                raise ProtocolError(errno.EPROTO, str(error)) from None
            if session.closing:
                _producer.set_all_off(session.declared)
        if not self._requests and self._asked == len(session.declared):
            session.patience_s = PATIENCE_S
        session.wake_waiters()
