"""One connected Unix stream socket that never waits: receives bytes with descriptors, and queues output.

Both ports build on it. Receiving makes one system call; sending tries at once and queues what the socket does
not take, so that a peer that stops reading costs memory, which its port bounds, and never time. The port
waits for the socket to become writable.

Descriptors (SCM_RIGHTS, unix(7)) travel with the first byte of the message to which they belong, or of one
that is sent together with it. The caller closes received descriptors; a queued one belongs to the link, which
closes it once it is sent or the link is closed.
"""

import array
import contextlib
import fcntl
import os
import socket
import termios
from collections import deque
from collections.abc import Sequence

import attrs

from utracefsd.machine.closing import close_foreign, close_unread, is_behind
from utracefsd.machine.peer import Peer

# Descriptors taken from one message: the maximum that it can have (SCM_MAX_FD). The kernel would close excess
# ones in recvmsg(2), and such a close may block.
DESCRIPTORS_IN_A_MESSAGE = 253
_ANCILLARY_SIZE = socket.CMSG_SPACE(DESCRIPTORS_IN_A_MESSAGE * 4)

# Bytes in one sendmsg(2): about the size of a socket's buffer. Two buffers together have more than
# _BUFFER_BYTES (`queue`), so their number stays far below IOV_MAX.
_GATHER_BYTES = 256 << 10

# Shorter messages in front of a message with descriptors are sent with it, and its descriptors with their
# first byte: a program's first answers, of which the status file's is not the first.
_SHORT_BYTES = 1 << 10

# Messages up to this size are joined, so that a response of five bytes costs five bytes. A larger one stays
# separate: joining it would copy it.
_BUFFER_BYTES = 32 << 10


@attrs.define
class _Outgoing:
    """Queued messages, or their rest."""

    data: bytes | bytearray
    """A bytearray can be extended."""
    fds: Sequence[int]
    """Descriptors to send with the first byte; empty once sent."""
    sent: int = 0
    """Bytes that the socket has taken."""


class Link:
    """`sock` is owned by the link: made non-blocking, closed by `close`."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self.closed = False
        self.waiting_bytes = 0
        self.is_read = True
        """The peer may read what is sent: it is not gone."""
        self._at_end = False
        """Everything that the peer sent was received."""
        self._queue: deque[_Outgoing] = deque()

    def fileno(self) -> int:
        """-1 once closed."""
        return self.sock.fileno()

    def bytes_readable(self) -> int:
        """Bytes that have arrived and were not received (FIONREAD); 0 also at end of file."""
        answer = fcntl.ioctl(self.sock.fileno(), termios.FIONREAD, b"\0\0\0\0")
        return int.from_bytes(answer, "little")

    def receive(self, size: int) -> tuple[bytes, list[int]] | None:
        """Available bytes, at most `size`, and the descriptors that came with them; None when there are none
        now.

        Empty bytes are the end: the peer closed, was killed, or reset the connection.
        """
        try:
            data, ancillary, _flags, _ = self.sock.recvmsg(size, _ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:  # ECONNRESET: the peer closed without reading everything
            return b"", []
        self._at_end = not data
        if not ancillary:
            return data, []
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        return data, list(fds)

    def peek(self) -> int | None:
        """The first byte that would be received now; None: nothing, or the end."""
        try:
            data = self.sock.recv(1, socket.MSG_PEEK)
        except OSError:
            return None
        return data[0] if data else None

    def brings_descriptors(self, size: int) -> bool:
        """Whether `receive` would return descriptors now."""
        try:
            _, _, flags, _ = self.sock.recvmsg(size, 0, socket.MSG_PEEK)
        except OSError:
            return False
        return bool(flags & socket.MSG_CTRUNC)

    def peer_is_gone(self) -> None:
        """The peer reads nothing more: drop the queue, and further messages."""
        self.is_read = False
        self._drop_queue()

    def queue(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Append a message to the queue; `flush` sends. On a closed link it is dropped, its descriptors
        closed."""
        if self.closed or not data or not self.is_read:
            _close_all(fds)
            return
        self.waiting_bytes += len(data)
        if not fds and self._queue and not self._queue[-1].fds:
            last = self._queue[-1].data
            if isinstance(last, bytearray) and len(last) + len(data) <= _BUFFER_BYTES:
                last += data
                return
        kept = bytearray(data) if len(data) <= _BUFFER_BYTES else data
        self._queue.append(_Outgoing(kept, list(fds)))

    def flush(self) -> bool:
        """Send what the socket takes; True when the queue is empty.

        After an error (EPIPE, ECONNRESET; ETOOMANYREFS when too many sent descriptors are not received by the
        peer) the connection is unusable: the queue is dropped, and the arrived bytes are followed by the end.
        """
        while self._queue:
            try:
                sent = self._send_some()
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._drop_queue()
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)
                return True
            self._sent(sent)
        return True

    def stop_receiving(self) -> None:
        """The peer's next send, or the one in which it is blocked, fails with EPIPE; it can still read."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close now, with whatever is queued. A second call is harmless."""
        if not self.closed:
            self.closed = True
            self._drop_queue()
            self.sock.close()

    def finish(self) -> None:
        """Close so that the peer reads what was sent and then the end, even if it sent bytes that were not
        read.

        Closing a Unix socket with unread bytes in it is ECONNRESET at the other end, so these are discarded
        first; after SHUT_RDWR no more can arrive.
        """
        if self._at_end:
            self.close()
        if self.closed:
            return
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        if is_behind(self.peer.share):  # there may be descriptors in them
            self.abandon()
            return
        while piece := self.receive(1 << 16):
            data, fds = piece
            close_foreign(fds, self.peer.share)
            if fds:  # there may be thousands more
                self.abandon()
                return
            if not data:
                break
        self.close()

    def abandon(self) -> None:
        """Close without reading what has arrived. Descriptors in it are closed with the socket, which may
        block, so that happens in a thread."""
        if self.closed:
            return
        self.closed = True
        self._drop_queue()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # nothing more can arrive
        if self.peek() is None:
            self.sock.close()
        else:
            close_unread(self.sock.detach(), self.peer.share)

    def _send_some(self) -> int:
        # One call for all that fits: each call wakes the peer, which would read a part and sleep again before
        # the next one is sent.
        gathered: list[memoryview] = []
        with_fds: _Outgoing | None = None
        size = 0
        for waiting in self._queue:
            if size >= _GATHER_BYTES:
                break
            # Appended to many bytes without descriptors they would arrive long before their own message.
            if waiting.fds:
                if with_fds is not None or size > _SHORT_BYTES:
                    break
                with_fds = waiting
            gathered.append(memoryview(waiting.data)[waiting.sent :])
            size += len(gathered[-1])
        if with_fds is None:
            return self.sock.sendmsg(gathered)
        sent = socket.send_fds(self.sock, gathered, with_fds.fds)
        _close_all(with_fds.fds)  # all were sent with the first byte
        with_fds.fds = ()
        return sent

    def _sent(self, size: int) -> None:
        self.waiting_bytes -= size
        while size:
            first = self._queue[0]
            left = len(first.data) - first.sent
            if size < left:
                first.sent += size
                return
            size -= left
            self._queue.popleft()

    def _drop_queue(self) -> None:
        for message in self._queue:
            _close_all(message.fds)
        self._queue.clear()
        self.waiting_bytes = 0


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
