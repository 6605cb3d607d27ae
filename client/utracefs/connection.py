"""One connection to the daemon, without a socket: bytes and descriptors in; bytes to send and actions out.

    requests    what there is to ask: mmap_status, mmap_ring, then DIAG_IOCSREG for every event in the order
                of their declaration; `sync` for each flush
    receive     what the daemon says, as actions for the session thread to carry out, in their order

Events move to a connection together, because what was not sent before has to move with them, and a
write_index means nothing on another connection. So until the status file is mapped and every event that the
connection before this one knew is answered (the input READY) nothing but requests is sent. What is declared
later moves by itself.

The data ring outlives a connection: what was committed while no daemon looked is still in it. On the next
connection it is offered for adoption (adopt_ring), if its events have the write_index they had, because that
is what its records carry. Otherwise, or when the daemon does not want it, what it holds is lost, which is
counted, and a new one is asked for. A daemon that gives none leaves the socket, and everything works there,
too.

What a connection waits for, as TRANSITIONS below has it:

    NEW                 NO_RING          -> ANSWERS
                        NEW_RING         -> ANSWERS_AND_RING
                        OLD_RING         -> ANSWERS_TO_OFFER
    ANSWERS             READY            -> UP
    ANSWERS_AND_RING    RING_ANSWERED    -> ANSWERS
                        READY            -> RING
    ANSWERS_TO_OFFER    SAME_INDEXES     -> OFFERED
                        OTHER_INDEXES    -> RING_TO_ASK
    OFFERED             ADOPTED          -> UP
                        NOT_ADOPTED      -> RING_TO_ASK
    RING_TO_ASK         RING_ASKED       -> RING
    RING                RING_ANSWERED    -> UP
    UP

The daemon is trusted with what it says, but not with what would crash the application: a broken message, a
number out of range or a descriptor that is missing is a ProtocolError, which ends the connection.
"""

from __future__ import annotations

import errno

from utracefs._event import Event
from utracefs.declaring import name_args
from utracefs.flushing import Flush
from utracefs_protocol.connection import Connection, Notification, Response, encode_request
from utracefs_protocol.errors import ProtocolError, TraceError
from utracefs_protocol.frozen import Choice, Frozen
from utracefs_protocol.limits import MAX_UNANSWERED
from utracefs_protocol.messages import (
    AdoptRing,
    EventRegistration,
    MmapRing,
    MmapStatus,
    Registered,
    RingMapped,
    StatusMapped,
    Sync,
)

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import ClassVar, Final, TypeAlias

    from utracefs_protocol.messages.params import Params

__all__ = [
    "TRANSITIONS",
    "Action",
    "CountRefused",
    "DataConnection",
    "EndFlushes",
    "Follow",
    "GiveUpRing",
    "Input",
    "MapRing",
    "MapStatus",
    "MoveAll",
    "OfferRing",
    "Refuse",
    "State",
    "Warn",
]


class State(Choice):
    """What is waited for."""

    NEW: ClassVar[State]
    """`requests` was not called yet."""
    ANSWERS: ClassVar[State]
    """The status file and the events of the connection before."""
    ANSWERS_AND_RING: ClassVar[State]
    """The same, and a data ring that was asked for."""
    ANSWERS_TO_OFFER: ClassVar[State]
    """The same as ANSWERS; then the ring of the connection before is offered, or given up."""
    OFFERED: ClassVar[State]
    """Whether the daemon adopts it."""
    RING_TO_ASK: ClassVar[State]
    """`requests`, which will ask for a new ring."""
    RING: ClassVar[State]
    """That ring alone."""
    UP: ClassVar[State]
    """Nothing: events follow their answers as they come."""


class Input(Choice):
    """What leads from one state to another."""

    NO_RING: ClassVar[Input]
    """First requests: records shall go over the socket."""
    NEW_RING: ClassVar[Input]
    """First requests: a ring is wanted."""
    OLD_RING: ClassVar[Input]
    """First requests: there is one."""
    READY: ClassVar[Input]
    """The status file is there, and all events that the connection before knew are answered."""
    SAME_INDEXES: ClassVar[Input]
    """READY with no request under way, and those events have the write_index they had."""
    OTHER_INDEXES: ClassVar[Input]
    """READY with no request under way, and one of them has another."""
    ADOPTED: ClassVar[Input]
    NOT_ADOPTED: ClassVar[Input]
    RING_ASKED: ClassVar[Input]
    RING_ANSWERED: ClassVar[Input]
    """Given or refused: for whatever reason, the socket will do."""


TRANSITIONS: Final = {
    State.NEW: {
        Input.NO_RING: State.ANSWERS,
        Input.NEW_RING: State.ANSWERS_AND_RING,
        Input.OLD_RING: State.ANSWERS_TO_OFFER,
    },
    State.ANSWERS: {Input.READY: State.UP},
    State.ANSWERS_AND_RING: {Input.RING_ANSWERED: State.ANSWERS, Input.READY: State.RING},
    State.ANSWERS_TO_OFFER: {Input.SAME_INDEXES: State.OFFERED, Input.OTHER_INDEXES: State.RING_TO_ASK},
    State.OFFERED: {Input.ADOPTED: State.UP, Input.NOT_ADOPTED: State.RING_TO_ASK},
    State.RING_TO_ASK: {Input.RING_ASKED: State.RING},
    State.RING: {Input.RING_ANSWERED: State.UP},
    State.UP: {},
}


