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

    def add(self, accepted: AcceptedConnection) -> None:
        for resource in _OF_A_CONNECTION:
            accepted.held[resource] = 1
            self.shares.add(resource, accepted.share)

    def hold(self, accepted: AcceptedConnection, resource: Resource, amount: int) -> TraceError | None:
        """It holds so much now. Returns the error if that is too much; it is counted all the same."""
        if accepted.link.closed:
            return None
        peer, more = accepted.link.peer, amount - accepted.held.get(resource, 0)
        accepted.held[resource] = amount
        if more <= 0:
            self.shares.drop(resource, peer.share, -more)
            return None
        refusal = None
        try:
            self.shares.check(resource, peer.share, more, privileged=peer.privileged)
        except TraceError as error:
            refusal = error
        self.shares.add(resource, peer.share, more)
        return refusal

    def drop(self, accepted: AcceptedConnection) -> None:
        """It holds nothing more."""
        for resource, amount in accepted.held.items():
            self.shares.drop(resource, accepted.share, amount)
        accepted.held.clear()

    def belongs_to(self, accepted: AcceptedConnection, peer: Peer) -> None:
        """Charge the connection, with all that it holds, to this process from now on. TraceError(EMFILE) as
        `check`, with nothing changed."""
        before = accepted.link.peer
        if before.share != peer.share:
            self.check(peer)
            for resource, amount in accepted.held.items():
                self.shares.drop(resource, before.share, amount)
                self.shares.add(resource, peer.share, amount)
        accepted.link.peer = peer

    def scarce(self, peer: Peer) -> bool:
        """Whether the peer's user is close to its limits."""
        return self.shares.scarce(Resource.MESSAGE_BYTES, peer.share)
