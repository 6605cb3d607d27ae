"""Enablers: words in a client's own memory with a bit that says whether an event is enabled.

The kernel's model since Linux 6.4: at registration a program names a word and a bit; the bit is set while a
consumer is attached to the event. A daemon cannot write into another process, so the program passes the
memory as a descriptor, and the "address" is an offset in it.

    enabler        (memory object, offset, bit) -> event
    memory object  (st_dev, st_ino) of the descriptor

An enabler belongs to its memory, not to its connection: any descriptor of the same memory unregisters it, and
the same offset and bit cannot be registered twice. It is a reference on its event. It ends

- when it is unregistered, or
- when its process ends. In the kernel that is exit or exec; a daemon sees connections only, so here it is the
  close of the last connection of that process (`Peer.process`), which `hold` and `drop` count.

The memory must be a memfd sealed against shrinking: then a store into the mapping cannot fault. Only the
pages that hold words are mapped, each once, as long as a word of it is in use.

Some enablers have tokens instead of words: their bit is elsewhere, and they belong to their connection, which
is notified to change it (notifier.py).
"""

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages import data as messages
from utracefsd.events._enable_word import PAGE_SIZE, WordPage
from utracefsd.events.event import Event
from utracefsd.events.notifier import NotifiedEnabler, Notifier, Notifiers
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

# Enablers removed in one step, a microsecond each: a process may have registered thousands.
PIECE = 1024