# ---- actions


class MapStatus(Frozen):
    """Map the status file."""

    fd: int
    """Not needed any more once it is mapped."""
    size: int
    """Bytes. The file must have them: beyond its end the map would be a SIGBUS at some `if event:`."""
    writers: bool = False
    """Records over the socket may say who wrote them."""


class MapRing(Frozen):
    """Map the data ring; where that fails, go on without one."""

    fd: int
    doorbell: int
    """An eventfd. Both are kept as long as the ring, to be offered on the next connection."""
    size: int
    """Bytes of the data area."""


class OfferRing(Frozen):
    """Send this request with the ring's two descriptors. Nothing else is being sent."""

    request: bytes


class GiveUpRing(Frozen):
    """Count what is in the ring as lost, and close its descriptors."""


class MoveAll(Frozen):
    """The connection is up: all events move to it, and with them the records that were not sent."""

    places: list[tuple[Event, int, int]]
    """(event, status_index, write_index): as the daemon says, only known to be positive or 0."""


class Follow(Frozen):
    """Events that were declared later."""

    places: list[tuple[Event, int, int]]


class Refuse(Frozen):
    """An event that the daemon does not want."""

    event: Event
    error: TraceError


class CountRefused(Frozen):
    """Records that the daemon did not take."""

    errno_name: str
    write_index: int
    count: int


class EndFlushes(Frozen):
    """What was emitted before these calls has reached the consumers, or not (done)."""

    flushes: tuple[Flush, ...]
    done: bool


class Warn(Frozen):
    """For the log."""

    message: str
    value: str


Action: TypeAlias = (
    MapStatus
    | MapRing
    | OfferRing
    | GiveUpRing
    | MoveAll
    | Follow
    | Refuse
    | CountRefused
    | EndFlushes
    | Warn
)


