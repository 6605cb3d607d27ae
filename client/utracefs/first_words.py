"""What a forked child says first, and what it does until it is answered.

The first `emit` of a child waits for a connection and a data ring. Most of that is copying pages: Python
writes into nearly all that it looks at, and each page that the child writes into first is copied for it. So
all that can be made before the fork is made there, by the parent; the child sends it at once, and then has
something to do while the daemon works on the answer: it goes through a made-up one (`_rehearsal`), and so
copies what it will need for the real one.
"""

from __future__ import annotations

from utracefs._descriptors import connect_to, send_with
from utracefs.connection import DataConnection
from utracefs_protocol.connection import encode_response
from utracefs_protocol.limits import DATA_RING_SIZE
from utracefs_protocol.messages import Registered, RingMapped, StatusMapped

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Sequence

    from utracefs._descriptors import Descriptor
    from utracefs._event import Event

__all__ = ["FirstWords"]


class FirstWords:
    """Made in the parent, for one child.

    path: of the data socket. declared, by_old_index, ring_size: as for DataConnection.
    """

    def __init__(
        self,
        path: str,
        declared: Sequence[Event],
        by_old_index: list[Event | None],
        ring_size: int | None,
    ) -> None:
        self.by_old_index = by_old_index
        self._path = path
        self._connection = DataConnection(by_old_index, ring_size=ring_size)
        self._requests = self._connection.requests(declared)
        self._rehearsed = DataConnection([], ring_size=DATA_RING_SIZE)
        self._rehearsed.requests(declared[:1])
        answers = (
            StatusMapped(1).to_wire(),
            RingMapped(DATA_RING_SIZE).to_wire(),
            Registered(1, 0, 1).to_wire(),
        )
        self._answers = b"".join(encode_response(msgid, answer) for msgid, answer in enumerate(answers))

    def speak(self) -> tuple[Descriptor, DataConnection] | None:
        """In the child, once: the connection and its socket, where the requests were sent; None: not now, and
        nothing is left of it."""
        try:
            sock = connect_to(self._path)
        except OSError:
            return None
        try:
            sent = send_with(sock, self._requests, [])
        except OSError:
            sent = 0
        if sent != len(self._requests):
            sock.close()
            return None
        for _ in self._rehearsed.receive(self._answers, (0, 1, 2)):
            pass  # nothing becomes of it
        return sock, self._connection
