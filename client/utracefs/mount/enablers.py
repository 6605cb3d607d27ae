"""Enablers of address spaces: sets and clears their bits when the daemon reports changes.

    address space  ── a connection, opened for its process; each enabler a token ──▶ daemon
    memory thread  ◀── bits to set ──  loop  ◀── enablers_changed ──
                   ── done ──▶               ── enablers_written ──▶

Children have copies of their parent's enablers, on a connection of their own. When the memory ends (exit,
exec) the connection ends, and the daemon drops its references.

**Two threads.** Only the memory thread accesses memory, and owns `AddressSpace.enablers`. All else belongs to
the loop; the memory thread reads `keys` and `state`, one member at a time.

**A bit is correct** because its last writer has the last state: answers and notifications of a connection
arrive in order and update `state` at once; a job that sets bits reads the state when it runs. So jobs may run
in any order. A word that cannot be written is retried ten times, as by the kernel, then left until the next
change; within 10 s, because memory may not answer for seconds on a busy machine.

Without a daemon bits are clear. The next daemon gets all enablers again; if an event cannot be registered
again, its bit stays clear, and it has no enabler any more.
"""

import contextlib
import errno
import functools
import itertools
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from utracefs.mount.channel import Channel
from utracefs.mount.data_connections import Asking, DataConnections
from utracefs.mount.operation import AskEach, Gate
from utracefs.mount.processes.address_space import AddressSpace, AddressSpaces, Enabler
from utracefs.mount.processes.memory_thread import MemoryThread
from utracefs.tree.rpc import checked
from utracefs_protocol.connection import Notification
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefs_protocol.messages.data import (
    EnablerRegistered,
    EnablersChanged,
    EnablersWritten,
    EventRegistration,
    EventUnregistration,
    NotifyEnablers,
    OpenFor,
)
from utracefs_protocol.messages.rows import Params

logger = logging.getLogger("utracefs.mount")

_RETRY_S: Final = 0.01
_RETRIES: Final = 10
"""Retries of a word that could not be written: the first delay, which doubles each time, and their number."""

_ATTEMPTS: Final = 3
"""Retries for daemons that end while enablers are registered."""

Key = tuple[int, int]
"""Address of the word, number of the bit."""


WatchProcess = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Called with a pid and a function to call once when that process ends; returns a function to cancel that.
OSError."""


@attrs.define(eq=False)
class Connected:
    """An address space and its connection."""

    space: AddressSpace
    channel: Channel | None = None
    ready: Gate = attrs.field(factory=Gate)
    """Closed while the connection is made."""
    error: OSError | None = None
    """Why there is no connection."""
    keys: dict[int, Key] = attrs.field(factory=dict)
    """By token: enablers registered with the daemon."""
    state: dict[int, bool] = attrs.field(factory=dict)
    """By token: the daemon's last state of the bit."""
    retried: set[int] = attrs.field(factory=set)
    """Tokens whose bits are being retried."""
    is_gone: bool = False
    forget_process: Callable[[], object] = lambda: None
    """Cancels waiting for its end."""


@attrs.frozen
class _Due:
    connected: Connected
    tokens: list[int]
    seq: int | None
    """Number of the change to acknowledge when the bits are set."""
    retries: int


