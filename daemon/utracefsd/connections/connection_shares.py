"""Charges the connections of a port, their descriptors and kept bytes to the shares of their users.

The owner is the peer of the link. It changes once, when a proxy opens the connection on behalf of a process
of another user (`belongs_to`): from then on the connection is charged to the process that it represents.
"""

from utracefs_protocol.errors import TraceError
from utracefsd.connections.accepted_connection import AcceptedConnection
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

_OF_A_CONNECTION = (Resource.CONNECTIONS, Resource.DESCRIPTORS)


class ConnectionShares:
    def __init__(self, shares: Shares) -> None:
        self.shares = shares

    def check(self, peer: Peer) -> None:
        """Raises TraceError(EMFILE) when the peer's user has too many connections or descriptors."""
        for resource in _OF_A_CONNECTION:
            self.shares.check(resource, peer.share, privileged=peer.privileged)

    def add(self, peer: Peer) -> None:
        for resource in _OF_A_CONNECTION:
            self.shares.add(resource, peer.share)

    def drop(self, peer: Peer) -> None:
        for resource in _OF_A_CONNECTION:
            self.shares.drop(resource, peer.share)

    def scarce(self, peer: Peer) -> bool:
        """Whether the peer's user is close to its limits."""
        return self.shares.scarce(Resource.MESSAGE_BYTES, peer.share)

    def belongs_to(self, accepted: AcceptedConnection, peer: Peer) -> None:
        """Charge the connection, with all that it holds, to this process from now on. TraceError(EMFILE) as
        `check`, with nothing changed."""
        before = accepted.link.peer
        if before.share != peer.share:
            self.check(peer)
            self.drop(before)
            self.add(peer)
            for resource, amount in (
                (Resource.MESSAGE_BYTES, accepted.held_bytes),
                (Resource.DESCRIPTORS, accepted.descriptors_kept),
            ):
                self.shares.drop(resource, before.share, amount)
                self.shares.add(resource, peer.share, amount)
        accepted.link.peer = peer

    def keep_descriptors(self, accepted: AcceptedConnection, number: int) -> TraceError | None:
        """Count the descriptors of messages that wait for another turn; returns the error of a full share."""
        if not number:
            return None
        peer = accepted.link.peer
        try:
            self.shares.check(Resource.DESCRIPTORS, peer.share, number, privileged=peer.privileged)
        except TraceError as error:
            return error
        self.shares.add(Resource.DESCRIPTORS, peer.share, number)
        accepted.descriptors_kept += number
        return None

    def drop_descriptors(self, accepted: AcceptedConnection) -> None:
        """Stop counting them: those messages have been carried out."""
        if accepted.descriptors_kept:
            kept, accepted.descriptors_kept = accepted.descriptors_kept, 0
            self.shares.drop(Resource.DESCRIPTORS, accepted.share, kept)

    def count_bytes(self, accepted: AcceptedConnection) -> TraceError | None:
        """Count the bytes held for it now; returns the error if that is too much."""
        if accepted.link.closed:
            return None
        held = accepted.link.waiting_bytes
        if accepted.ending_ns is None:
            held += accepted.connection.bytes_pending
        more, peer = held - accepted.held_bytes, accepted.link.peer
        refusal = None
        if more < 0:
            self.shares.drop(Resource.MESSAGE_BYTES, peer.share, -more)
        elif more > 0:
            try:
                self.shares.check(Resource.MESSAGE_BYTES, peer.share, more, privileged=peer.privileged)
            except TraceError as error:
                refusal = error
            self.shares.add(Resource.MESSAGE_BYTES, peer.share, more)
        accepted.held_bytes = held
        return refusal

    def drop_bytes(self, accepted: AcceptedConnection) -> None:
        """Stop counting the bytes held for it."""
        self.shares.drop(Resource.MESSAGE_BYTES, accepted.share, accepted.held_bytes)
        accepted.held_bytes = 0
