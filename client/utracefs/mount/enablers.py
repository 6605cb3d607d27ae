"""Enablers of address spaces: the daemon tells of changes, and bits are set.

    address space  ── a connection, opened for its process; each enabler a token ──▶ daemon
    memory thread  ◀── bits to set ──  loop  ◀── enablers_changed ──
                   ── done ──▶               ── enablers_written ──▶

Children have copies of their parent's enablers, on a connection of their own. With the end of the memory
(exit, exec) the connection ends, and the daemon drops what it referred to.

**Two threads.** Memory is only touched by the memory thread, and `AddressSpace.enablers` is its own. All else
belongs to the loop; the memory thread looks at `keys` and `state`, one member at a time.

**A bit is right** because its last writer knows the last state: answers and notifications of a connection
come in order and are noted in `state` at once; a job that sets bits takes the state from there when it runs.
So it may run before others that came first. A word that cannot be written is tried again for 0.1 s, as the
kernel does it ten times, then left until the next change.

Without a daemon bits are clear, since nobody wants the events. The next one is told of all enablers again;
the bit of an event that cannot be found again stays clear, and is no enabler any more.
"""

import contextlib
import errno
import functools
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from utracefs.mount.channel import Channel
from utracefs.mount.data_connections import Asking, DataConnections, Process
from utracefs.mount.operation import AskEach, Gate
from utracefs.mount.processes.address_space import AddressSpace, AddressSpaces, Enabler
from utracefs.mount.processes.memory_thread import MemoryThread
from utracefs_protocol.connection import Notification
from utracefs_protocol.declaration import REG_PERSIST
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.data import (
    EnablerRegistered,
    EnablersChanged,
    EnablersWritten,
    EventRegistration,
    EventUnregistration,
    NotifyEnablers,
)
from utracefs_protocol.messages.params import Params

__all__ = ["Enablers", "Key", "Told", "set_bit"]

logger = logging.getLogger("utracefs.mount")

_RETRY_S: Final = 0.01
_RETRIES: Final = 10
"""When a word could not be written."""

_ATTEMPTS: Final = 3
"""Daemons that may end while one is told of everything."""

Key = tuple[int, int]
"""Address of the word, number of the bit."""