class DataConnection:
    """One connection, from its first request on.

    by_old_index: the Event, or None, of each write_index on the connection before.
    ring_size: of the data ring to ask for, in bytes; None: records go over the socket.
    has_ring: whether there is a ring from before, to be offered first; then ring_size is not None.
    """

    def __init__(
        self, by_old_index: Sequence[Event | None], *, ring_size: int | None, has_ring: bool = False
    ) -> None:
        self.state = State.NEW
        self.answered = False
        """Whether the daemon has shown itself to be one, by its status file."""
        self._by_old_index = by_old_index
        self._ring_size = ring_size
        self._has_ring = has_ring
        self._messages = Connection(max_object=None)
        self._fds: list[int] = []
        self._next_msgid = 0
        self._unanswered: dict[int, Event | tuple[Flush, ...] | Params] = {}
        """What was asked, by msgid: an event to register, flushes to `sync`, or what stands alone."""
        self._nr_asked = 0
        # Events that records may be waiting for, which are all that were registered before.
        self._old = {id(event) for event in by_old_index if event is not None}
        self._places: list[tuple[Event, int, int]] = []

    @property
    def can_sync(self) -> bool:
        """Whether `requests` takes flushes: records are sent, and there is room for one more request."""
        return self.state is State.UP and len(self._unanswered) < MAX_UNANSWERED

    @property
    def unanswered_flushes(self) -> list[Flush]:
        return [flush for asked in self._unanswered.values() if isinstance(asked, tuple) for flush in asked]

    def is_idle(self, declared: Sequence[Event]) -> bool:
        """Whether all that there was to ask is answered."""
        return not self._unanswered and self._nr_asked == len(declared)

    # -- out

    def requests(self, declared: Sequence[Event], flushes: Iterable[Flush] = ()) -> bytes:
        """What is to be asked now, in one piece; b"" if nothing is. The daemon may have at most
        MAX_UNANSWERED at a time.

        declared: all events of the session; only ever grows. flushes: what can_sync allows; every record that
        they speak of must be sent before these bytes.
        """
        found: list[bytes] = []
        if self.state is State.NEW:
            found.append(self._request(MmapStatus()))
            if self._has_ring:
                self._go(Input.OLD_RING)
            elif self._ring_size is None:
                self._go(Input.NO_RING)
            else:
                found.append(self._ask_ring())
                self._go(Input.NEW_RING)
        elif self.state is State.RING_TO_ASK:
            found.append(self._ask_ring())
            self._go(Input.RING_ASKED)
        # One less: `sync` and the ring are asked for between registrations.
        while self._nr_asked < len(declared) and len(self._unanswered) < MAX_UNANSWERED - 1:
            event = declared[self._nr_asked]
            self._nr_asked += 1
            found.append(self._request(EventRegistration(name_args(event), event.flags), event))
        if asked := tuple(flushes):
            found.append(self._request(Sync(), asked))
        return b"".join(found)

    def _ask_ring(self) -> bytes:
        assert self._ring_size is not None
        return self._request(MmapRing(self._ring_size))

    def _request(self, params: Params, about: Event | tuple[Flush, ...] | None = None) -> bytes:
        msgid = self._next_msgid
        self._next_msgid = msgid + 1 & 0xFFFF_FFFF
        self._unanswered[msgid] = params if about is None else about
        return encode_request(msgid, params.METHOD, params.to_params())

    def _go(self, occurred: Input) -> State:
        self.state = TRANSITIONS[self.state][occurred]
        return self.state

    # -- in

    def receive(self, data: bytes, fds: Iterable[int] = ()) -> Iterator[Action]:
        """What follows from these bytes and the descriptors that came with them. To be iterated to the end:
        each action is carried out before the next is asked for. ProtocolError, after what came before it: not
        a daemon of ours.

        A descriptor stays the caller's, to be closed when no action has named it at the end of the
        connection.
        """
        self._fds += fds
        for message in self._messages.receive(data):
            match message:
                case Response():
                    yield from self._response(message)
                case Notification():
                    yield from self._notification(message)
                case _:
                    raise ProtocolError(errno.EPROTO, f"the daemon sent a {type(message).__name__}")
        yield from self._answers_so_far()

    def _response(self, response: Response) -> Iterator[Action]:
        match self._unanswered.pop(response.msgid, None):
            case None:
                raise ProtocolError(errno.EPROTO, f"response to msgid {response.msgid}, which was not asked")
            case Event() as event:
                yield from self._registered(event, response)
            case tuple(flushes):
                yield EndFlushes(flushes, response.error is None)
            case MmapStatus():
                yield self._status(response)
            case MmapRing():
                yield from self._ring(response)
            case AdoptRing():
                yield from self._adopted(response)

    def _status(self, response: Response) -> Action:
        if response.error is not None:
            raise ProtocolError(response.error[0], f"mmap_status: {response.error[1]}")
        try:
            mapped = StatusMapped.from_wire(response.result)
        except TraceError as error:
            raise ProtocolError(errno.EPROTO, error.text) from None
        self.answered = True
        return MapStatus(self._next_fd("mmap_status"), mapped.size, mapped.writers)

    def _registered(self, event: Event, response: Response) -> Iterator[Action]:
        if response.error is not None:
            self._old.discard(id(event))
            yield Refuse(event, TraceError(*response.error))
            return
        try:
            registered = Registered.from_wire(response.result)
        except TraceError as error:
            raise ProtocolError(errno.EPROTO, error.text) from None
        self._places.append((event, registered.status_index, registered.write_index))

    def _ring(self, response: Response) -> Iterator[Action]:
        if response.error is None:
            try:
                mapped = RingMapped.from_wire(response.result)
            except TraceError as error:
                raise ProtocolError(errno.EPROTO, error.text) from None
            yield MapRing(self._next_fd("mmap_ring"), self._next_fd("mmap_ring"), mapped.size)
        if self._go(Input.RING_ANSWERED) is State.UP:
            yield MoveAll(self._new_places())

    def _next_fd(self, method: str) -> int:
        if not self._fds:
            raise ProtocolError(errno.EPROTO, f"{method}: a descriptor is missing")
        return self._fds.pop(0)

    def _adopted(self, response: Response) -> Iterator[Action]:
        if response.error is None:
            self._go(Input.ADOPTED)
            yield MoveAll(self._new_places())
        else:
            self._go(Input.NOT_ADOPTED)
            yield Warn("the data ring was not taken over: %s", response.error[1])
            yield GiveUpRing()

    def _notification(self, notification: Notification) -> Iterator[Action]:
        match notification.method, notification.params:
            case "error", [int(), str() as text]:
                yield Warn("the daemon ends the connection: %s", text)
            case "write_error", [int() as number, int() as write_index, int() as count]:
                yield CountRefused(TraceError(number, "").errno_name, write_index, count)
            case _:
                pass  # additions to the protocol are nothing to stumble over

    # -- when what must move together is there

    def _answers_so_far(self) -> Iterator[Action]:
        if self.state is State.UP:
            if self._places:
                yield Follow(self._new_places())
        elif self._is_ready():
            if self.state is State.ANSWERS_TO_OFFER:
                if not self._unanswered:
                    yield self._offer_ring()
            elif Input.READY in TRANSITIONS[self.state] and self._go(Input.READY) is State.UP:
                yield MoveAll(self._new_places())

    def _is_ready(self) -> bool:
        return self.answered and self._old <= {id(event) for event, _, _ in self._places}

    def _offer_ring(self) -> Action:
        indexes = {id(event): write_index for event, _, write_index in self._places}
        if all(
            event is None or indexes.get(id(event)) == index for index, event in enumerate(self._by_old_index)
        ):
            self._go(Input.SAME_INDEXES)
            return OfferRing(self._request(AdoptRing()))
        self._go(Input.OTHER_INDEXES)
        return GiveUpRing()

    def _new_places(self) -> list[tuple[Event, int, int]]:
        places, self._places = self._places, []
        return places