@attrs.frozen
class Place:
    """The word of an enabler: checked, not yet mapped."""

    device: int
    """st_dev of the memory object."""
    inode: int
    """st_ino of the memory object; not reused while a page of it is mapped."""
    offset: int
    """Bytes from the beginning of the memory object, a multiple of `size`."""
    size: int
    """4 or 8 bytes."""
    bit: int
    """0 is the lowest bit of the little-endian word."""

    @property
    def page(self) -> tuple[int, int, int]:
        """The page of the word. An aligned word never crosses pages."""
        return self.device, self.inode, self.offset // PAGE_SIZE

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Two enablers must differ in this. The size is not part of it
        (current_user_event_enabler_exists())."""
        return self.device, self.inode, self.offset, self.bit


@attrs.define(eq=False)
class _Page:
    """A mapped page and the number of enablers in it."""

    words: WordPage
    uid: int
    """The user charged for it."""
    users: int = 0


@attrs.define(eq=False)
class Enabler:
    """One bit in use."""

    place: Place
    event: Event
    process: tuple[int, int | None]
    """The process that registered it."""
    uid: int
    """The user charged for it."""
    _page: _Page

    def write(self, value: bool) -> None:
        """Set or clear the bit; the rest of the word is unchanged."""
        place = self.place
        self._page.words.change_bit(place.offset % PAGE_SIZE, place.bit, value)


class EnablerTable:
    """All enablers of the daemon. acquire, release: take and drop a reference on an event."""

    def __init__(
        self, shares: Shares, acquire: Callable[[Event], None], release: Callable[[Event], None]
    ) -> None:
        self.notifiers = Notifiers()
        self._shares = shares
        self._acquire = acquire
        self._release = release
        self._enablers: dict[tuple[int, int, int, int], Enabler] = {}
        self._pages: dict[tuple[int, int, int], _Page] = {}
        self._by_event: dict[Event, dict[Enabler | NotifiedEnabler, None]] = {}
        self._by_process: dict[tuple[int, int | None], dict[Enabler, None]] = {}
        self._connections: Counter[tuple[int, int | None]] = Counter()
        """By process: see `hold`."""
        self._leaving: list[Enabler | NotifiedEnabler] = []

    def __len__(self) -> int:
        return sum(map(len, self._by_event.values()))

    def check(self, fd: int, asked: messages.Enabler) -> Place:
        """Check a registration, except for what its message already checks (user_events_ioctl_reg()): EINVAL
        (`fd` is no memfd sealed with F_SEAL_SHRINK), EFAULT (the word is not inside the memory), EADDRINUSE
        (this offset and bit are taken)."""
        offset, size, bit = asked.addr, asked.size, asked.bit
        device, inode, file_size = _memory_object(fd, "enable_fd")
        if offset + size > file_size:
            raise TraceError(errno.EFAULT, f"enable_addr {offset} is outside the memory of {file_size} bytes")
        place = Place(device, inode, offset, size, bit)
        if place.key in self._enablers:
            raise TraceError(
                errno.EADDRINUSE,
                f"bit {bit} at enable_addr {offset} is registered already; unregister it first",
            )
        return place

    def add(self, place: Place, fd: int, event: Event, peer: Peer) -> None:
        """Make the enabler and write the present state into its bit; the descriptor is not needed afterwards.
        ENOMEM: the word cannot be written (a descriptor opened for reading, memory sealed against writing) or
        the user has too many of them."""
        self._shares.check(Resource.ENABLERS, peer.share, privileged=peer.privileged)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
            # Mapping would fail, too, but not when the page is already mapped for another process.
            raise _not_writable(place, os.strerror(errno.EACCES))
        page = self._pages.get(place.page) or self._map(place, fd, peer)
        page.users += 1
        enabler = Enabler(place, event, peer.process, peer.share, page)
        self._enablers[place.key] = enabler
        self._by_event.setdefault(event, {})[enabler] = None
        self._by_process.setdefault(peer.process, {})[enabler] = None
        self._shares.add(Resource.ENABLERS, peer.share)
        enabler.write(event.tracepoint.status != 0)
        self._acquire(event)

    def remove(self, fd: int, offset: int, bit: int) -> None:
        """Unregister: clear the bit whatever the event's state. EINVAL (the memory could not have been
        registered), ENOENT."""
        device, inode, _ = _memory_object(fd, "disable_fd")
        enabler = self._enablers.get((device, inode, offset, bit))
        if enabler is None:
            raise TraceError(errno.ENOENT, f"bit {bit} at disable_addr {offset} is not registered")
        self._forget(enabler)
        self._release(enabler.event)

    def check_token(self, notifier: Notifier, token: int) -> None:
        """EADDRINUSE (the connection has that token), ENOMEM (the user has too many enablers)."""
        if token in notifier.enablers:
            text = f"token {token} is registered already on this connection; unregister it first"
            raise TraceError(errno.EADDRINUSE, text)
        peer = notifier.peer
        self._shares.check(Resource.ENABLERS, peer.share, privileged=peer.privileged)

    def add_notified(self, notifier: Notifier, token: int, event: Event) -> bool:
        """Notify a connection about `event` by a checked token; returns the present state."""
        peer = notifier.peer
        enabler = notifier.enablers[token] = NotifiedEnabler(token, event, peer.share, notifier)
        self._by_event.setdefault(event, {})[enabler] = None
        self._shares.add(Resource.ENABLERS, peer.share)
        self._acquire(event)
        return event.tracepoint.status != 0

    def remove_notified(self, notifier: Notifier, token: int, now_ns: int) -> None:
        """Unregister. TraceError(ENOENT): no such token."""
        enabler = notifier.enablers.get(token)
        if enabler is None:
            raise TraceError(errno.ENOENT, f"token {token} is not registered on this connection")
        notifier.forget(token, now_ns)
        self._forget_at_event(enabler)
        self._release(enabler.event)

    def close_notifier(self, notifier: Notifier, now_ns: int) -> None:
        """Its connection closed, and its enablers are removed: some now, the others by `forget_leaving`."""
        notifier.close(now_ns)
        self._leaving += notifier.enablers.values()
        notifier.enablers.clear()
        self.forget_leaving()

    def write_state(self, event: Event, on: bool) -> None:
        """Write the event's new state into all its bits."""
        for enabler in self._by_event.get(event, ()):
            enabler.write(on)

    def hold(self, peer: Peer) -> None:
        """A connection of the peer's process opened; its enablers live as long as one of them."""
        self._connections[peer.process] += 1

    def drop(self, peer: Peer) -> None:
        """A connection of the peer's process closed; with the last one its enablers are removed as in
        `close_notifier`. Must not raise: the enablers would leak until a restart."""
        self._connections[peer.process] -= 1
        if not self._connections[peer.process]:
            del self._connections[peer.process]
            self._leaving += self._by_process.pop(peer.process, ())
        self.forget_leaving()

    @property
    def leaving(self) -> bool:
        """Whether enablers of ended processes are still to be removed."""
        return bool(self._leaving)

    def forget_leaving(self) -> None:
        """Remove some of them. The bits are cleared, because the memory may be shared with a process that
        lives on."""
        for _ in range(min(PIECE, len(self._leaving))):
            enabler = self._leaving.pop()
            if isinstance(enabler, NotifiedEnabler):
                self._forget_at_event(enabler)
            elif self._enablers.get(enabler.place.key) is enabler:
                self._forget(enabler)
            else:
                continue  # unregistered meanwhile
            self._release(enabler.event)

    def close(self) -> None:
        """The daemon ends: clear all bits, unmap all pages."""
        for enabler in list(self._enablers.values()):
            self._forget(enabler)

    def _map(self, place: Place, fd: int, peer: Peer) -> _Page:
        self._shares.check(Resource.ENABLER_PAGES, peer.share, privileged=peer.privileged)
        try:
            words = WordPage(fd, place.offset // PAGE_SIZE)
        except OSError as error:
            raise _not_writable(place, error.strerror) from error
        page = self._pages[place.page] = _Page(words, peer.share)
        self._shares.add(Resource.ENABLER_PAGES, peer.share)
        return page

    def _forget(self, enabler: Enabler) -> None:
        enabler.write(False)
        place = enabler.place
        del self._enablers[place.key]
        self._forget_at_event(enabler)
        of_process = self._by_process.get(enabler.process)  # None: it is leaving
        if of_process is not None:
            of_process.pop(enabler, None)
            if not of_process:
                del self._by_process[enabler.process]
        page = self._pages[place.page]
        page.users -= 1
        if not page.users:
            page.words.close()
            del self._pages[place.page]
            self._shares.drop(Resource.ENABLER_PAGES, page.uid)

    def _forget_at_event(self, enabler: Enabler | NotifiedEnabler) -> None:
        of_event = self._by_event[enabler.event]
        del of_event[enabler]
        if not of_event:
            del self._by_event[enabler.event]
        self._shares.drop(Resource.ENABLERS, enabler.uid)


def _not_writable(place: Place, why: str | None) -> TraceError:
    return TraceError(
        errno.ENOMEM,
        f"the word at enable_addr {place.offset} cannot be written ({why}); "
        "send a descriptor that is open for reading and writing",
    )


def _memory_object(fd: int, what: str) -> tuple[int, int, int]:
    """Device, inode and size in bytes of a memfd that cannot shrink; EINVAL for anything else, and for huge
    pages: after a hole is punched into them a store can fail for want of a page (SIGBUS)."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise TraceError(errno.EINVAL, f"{what} is no memfd; make one with memfd_create") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise TraceError(errno.EINVAL, f"{what} is not sealed against shrinking; add F_SEAL_SHRINK")
    if os.fstatvfs(fd).f_bsize > PAGE_SIZE:
        raise TraceError(errno.EINVAL, f"{what} has huge pages; make it without MFD_HUGETLB")
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size
