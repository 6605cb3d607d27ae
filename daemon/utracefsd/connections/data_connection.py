"""One connection to the data socket: one open file of user_events_data, without the socket.

Bytes and descriptors go in, bytes and descriptors come out; its port (port.py) reads and sends. A connection
has the state of an open file in the kernel: its own write_index table, append-only, and a reference on each
event in it until it closes.

    method                      corresponds to                        docs/protocol.md
    DIAG_IOCSREG [reg]          ioctl, register                       3.1
    DIAG_IOCSDEL [name]         ioctl, delete                         3.2
    DIAG_IOCSUNREG [unreg]      ioctl, unregister an enabler          3.2
    DIAG_IOCQLOCOFFSET []       ioctl of the first patch: 8           3.3
    mmap_status []              mmap of user_events_status            3.4
    write [bin]                 write(2), acknowledged                3.5
    sync []                     all my records reached the consumers  3.6
    adopt_ring [{}]             take records from this data ring      3.7
    notify_enablers [{}]        notify me of changes to my tokens     3.8
    open_for [process]          I represent that process              3.9
    (bare bin)                  write(2), one way                     2, 3.5

**Order.** Messages are carried out in order of arrival, so a record may use the write_index of a registration
in the same packet, and everything before an invalid byte is carried out.

**Refused records** are reported in `write_error` notifications, by errno and write_index: the first at once,
then at most one a second, the largest count first. Those in a data ring are seen with the next bytes that
come over the socket (a `sync`). `next_timer_ns` says when the next is due.

**Descriptors** arrive with some bytes of the stream, beside the first byte of their request. A request uses
descriptors that came with or before its first byte and after the last byte of the message before the packet;
`enable_fd` is an index into them. They are closed when the packet's messages are done, unless its last
message is incomplete and may need them. Then at most two are kept, as many as a request needs, and at most
for HALF_MESSAGE_NS.

**Enablers with tokens** (events/notifier.py): `enablers_changed` is sent at the end of the step with the
change, or when the previous one is acknowledged.

**On behalf.** After `open_for`, `peer` is that process: its limits count, it owns the events and enable
words. The port charges the connection to that user.

**Turns.** Between two messages `receive` yields None, where its port may serve others.

**Limits.** 64 KiB an object, nesting 8, 16 descriptors waiting. Beyond them, or when the framing breaks: the
notification `["error", [errno, text]]`, and `closing` is set; the port sends the queue and closes. Every
request is answered at once. Directly after a restart a `sync`, like records, waits until data rings are read,
and so does everything behind it (`is_blocked`). So unanswered requests are only these, and those behind
responses that the peer does not read, which the port leaves in the socket.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from utracefs_protocol.connection import (
    Connection,
    Notification,
    Request,
    encode_error,
    encode_notification,
    encode_response,
)
from utracefs_protocol.errors import TOO_OLD, ProtocolError, TraceError
from utracefs_protocol.limits import ENTRY_HEADER_SIZE, MAX_DATA_OBJECT
from utracefs_protocol.messages import data as messages
from utracefs_protocol.messages import tracefs
from utracefs_protocol.messages.rows import Params
from utracefs_protocol.text import shown
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.events.notifier import Notifier
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake.rings import Rings, RingServices
from utracefsd.machine.closing import close_foreign
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource

Outgoing = list[tuple[bytes, list[int]]]
"""Messages in order; descriptors are sent with the first byte of their message, and the port closes them
after that."""

MAX_WAITING_DESCRIPTORS = 16
"""Descriptors of a connection that may wait: a registration needs one, and each is one of the daemon's."""

MAX_KEPT_DESCRIPTORS = 2
"""Descriptors that an incomplete message may keep: `adopt_ring` needs two, other requests fewer."""

HALF_MESSAGE_NS = 5_000_000_000
"""Time for which they are kept. A program sends a message at once, so only a debugger or a stop delays the
rest."""

WRITE_ERROR_INTERVAL_NS = 1_000_000_000
"""Interval of `write_error`, so that a program that writes invalid records gets no notification for each."""

MAX_REFUSED = 64
"""Lines of refused_events."""

REGISTRATIONS_AT_ONCE = 32
"""Registrations are counted for the user in steps of this many: counting each would double the cost."""