WatchProcess = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Given a pid, and what is to be called once when that process ends; returns what calls it off. OSError."""


def _nothing() -> None:
    pass


@attrs.define(eq=False)
class Told:
    """An address space, as the daemon knows it."""

    space: AddressSpace
    channel: Channel | None = None
    ready: Gate = attrs.field(factory=Gate)
    """Closed while the connection is made."""
    error: OSError | None = None
    """Why there is none."""
    keys: dict[int, Key] = attrs.field(factory=dict)
    """By token: what the daemon was asked to tell of."""
    state: dict[int, bool] = attrs.field(factory=dict)
    """By token, what the bit shall be: the last that the daemon said."""
    is_gone: bool = False
    forget_process: Callable[[], object] = _nothing
    """Its end is not waited for any more."""


@attrs.frozen
class _Due:
    """Bits to be set."""

    told: Told
    tokens: list[int]
    seq: int | None
    """What the daemon wants to hear then."""
    retries: int


class Enablers:
    """`spaces` becomes ours; it is called in the memory thread."""

    def __init__(
        self,
        connections: DataConnections,
        *,
        memory: MemoryThread,
        spaces: AddressSpaces,
        watch_process: WatchProcess,
    ) -> None:
        self._connections = connections
        self._memory = memory
        self._spaces = spaces
        self._watch_process = watch_process
        self._told: dict[AddressSpace, Told] = {}
        self._due: list[_Due] = []
        self._is_setting = False
        self._settles = False
        self._tokens = itertools.count(1)
        self.leaving = Gate()
        """Who is in it has ended, and tells the daemon."""
        spaces.on_born = lambda child, parent: memory.post(lambda: connections.begin(self._tell(child)))
        spaces.on_gone = lambda space: memory.post(lambda: self._gone(space))
        spaces.on_pause = memory.run_urgent

    def new_token(self) -> int:
        """In the memory thread."""
        return next(self._tokens)

    def add(self, space: AddressSpace, key: Key, enabler: Enabler) -> Asking[Told]:
        """Tell the daemon of an enabler that the space has already. The event must be there. ENOMEM and what
        else the daemon says; then `remove` it."""
        while True:
            told = yield from self._tell(space)
            assert told.channel is not None
            channel = told.channel
            try:
                yield from self._register(told, key, enabler)
            except OSError:
                if not self._connections.is_retried(channel):
                    raise
            else:
                return told

    def remove(self, space: AddressSpace, enabler: Enabler) -> None:
        """The space does not have it any more."""
        told = self._told.get(space)
        if told is not None:
            self._forget(told, enabler.token)

    def write_bit(self, told: Told, token: int) -> bool:
        """In the memory thread: False when the word cannot be written."""
        return not self._set_bits(told, [token])

    def settle(self) -> None:
        """Have it found out who ended and who was born; once for all who ask in this turn of the loop, and
        after the bits that they want set."""
        if not self._settles:
            self._settles = True
            self._connections.timers.later(0, self._settle)

    def _settle(self) -> None:
        self._settles = False
        self._memory.submit(self._spaces.settle, self._settled)

    def daemon_came(self) -> None:
        """Tell it of everything."""
        for told in list(self._told.values()):
            if told.ready.is_open:
                self._connections.begin(self._bring(told))

    def close(self) -> None:
        """Nobody wants anything any more: bits are cleared before the memory thread ends."""
        for told in self._told.values():
            self._clear(told)
        self._set_due()
        self._memory.submit(self._leave, lambda _result, _failure: None)

    def _leave(self) -> None:
        """In the memory thread. Children that nobody has seen yet have bits, too."""
        with contextlib.suppress(OSError):
            self._spaces.settle()
        for space in self._spaces:
            self._clear_all(space)
        self._spaces.close()

    # The connection of an address space

    def _tell(self, space: AddressSpace) -> Asking[Told]:
        told = self._told.get(space)
        if told is None:
            told = self._told[space] = Told(space)
            # If it has ended already, or cannot be watched, the next look finds out.
            with contextlib.suppress(OSError):
                told.forget_process = self._watch_process(space.pid, self.settle)
            yield from self._bring(told)
        else:
            yield told.ready
            if told.error is not None or told.channel is None or told.channel.closed:
                yield from self._bring(told)
        if told.error is not None:
            raise told.error
        return told

    def _bring(self, told: Told) -> Asking[None]:
        """Connect, or connect again; `error` says how it went."""
        told.ready.enter(told)
        try:
            for _ in range(_ATTEMPTS):
                told.error = None
                told.keys.clear()
                told.state.clear()
                if self._connections.is_away:
                    # A child's copies were made when its parent's were set.
                    yield self._memory(self._clear_all, told.space)
                try:
                    yield from self._connect(told)
                    yield from self._register_all(told)
                except OSError as failure:
                    told.error = failure
                if told.channel is None or not self._connections.is_retried(told.channel):
                    break
                yield self._connections.pause()
            if told.error is not None and told.error.errno == errno.ENOTCONN:
                yield self._memory(self._clear_all, told.space)
        finally:
            told.ready.leave(told)
            if told.channel is not None and (told.error is not None or told.is_gone):
                told.channel.close()

    def _connect(self, told: Told) -> Asking[None]:
        space = told.space
        owner = Process(space.pid, space.start_time, space.uid, space.gid)
        told.channel = yield from self._connections.connected(
            owner, functools.partial(self._notified, told), lambda _: self._ended(told)
        )

    def _register_all(self, told: Told) -> Asking[None]:
        """Those that are there before the connection: a child's copies, or after a restart all."""
        enablers: dict[Key, Enabler] = yield self._memory(self._named, told.space)
        assert told.channel is not None
        requests: list[Params] = [NotifyEnablers(), *map(_registration, enablers.values())]
        told.keys.update((enabler.token, key) for key, enabler in enablers.items())
        began, *answers = yield AskEach(told.channel, requests)
        if isinstance(began, OSError):
            raise began
        for (key, enabler), answer in zip(enablers.items(), answers, strict=True):
            try:
                self._note(told, enabler.token, answer)
            except OSError:
                if told.channel.closed:
                    raise
                # Of another event by now, or over a limit.
                yield self._memory(self.give_back, told.space, key, enabler)
        self._set(told, list(told.state))
        if told.state:
            # Children that were forked before have bits of their own, which nobody has set.
            self.settle()

    def give_back(self, space: AddressSpace, key: Key, enabler: Enabler) -> None:
        """In the memory thread: the word is the program's, and clear."""
        if space.enablers.get(key) is enabler:
            space.remove(*key)
            set_bit(space, key, enabler, False)

    def _named(self, space: AddressSpace) -> dict[Key, Enabler]:
        """In the memory thread: what the space has. A child's copies may have their parent's tokens, which
        are names on another connection."""
        for enabler in space.enablers.values():
            enabler.token = enabler.token or self.new_token()
        return dict(space.enablers)

    def _register(self, told: Told, key: Key, enabler: Enabler) -> Asking[None]:
        """Once for each token."""
        if told.channel is None or enabler.token in told.keys:
            return
        told.keys[enabler.token] = key
        [answer] = yield AskEach(told.channel, [_registration(enabler)])
        self._note(told, enabler.token, answer)

    def _note(self, told: Told, token: int, answer: object) -> None:
        """The first state of a bit. OSError: the daemon does not have the enabler."""
        try:
            if isinstance(answer, OSError):
                raise answer
            state = EnablerRegistered.from_wire(answer).enabled
        except (OSError, TraceError) as failure:
            told.keys.pop(token, None)
            if isinstance(failure, TraceError):
                raise OSError(errno.EPROTO, failure.text) from None
            raise
        if token in told.keys:
            told.state[token] = state

    def _forget(self, told: Told, token: int) -> None:
        told.state.pop(token, None)
        if told.keys.pop(token, None) is not None and told.channel is not None:
            told.channel.send(EventUnregistration(token=token), lambda _result, _error: None)

    def _gone(self, space: AddressSpace) -> None:
        """Exec or exit: nothing is left to be set, and the daemon shall know at once."""
        told = self._told.pop(space, None)
        if told is None:
            return
        told.is_gone = True
        told.forget_process()
        told.keys.clear()
        told.state.clear()
        if told.channel is None or not told.ready.is_open:
            return
        channel = told.channel
        self.leaving.enter(told)

        def finished() -> None:
            channel.close()
            self.leaving.leave(told)

        channel.finish(finished)

    def _settled(self, _result: object, failure: OSError | None) -> None:
        if failure is not None:
            logger.error("looking for processes: %s", failure)

    # Bits

    def _notified(self, told: Told, notification: Notification) -> None:
        """Descendants that nobody has seen yet have bits of their own to be set, so they are looked for
        behind that, once for all who are told together."""
        if notification.method != EnablersChanged.METHOD:
            return
        try:
            changed = EnablersChanged.from_params(notification.params)
        except TraceError as failure:
            logger.error("the daemon says what cannot be understood: %s", failure.text)
            return
        told.state.update((token, on) for token, on in changed.changes if token in told.keys)
        self._set(told, [token for token, _ in changed.changes], seq=changed.seq)
        self.settle()

    def _set(self, told: Told, tokens: list[int], *, seq: int | None = None, retries: int = _RETRIES) -> None:
        """Have the bits set; then tell the daemon, when it wants to hear."""
        if tokens or seq is not None:
            self._due.append(_Due(told, tokens, seq, retries))
            if not self._is_setting:
                self._set_due()

    def _set_due(self) -> None:
        """All at once: what comes meanwhile goes with the next. One switch may concern hundreds of
        processes."""
        due, self._due = self._due, []
        self._is_setting = True

        def done(missed: list[list[int]] | None, _failure: OSError | None) -> None:
            self._is_setting = False
            for one, tokens in zip(due, missed or [[]] * len(due), strict=True):
                self._was_set(one, tokens)
            if self._due and not self._is_setting:
                self._set_due()

        self._memory.submit(
            lambda: [self._set_bits(one.told, one.tokens) for one in due], done, is_urgent=True
        )

    def _was_set(self, one: "_Due", missed: list[int]) -> None:
        if one.seq is not None and one.told.channel is not None:
            one.told.channel.notify(EnablersWritten(one.seq))
        if missed and one.retries and not one.told.is_gone:
            again = functools.partial(self._set, one.told, missed, retries=one.retries - 1)
            self._connections.timers.later(_RETRY_S, again)

    def _set_bits(self, told: Told, tokens: Iterable[int]) -> list[int]:
        """In the memory thread; returns those that could not be set."""
        missed = []
        for token in tokens:
            key, on = told.keys.get(token), told.state.get(token)
            if key is None or on is None:
                continue
            enabler = told.space.enablers.get(key)
            if enabler is None or enabler.token != token:
                continue  # the word is the program's by now, or another enabler's
            if not set_bit(told.space, key, enabler, on):
                missed.append(token)
        return missed

    def _ended(self, told: Told) -> None:
        """The daemon went; children of the space that nobody has seen yet are concerned as well."""
        self._clear(told)
        self.settle()

    def _clear_all(self, space: AddressSpace) -> None:
        """In the memory thread."""
        for key, enabler in space.enablers.items():
            set_bit(space, key, enabler, False)

    def _clear(self, told: Told) -> None:
        told.state = dict.fromkeys(told.state, False)
        self._set(told, list(told.state), retries=0)


def _registration(enabler: Enabler) -> EventRegistration:
    """What makes the event persistent is not asked for: it is there."""
    flags = enabler.flags & ~REG_PERSIST
    return EventRegistration(enabler.command, flags, token=enabler.token, event_id=enabler.event_id)


def set_bit(space: AddressSpace, key: Key, enabler: Enabler, on: bool) -> bool:
    """In the memory thread: whether it could be written."""
    address, bit = key
    try:
        return space.set_bit(address, enabler.size, bit, on)
    except OSError:
        return False