class Enablers:
    """Owns `spaces`, which it calls in the memory thread."""

    def __init__(
        self,
        connections: DataConnections,
        memory: MemoryThread,
        spaces: AddressSpaces,
        *,
        watch_process: WatchProcess,
    ) -> None:
        self.connections = connections
        self.memory = memory
        self.spaces = spaces
        self.watch_process = watch_process
        self._connected: dict[AddressSpace, Connected] = {}
        self._due: list[_Due] = []
        self._is_setting = False
        self._will_refresh = False
        self._tokens = itertools.count(1)
        self.leaving = Gate()
        """A gate, held while the daemon is notified of ended processes."""
        spaces.on_born = self._born
        spaces.on_gone = lambda space: memory.post(lambda: self._gone(space))
        spaces.on_pause = memory.run_urgent

    def new_token(self) -> int:
        """In the memory thread."""
        return next(self._tokens)

    def add(self, space: AddressSpace, key: Key, enabler: Enabler) -> Asking[Connected]:
        """Register an enabler of the space with the daemon. The event must exist. ENOMEM and other errors of
        the daemon; then `remove` it."""
        while True:
            connected = yield from self._tell(space)
            assert connected.channel is not None
            channel = connected.channel
            try:
                yield from self._register(connected, key, enabler)
            except OSError:
                if not self.connections.is_retried(channel):
                    raise
            else:
                return connected

    def remove(self, space: AddressSpace, enabler: Enabler) -> None:
        """Unregister an enabler that the space has removed."""
        connected = self._connected.get(space)
        if connected is not None:
            self._forget(connected, enabler.token)

    def write_bit(self, connected: Connected, token: int) -> bool:
        """In the memory thread: False when the word cannot be written."""
        return not self._set_bits(connected, [token])

    def refresh_later(self) -> None:
        """Look for ended and new processes; once for all callers of this turn of the loop, after the bits
        that they set."""
        if not self._will_refresh:
            self._will_refresh = True
            self.connections.timers.enter(0, 0, self._refresh)

    def _refresh(self) -> None:
        self._will_refresh = False
        self.memory.submit(self.spaces.refresh, self._refreshed)

    def daemon_came(self) -> None:
        """Register all enablers with the next daemon."""
        for connected in list(self._connected.values()):
            if connected.ready.is_open:
                self.connections.begin(self._bring(connected))

    def close(self) -> None:
        """The mount ends: clear bits before the memory thread ends."""
        for connected in self._connected.values():
            self._clear(connected)
        self._set_due()
        self.memory.submit(self._leave, lambda _result, _failure: None)

    def _leave(self) -> None:
        """In the memory thread. Children not found yet have bits, too."""
        with contextlib.suppress(OSError):
            self.spaces.refresh()
        for space in self.spaces:
            self._clear_all(space)
        self.spaces.close()

    # The connection of an address space

    def _tell(self, space: AddressSpace) -> Asking[Connected]:
        connected = self._connected.get(space)
        if connected is None:
            connected = self._connected[space] = Connected(space)
            # If it has ended already, or cannot be watched, the next look notices.
            with contextlib.suppress(OSError):
                connected.forget_process = self.watch_process(space.pid, self.refresh_later)
            yield from self._bring(connected)
        else:
            yield connected.ready
            if connected.error is not None or connected.channel is None or connected.channel.closed:
                yield from self._bring(connected)
        if connected.error is not None:
            raise connected.error
        return connected

    def _bring(self, connected: Connected) -> Asking[None]:
        """Connect, or reconnect; `error` has the result."""
        connected.ready.enter(connected)
        try:
            for _ in range(_ATTEMPTS):
                connected.error = None
                connected.keys.clear()
                connected.state.clear()
                if self.connections.is_away:
                    # A child's copies were made when its parent's bits were set.
                    yield self.memory(self._clear_all, connected.space)
                try:
                    yield from self._connect(connected)
                    yield from self._register_all(connected)
                except OSError as failure:
                    connected.error = failure
                if connected.channel is None or not self.connections.is_retried(connected.channel):
                    break
                yield self.connections.pause()
            if connected.error is not None and connected.error.errno == errno.ENOTCONN:
                yield self.memory(self._clear_all, connected.space)
        finally:
            connected.ready.leave(connected)
            if connected.channel is not None and (connected.error is not None or connected.is_gone):
                connected.channel.close()

    def _connect(self, connected: Connected) -> Asking[None]:
        space = connected.space
        owner = OpenFor(space.pid, space.start_time, space.uid, space.gid)
        connected.channel = yield from self.connections.connected(
            owner, functools.partial(self._notified, connected), lambda _: self._ended(connected)
        )

    def _register_all(self, connected: Connected) -> Asking[None]:
        """Register the enablers that exist before the connection: a child's copies, or after a restart
        all."""
        enablers: dict[Key, Enabler] = yield self.memory(self._named, connected.space)
        assert connected.channel is not None
        requests: list[Params] = [NotifyEnablers(), *map(_registration, enablers.values())]
        connected.keys.update((enabler.token, key) for key, enabler in enablers.items())
        began, *answers = yield AskEach(connected.channel, requests)
        if isinstance(began, OSError):
            raise began
        for (key, enabler), answer in zip(enablers.items(), answers, strict=True):
            try:
                self._note(connected, enabler.token, answer)
            except OSError:
                if connected.channel.closed:
                    raise
                # Now of another event, or over a limit.
                yield self.memory(self.give_back, connected.space, key, enabler)
        self._set(connected, list(connected.state))
        if connected.state:
            # Children forked before have their own bits, which are not set yet.
            self.refresh_later()

    def _born(self, child: AddressSpace, parent: AddressSpace) -> None:
        """In the memory thread: make a child's bits those of its parent, whose word is up to date; then
        connect for it."""
        for (address, bit), enabler in child.enablers.items():
            with contextlib.suppress(OSError):
                word, own = (
                    int.from_bytes(space.read(address, enabler.size), sys.byteorder)
                    for space in (parent, child)
                )
                if (word ^ own) >> bit & 1:
                    child.set_bit(address, enabler.size, bit, bool(word >> bit & 1))
        self.memory.post(lambda: self.connections.begin(self._tell(child)))

    def give_back(self, space: AddressSpace, key: Key, enabler: Enabler) -> None:
        """In the memory thread: return the word to the program, cleared."""
        if space.enablers.get(key) is enabler:
            space.remove(*key)
            set_bit(space, key, enabler, False)

    def _named(self, space: AddressSpace) -> dict[Key, Enabler]:
        """In the memory thread: the enablers of the space. A child's copies may have their parent's tokens,
        which belong to another connection."""
        for enabler in space.enablers.values():
            enabler.token = enabler.token or self.new_token()
        return dict(space.enablers)

    def _register(self, connected: Connected, key: Key, enabler: Enabler) -> Asking[None]:
        if connected.channel is None or enabler.token in connected.keys:
            return
        connected.keys[enabler.token] = key
        [answer] = yield AskEach(connected.channel, [_registration(enabler)])
        self._note(connected, enabler.token, answer)

    def _note(self, connected: Connected, token: int, answer: object) -> None:
        """Register; returns the first state of the bit. OSError: the daemon does not have the enabler."""
        try:
            if isinstance(answer, OSError):
                raise answer
            state = checked(EnablerRegistered.from_wire, answer, EventRegistration.METHOD).enabled
        except OSError:
            connected.keys.pop(token, None)
            raise
        if token in connected.keys:
            connected.state[token] = state

    def _forget(self, connected: Connected, token: int) -> None:
        connected.state.pop(token, None)
        if connected.keys.pop(token, None) is not None and connected.channel is not None:
            connected.channel.send(EventUnregistration(token=token), lambda _result, _error: None)

    def _gone(self, space: AddressSpace) -> None:
        """Exec or exit: no bits are left; notify the daemon at once."""
        connected = self._connected.pop(space, None)
        if connected is None:
            return
        connected.is_gone = True
        connected.forget_process()
        connected.keys.clear()
        connected.state.clear()
        if connected.channel is None or not connected.ready.is_open:
            return
        channel = connected.channel
        self.leaving.enter(connected)

        def finished() -> None:
            channel.close()
            self.leaving.leave(connected)

        channel.finish(finished)

    def _refreshed(self, _result: object, failure: OSError | None) -> None:
        if failure is not None:
            logger.error("looking for processes: %s", failure)

    # Bits

    def _notified(self, connected: Connected, notification: Notification) -> None:
        if notification.method != EnablersChanged.METHOD:
            return
        try:
            changed = EnablersChanged.from_params(notification.params)
        except TraceError as failure:
            logger.error("invalid message of the daemon: %s", failure.text)
            return
        connected.state.update((token, on) for token, on in changed.changes if token in connected.keys)
        self._set(connected, [token for token, _ in changed.changes], seq=changed.seq)

    def _set(
        self, connected: Connected, tokens: list[int], *, seq: int | None = None, retries: int = _RETRIES
    ) -> None:
        """Set the bits; then acknowledge, if requested."""
        if tokens or seq is not None:
            self._due.append(_Due(connected, tokens, seq, retries))
            if not self._is_setting:
                self._set_due()

    def _set_due(self) -> None:
        """Set all at once: later changes go with the next job. One switch may concern hundreds of
        processes."""
        due, self._due = self._due, []
        self._is_setting = True

        def done(missed: list[list[int]] | None, _failure: OSError | None) -> None:
            self._is_setting = False
            for one, tokens in zip(due, missed or [[]] * len(due), strict=True):
                self._was_set(one, tokens)
            if any(one.seq is not None for one in due):
                # Descendants not found yet have bits, too, and the switching user waits for them as well.
                self.memory.submit(self.spaces.refresh, functools.partial(self._acknowledge, due))
            if self._due and not self._is_setting:
                self._set_due()

        self.memory.submit(
            lambda: [self._set_bits(one.connected, one.tokens) for one in due], done, is_urgent=True
        )

    def _acknowledge(self, due: "list[_Due]", _result: object, failure: OSError | None) -> None:
        self._refreshed(None, failure)
        for one in due:
            if one.seq is not None and one.connected.channel is not None:
                one.connected.channel.notify(EnablersWritten(one.seq))

    def _was_set(self, one: "_Due", missed: list[int]) -> None:
        retried = one.connected.retried
        if one.retries < _RETRIES:
            retried.difference_update(one.tokens)
        missed = [token for token in missed if token not in retried]
        if missed and one.retries and not one.connected.is_gone:
            retried.update(missed)
            again = functools.partial(self._set, one.connected, missed, retries=one.retries - 1)
            self.connections.timers.enter(_RETRY_S * 2 ** (_RETRIES - one.retries), 0, again)

    def _set_bits(self, connected: Connected, tokens: Iterable[int]) -> list[int]:
        """In the memory thread; returns the bits that could not be set."""
        missed = []
        for token in tokens:
            key, on = connected.keys.get(token), connected.state.get(token)
            if key is None or on is None:
                continue
            enabler = connected.space.enablers.get(key)
            if enabler is None or enabler.token != token:
                continue  # the word now belongs to the program, or to another enabler
            if not set_bit(connected.space, key, enabler, on):
                missed.append(token)
        return missed

    def _ended(self, connected: Connected) -> None:
        """The daemon ended; this also concerns children of the space not found yet."""
        self._clear(connected)
        self.refresh_later()

    def _clear_all(self, space: AddressSpace) -> None:
        """In the memory thread."""
        for key, enabler in space.enablers.items():
            set_bit(space, key, enabler, False)

    def _clear(self, connected: Connected) -> None:
        connected.state = dict.fromkeys(connected.state, False)
        self._set(connected, list(connected.state), retries=0)


def _registration(enabler: Enabler) -> EventRegistration:
    """Without the flag for a persistent event: it exists."""
    flags = enabler.flags & ~REG_PERSIST
    return EventRegistration(enabler.command, flags, token=enabler.token, event_id=enabler.event_id)


def set_bit(space: AddressSpace, key: Key, enabler: Enabler, on: bool) -> bool:
    """In the memory thread: whether it could be written."""
    address, bit = key
    return space.set_bit(address, enabler.size, bit, on)