class Services(RingServices, Protocol):
    """The daemon, as a data connection and its data ring use it."""

    table: EventTable
    """The table of its events."""
    rings: Rings
    """Adopts data rings."""

    def take_in_all(self) -> None:
        """Carry out everything that other connections sent before, also their ends."""

    def hand_over(self) -> None:
        """Pass the records taken in to consumers that take them in batches."""

    def time_of_records(self) -> int | None:
        """The time for records that come now; None: they have to wait, and their connection `is_blocked`."""

    def speak_up(self, connection: DataConnection, /) -> None:
        """This connection has a message to send, which answers no request."""

    def open_for(self, connection: DataConnection, process: messages.OpenFor, /) -> Peer:
        """Charge the connection to this process from now on. Raises TraceError."""


class DataConnection:
    """The daemon's side of one connection to the data socket.

    `closing` is set when the connection must end: send what `receive` returned, then `close`.
    """

    def __init__(self, services: Services, peer: Peer) -> None:
        self._services = services
        self.table = services.table
        self.peer = peer
        self.closing = False
        self.index_table = IndexTable()
        self._set_writers()
        self._packet_ns = 0
        self._waits = False
        """The next input has to wait until the rings of the previous daemon are back."""
        self._rings = services.rings
        self._on_behalf = False
        self._notifier: Notifier | None = None
        self._ring: DataRing | None = None
        self.stream = Connection(max_object=MAX_DATA_OBJECT, take_records=self._take_records)
        self._write_index_of: dict[Event, int] = {}
        self._room = 0
        """Number of registrations counted for its user."""
        self._has_grown = False
        """Records in the ring may have waited for registrations of this packet."""
        self._outgoing: Outgoing = []
        self._fds: list[int] = []  # for the next message
        self._coming_fds: list[int] = []  # for messages behind the incomplete one
        self._straddling = False  # a message begun in an earlier packet is still incomplete
        self._kept_until_ns: int | None = None
        """When the rest of an incomplete message with descriptors must have come."""
        self._next_error_ns: int | None = None
        """When the next `write_error` may be sent; None: at once."""
        self._closed = False
        self.table.enablers.hold(peer)

    # Called by the port

    @property
    def waiting(self) -> bool:
        """There is a message to send."""
        return (self._notifier is not None and self._notifier.has_news) or bool(self._outgoing)

    @property
    def is_blocked(self) -> bool:
        return self._waits and self._must_wait()

    @property
    def nr_descriptors(self) -> int:
        """Received ones that wait for their message."""
        return len(self._fds) + len(self._coming_fds)

    def _set_writers(self) -> None:
        peer, writers = self.peer, self._services.all_writers
        # It has no reference to this connection, to avoid a cycle.
        self.index_table.make_writers = lambda: writers.of(
            peer.pid, peer.start_time or 0, peer.share, peer.lives
        )

    def _must_wait(self) -> bool:
        self._waits = self._services.time_of_records() is None
        return self._waits

    def receive(
        self, data: bytes, fds: Sequence[int], now_ns: int
    ) -> Iterator[tuple[bytes, list[int]] | None]:
        """Take in one packet: bytes, and the descriptors that came with them, which this object owns from now
        on. The previous packet must have been taken in completely.

        Yields messages to send, and None before each message but records. Raises nothing for any input of a
        peer: it responds, or sets `closing`.
        """
        if self.closing:
            close_foreign(fds, self.peer.share)
            return
        self._packet_ns = now_ns
        self._straddling = self.stream.bytes_pending > 0
        if fds:
            (self._coming_fds if self._straddling else self._fds).extend(fds)
            if len(self._fds) + len(self._coming_fds) > MAX_WAITING_DESCRIPTORS:
                self._fail(
                    TraceError(errno.EPROTO, f"more than {MAX_WAITING_DESCRIPTORS} descriptors at once")
                )
                yield from self._take_outgoing()
                return
        try:
            for message in self.stream.receive_in_turns(data):
                if message is None:
                    yield None
                    if self.closing:  # its ring turned out invalid meanwhile
                        break
                    continue
                if isinstance(message, Request):
                    while self._is_for_rings(message.method) and self._must_wait():
                        yield None
                    self._request(message, now_ns)
                elif isinstance(message, Notification):
                    self._notified(message, now_ns)
                else:
                    raise ProtocolError(errno.EPROTO, "a response, but the daemon asked nothing")
                if self._straddling:
                    self._message_done()
                if self._outgoing:
                    yield from self._take_outgoing()
                if self.closing:
                    break
        except ProtocolError as error:
            self._fail(error)
        if not self.closing:
            self._packet_done(now_ns)
            if self._has_grown:
                self._has_grown = False
                self._rings.take_in()  # records that waited for their registrations
            self._tell_refused(now_ns)
        yield from self._take_outgoing()

    def last_answers(self) -> Outgoing:
        """Nothing: all requests before the end are answered already."""
        return []

    def next_timer_ns(self) -> int | None:
        """When `speak` has a message; None: never."""
        if self.closing:
            return None
        due_ns = self._next_error_ns if self.index_table.refused else None
        if self._kept_until_ns is not None and (due_ns is None or self._kept_until_ns < due_ns):
            due_ns = self._kept_until_ns
        return due_ns

    def speak(self, now_ns: int) -> Iterator[tuple[bytes, list[int]]]:
        """Messages without a request: because time has passed, an enabler has changed, or the ring of this
        connection turned out invalid. A message that the caller does not take is repeated the next time."""
        if not self.closing:
            if self._kept_until_ns is not None and self._kept_until_ns <= now_ns:
                text = "a message with descriptors stays incomplete; send it in one go"
                self._fail(TraceError(errno.ETIMEDOUT, text))
            self._tell_refused(now_ns)
            if self._notifier is not None and (message := self._notifier.next_message()) is not None:
                self._send(message)
        while self._outgoing:
            yield self._outgoing.pop(0)

    def close(self, now_ns: int) -> None:
        """The connection is closed: drop all its references and descriptors. A second call is harmless."""
        if self._closed:
            return
        self._closed = self.closing = True
        self.stream.close()
        with contextlib.ExitStack() as steps:  # from the last to the first, each even if another fails
            steps.callback(self._remember_name)
            steps.callback(self.table.enablers.drop, self.peer)
            steps.callback(self._drop_references, now_ns)
            if self._notifier is not None:
                notifier, self._notifier = self._notifier, None
                steps.callback(self.table.enablers.close_notifier, notifier, now_ns)
            if self._ring is not None:
                ring, self._ring = self._ring, None
                steps.callback(self._rings.drop, ring)
            for _, fds in self._take_outgoing():
                for fd in fds:
                    steps.callback(os.close, fd)
            steps.callback(self._drop_fds)

    def _remember_name(self) -> None:
        # An ended process is a zombie for a moment, and /proc still has its last name. If it ended long ago,
        # and a child keeps the connection, its number may belong to another process now.
        if task := self.peer.lives():
            self._services.comms.remember(self.peer.pid, self.peer.pid, task=task)

    def _drop_references(self, now_ns: int) -> None:
        self._rings.ended(self.index_table)
        self.index_table = IndexTable()  # a ring that is left keeps the other one
        room, self._room = self._room, 0
        self.table.shares.drop(Resource.REGISTRATIONS, self.peer.share, room)
        events, self._write_index_of = self._write_index_of, {}
        self.table.release_all(events)

    # Packets, messages, descriptors

    def _packet_done(self, now_ns: int) -> None:
        """Keep the descriptors of an incomplete message, close all others."""
        if self._straddling and self._coming_fds:
            self._fds += self._coming_fds
            self._coming_fds = []
        if not self._fds:
            return
        if not self.stream.bytes_pending:
            self._drop_fds()
        elif len(self._fds) > MAX_KEPT_DESCRIPTORS:
            text = f"an incomplete message with more than {MAX_KEPT_DESCRIPTORS} descriptors"
            self._fail(TraceError(errno.EPROTO, text + "; send it in one go"))
        elif self._kept_until_ns is None:
            self._kept_until_ns = now_ns + HALF_MESSAGE_NS

    def _take_records(self, buffer: bytes | bytearray | memoryview, offset: int) -> int:
        time_ns = self._services.time_of_records()
        self._waits = time_ns is None
        if time_ns is None:
            return offset
        self._services.save()
        end = self.index_table.take_in(buffer, offset, self.peer.pid, time_ns)
        pid, writers = self.peer.pid, self.index_table.writers
        for tid in (pid,) if writers is None else (pid, *writers.threads()):
            self._services.comms.wrote(tid, pid)
        if self._straddling:
            self._message_done()
        return end

    def _message_done(self) -> None:
        """The message begun in an earlier packet is complete: descriptors that came since are for later
        messages."""
        if self._straddling:
            self._straddling = False
            done, self._fds, self._coming_fds = self._fds, self._coming_fds, []
            self._kept_until_ns = None
            close_foreign(done, self.peer.share)

    def _drop_fds(self) -> None:
        dropped, self._fds, self._coming_fds = self._fds + self._coming_fds, [], []
        self._kept_until_ns = None
        close_foreign(dropped, self.peer.share)

    def _fail(self, error: TraceError) -> None:
        """Send the last message to this peer, and end the connection."""
        daemon_log("bad-peer", pid=self.peer.pid, reason=error.text)
        self._send(encode_notification("error", [error.errno, error.text]))
        self.closing = True
        self._drop_fds()

    def _send(self, data: bytes, fds: list[int] | None = None) -> None:
        self._outgoing.append((data, fds or []))

    def _take_outgoing(self) -> Outgoing:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    # Requests

    def _request(self, request: Request, now_ns: int) -> None:
        kind = messages.METHODS.get(request.method)
        params: Params | None = None
        try:
            if kind is None:
                hint = "it belongs to the tracefs socket" if request.method in tracefs.METHODS else TOO_OLD
                raise TraceError(errno.ENOSYS, f"unknown method {request.method[:64]!r}: {hint}")
            params = kind.from_params(request.params)
            result = _METHODS[kind](self, params)
            if result is not _UNANSWERED:
                answer = encode_response(request.msgid, result)
                self._send(answer, [self._readonly_status()] if kind is messages.MmapStatus else None)
        except TraceError as error:
            if isinstance(params, messages.EventRegistration):
                self._note_refused(params.name_args[:512], error, now_ns)
                if params.write_index is not None:
                    self._end_waits(params.write_index)
            daemon_log("request-refused", pid=self.peer.pid, method=request.method[:64], reason=error.text)
            self._send(encode_error(request.msgid, error.errno, error.text))

    def _note_refused(self, command: bytes, error: TraceError, now_ns: int) -> None:
        refused, pid = self.table.refused, self.peer.pid
        (name, *_) = command.replace(b":", b" ").split() or [b""]
        program = f"{shown(self._services.comms.comm(pid))[1:-1]}-{pid}"
        refused.pop(command, None)
        refused[command] = (
            f"{now_ns / 1e9:.6f} {shown(name)[1:-1]}: {program} declares {shown(command)}, but"
            f" {error.text} ({error.errno_name})\n"
        ).encode("utf-8", "backslashreplace")
        if len(refused) > MAX_REFUSED:
            del refused[next(iter(refused))]

    def _notified(self, notification: Notification, now_ns: int) -> None:
        if notification.method != messages.EnablersWritten.METHOD or self._notifier is None:
            return  # unknown: ignored, for future versions
        try:
            self._notifier.written(messages.EnablersWritten.from_params(notification.params).seq, now_ns)
        except TraceError as error:
            self._fail(error)

    def _notify_enablers(self, _: messages.NotifyEnablers) -> None:
        if self._notifier is not None:
            raise TraceError(errno.EEXIST, "this connection already has notify_enablers")
        self._notifier = self.table.enablers.notifiers.add(
            self.peer, functools.partial(self._services.speak_up, self)
        )

    def _open_for(self, process: messages.OpenFor) -> None:
        """EBUSY, EPERM; ESRCH as Peer.of_process, EMFILE when that user has too many connections."""
        if self._on_behalf:
            raise TraceError(errno.EBUSY, f"this connection is that of process {self.peer.pid} already")
        if not self.peer.privileged:
            raise TraceError(errno.EPERM, "only root and the daemon's own user open for another process")
        if self._ring is not None or self._notifier is not None or self._room:
            raise TraceError(errno.EBUSY, "this connection is in use; open_for comes first on a new one")
        before = self.peer
        self.peer = self._services.open_for(self, process)
        self._set_writers()
        self._on_behalf = True
        self.table.enablers.hold(self.peer)
        self.table.enablers.drop(before)

    def _register_token(self, reg: messages.EventRegistration, token: int) -> dict[str, Any]:
        """Register an enabler only, by its token: no write_index."""
        notifier = self._notifier
        if notifier is None:
            text = "enable_token without notify_enablers; ask for that first on this connection"
            raise TraceError(errno.EINVAL, text)
        self.table.enablers.check_token(notifier, token)
        _, event = self._find_or_create(reg)
        self.table.acquire(event)
        try:
            enabled = self.table.enablers.add_notified(notifier, token, event)
        finally:
            self.table.release(event)  # a new event does not outlive an error
        return messages.EnablerRegistered(event.status_index, event.id, enabled).to_wire()

    def _register(self, reg: messages.EventRegistration) -> dict[str, Any]:
        """The checks of user_events_ioctl_reg(), in its order; unreadable memory has no counterpart in a
        message."""
        if reg.token is not None:
            return self._register_token(reg, reg.token)
        if reg.enabler is not None:
            enable_fd = self._fd(reg.enabler.fd, "enable_fd")
            place = self.table.enablers.check(enable_fd, reg.enabler)
        wanted = len(self.index_table) if reg.write_index is None else reg.write_index
        if wanted < len(self.index_table):
            raise TraceError(errno.EINVAL, f"write_index {wanted} is in use; take a larger one")
        self._make_room(wanted + 1)
        asked, event = self._find_or_create(reg)
        write_index = self._write_index_of.get(event)
        if write_index is None:
            self.table.acquire(event)
            write_index = self._write_index_of[event] = self._append(event, wanted)
        elif reg.write_index is not None:
            write_index = self._append(event, wanted)
        if reg.enabler is not None:
            # From here on an error leaves the event referenced by this connection, as in
            # user_events_ioctl_reg().
            self.table.enablers.add(place, enable_fd, event, self.peer)
        tracepoint = event.tracepoint
        return messages.Registered(
            event.status_index,
            write_index,
            event.id,
            tracepoint.min_size,
            tracepoint.locations,
            0 if event.fields_text == asked.fields_text else event.id,
        ).to_wire()

    def _make_room(self, size: int) -> None:
        """Count registrations for the user before the table has so many."""
        shares, peer = self.table.shares, self.peer
        if size > self._room:
            steps = (size - self._room + REGISTRATIONS_AT_ONCE - 1) // REGISTRATIONS_AT_ONCE
            more = steps * REGISTRATIONS_AT_ONCE
            shares.check(Resource.REGISTRATIONS, peer.share, more, privileged=peer.privileged)
            shares.add(Resource.REGISTRATIONS, peer.share, more)
            self._room += more

    def _append(self, event: Event | None, wanted: int) -> int:
        before = len(self.index_table)
        index = self.index_table.append(event.tracepoint if event else None, wanted)
        if self._ring is not None:
            self._rings.grown(self._ring, [0] * (index - before) + [event.id if event else 0])
            self._has_grown |= self._ring.is_early
        return index

    def _end_waits(self, write_index: int) -> None:
        """The registration of this write_index is refused: its records wait no more."""
        if len(self.index_table) <= write_index < self._room:
            self._append(None, write_index)
        elif self._ring is not None:
            self._has_grown |= self._ring.is_early
            self._rings.wait_no_more(self._ring)

    def _find_or_create(self, reg: messages.EventRegistration) -> tuple[CommandString, Event]:
        asked, peer = CommandString.parse(reg.name_args), self.peer
        event = self.table.register(
            asked, reg.flags, reg.event_id, privileged=peer.privileged, owner_uid=peer.share
        )
        self.table.refused.pop(reg.name_args, None)
        return asked, event

    def _delete(self, deletion: messages.EventDeletion) -> None:
        if self.peer.privileged:  # others may delete nothing, so their requests must not delay anybody
            self._services.take_in_all()
        self.table.delete(deletion.name, privileged=self.peer.privileged)

    def _unregister(self, unreg: messages.EventUnregistration) -> None:
        """user_events_ioctl_unreg(). Its last error has no counterpart: a mapped word can be written."""
        if unreg.token is not None:
            if self._notifier is None:
                raise TraceError(errno.ENOENT, f"token {unreg.token}: this connection has no tokens")
            self.table.enablers.remove_notified(self._notifier, unreg.token, self._packet_ns)
        else:
            self.table.enablers.remove(self._fd(unreg.fd, "disable_fd"), unreg.addr, unreg.bit)

    def _mmap_status(self, _: messages.MmapStatus) -> dict[str, Any]:
        return messages.StatusMapped(self.table.status_file.size, True, messages.PROTOCOL_VERSION).to_wire()

    def _readonly_status(self) -> int:
        try:
            return self.table.status_file.readonly_fd()
        except OSError as error:
            raise TraceError(
                error.errno or errno.EIO, f"no descriptor for the status file: {error.strerror}"
            ) from error

    def _write(self, write: messages.Write) -> int:
        time_ns = self._services.time_of_records()
        assert time_ns is not None, "receive waits"
        tid = pid = self.peer.pid
        cpu = None
        if write.tid is not None:
            if not self._on_behalf:
                text = "only a connection after open_for names the thread that writes; leave the tid out"
                raise TraceError(errno.EPERM, text)
            # A file may have been inherited, so the thread's process need not be the peer's.
            tid = write.tid
            process, cpu = self._services.comms.meet(tid)
            pid = process or pid
        taken = self.index_table.write(write.record, tid, time_ns, pid, cpu)
        if taken < 0:
            raise TraceError(-taken, _why_refused(-taken))
        self._services.comms.wrote(tid, pid)
        return taken

    def _sync(self, _: messages.Sync) -> object:
        # Everything sent before this request has been carried out; still to do: records committed to the
        # ring, and the batches of plug-ins. Older records of other rings are taken in first, so that no time
        # is moved; but for an empty ring other rings are not read.
        if self._is_for_rings("sync"):
            return _UNANSWERED  # the daemon ends, and the next one takes them in
        if self._ring is not None and self._ring.pending_bytes:
            self._rings.take_in()
        self._services.hand_over()
        return None

    def _is_for_rings(self, method: str) -> bool:
        """Whether this request has to wait for the rings of the previous daemon."""
        if method == "sync":
            return self._ring is not None and self._rings.gathering and self._ring.pending_bytes > 0
        return method == "write"

    def _adopt_ring(self, wanted: messages.AdoptRing) -> dict[str, Any]:
        self._check_may_have_ring()
        fd, doorbell = self._fd(0, "ring"), self._fd(1, "doorbell")
        if self._rings.in_use(fd):
            # Notices the end of a connection that has just had it; its registrations hold for what is in it.
            self._services.take_in_all()
        self._fds.remove(fd)
        self._fds.remove(doorbell)
        ring = self._ring = self._rings.adopt(
            self.index_table, self.peer, fd, doorbell, self._ring_failed, early=wanted.early
        )
        if not wanted.early:  # its records are taken in with those of others, behind its registrations
            self._rings.take_in()
        return messages.RingMapped(ring.size).to_wire()

    def _check_may_have_ring(self) -> None:
        if self._on_behalf:
            raise TraceError(errno.EPERM, "a data ring is a process's own; send records over this socket")
        if self._ring is not None:
            raise TraceError(
                errno.EEXIST, "this connection has a data ring; one serves all threads of a process"
            )

    def _ring_failed(self, error: TraceError) -> None:
        if not self.closing:
            self._fail(error)

    def _fd(self, index: int, what: str) -> int:
        if index >= len(self._fds):
            raise TraceError(
                errno.EINVAL,
                f"{what} {index}: {len(self._fds)} descriptors came with this request; count from 0",
            )
        return self._fds[index]

    def _tell_refused(self, now_ns: int) -> None:
        counts = self.index_table.refused
        if counts and (self._next_error_ns is None or self._next_error_ns <= now_ns):
            self._next_error_ns = now_ns + WRITE_ERROR_INTERVAL_NS
            reason = max(counts, key=counts.__getitem__)
            self._send(encode_notification("write_error", [*reason, counts.pop(reason)]))


_UNANSWERED = object()
"""The result of a `sync` at the daemon's end."""

# Functions, not methods of one connection: methods would keep it alive until a garbage collection. Each takes
# the message of that name and returns the result.
_METHODS: dict[type[Params], Callable[[DataConnection, Any], Any]] = {
    messages.EventRegistration: DataConnection._register,
    messages.EventDeletion: DataConnection._delete,
    messages.EventUnregistration: DataConnection._unregister,
    messages.LocOffsetQuery: lambda one, _: ENTRY_HEADER_SIZE,
    messages.MmapStatus: DataConnection._mmap_status,
    messages.Write: DataConnection._write,
    messages.Sync: DataConnection._sync,
    messages.AdoptRing: DataConnection._adopt_ring,
    messages.NotifyEnablers: DataConnection._notify_enablers,
    messages.OpenFor: DataConnection._open_for,
}


def _why_refused(number: int) -> str:
    """The meaning of this errno of the write path (user_events_write_core() and user_event_validate())."""
    return {
        errno.EFAULT: "fewer than 4 bytes, or a dynamic field that ends outside the record or without its "
        "NUL",
        errno.EINVAL: "negative write_index, or a payload shorter than the event's fields",
        errno.ENOENT: "this write_index was not given out on this connection",
        errno.EBADF: "nothing is attached to the event",
    }.get(number, os.strerror(number))
