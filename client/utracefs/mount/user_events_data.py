"""The mounted user_events_data: kernel/trace/trace_events_user.c implemented by requests to the daemon.

    open file       ── a connection, opened for the process that opened it ──▶ write indexes, records
    address space   ── see enablers ──▶ enablers

As in the kernel, a write_index belongs to an open file, whichever process has a descriptor of it, and an
enabler to the memory of the caller. A registration has three stages: memory (the checks up to the command
string; the word is reserved), daemon (the file's index, then the space's enabler), memory (the bit, then
write_index).

Without a daemon, or if it does not answer, there are no consumers: writes are EBADF. With the next daemon a
file registers its events in the same order; an event that cannot be registered again keeps its index, which
is EBADF.
"""

import contextlib
import errno
import os
import struct
from typing import Final

import attrs

from utracefs.mount import abi, user_reg
from utracefs.mount.abi import Header
from utracefs.mount.channel import Channel
from utracefs.mount.data_connections import Asking
from utracefs.mount.enablers import Connected, Enablers, Key, set_bit
from utracefs.mount.operation import Ask, Steps, Wait, error
from utracefs.mount.processes.address_space import AddressSpace, Enabler
from utracefs.mount.user_reg import Command, UserReg, UserUnreg
from utracefs.tree.rpc import checked
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefs_protocol.limits import MAX_COMMAND_STRING, MAX_DATA_OBJECT
from utracefs_protocol.messages.data import EventDeletion, EventRegistration, OpenFor, Registered, Write

MAX_RECORD: Final = MAX_DATA_OBJECT - 64
"""Limit in bytes of a write that is passed to the daemon, in one object. No consumer keeps longer records:
they are checked here by index and length, and dropped, as in the kernel."""

WRITE_S: Final = 2.0
"""How long a write waits for a daemon that does not answer; then it is EBADF, and so is every other one at
once, until the daemon answers. The daemon may be stopped, or busy printing 64 MiB of trace: a program must
not wait for that with each of its records, nor for other programs' writes (the kernel may serialize writes to
a file, and a waiting writer then cannot be killed)."""

_INDEX: Final = struct.Struct("=i")
_WRITE_INDEX: Final = struct.Struct("=I")
_DONE: Final = abi.IOCTL_OUT.pack(0, 0, 0, 0)


@attrs.frozen
class _Event:
    """A registration on a file."""

    registration: EventRegistration
    """For registering it again."""
    size: int
    """Minimum bytes of a payload."""


@attrs.define(eq=False)
class DataFile:
    """An open file; the kernel has a number for it, however many descriptors there are."""

    owner: OpenFor
    channel: Channel
    events: list[_Event] = attrs.field(factory=list)
    """By write_index."""
    indexes: list[int | None] | None = None
    """After a restart of the daemon: present index by write_index, None: none. None: all unchanged."""
    is_coming: bool = False
    """A new connection is in progress."""


class UserEventsData:
    """Files of one mount. The spaces of `enablers` are called in the memory thread."""

    def __init__(self, enablers: Enablers) -> None:
        self._connections = enablers.connections
        self._memory = enablers.memory
        self._spaces = enablers.spaces
        self._enablers = enablers
        self._files: set[DataFile] = set()

    # Open files

    def open(self, header: Header) -> Asking[DataFile]:
        """ESRCH, EPERM: the caller is not visible from here. Errors of the daemon. ENOTCONN: no daemon."""
        if not header.pid:
            self._connections.say(
                "a process of another pid namespace opened user_events_data; mount in its namespace, or in"
                " one around it"
            )
            raise error(errno.EPERM)
        owner = self._connections.process_of(header)
        file = DataFile(owner, (yield from self._connections.connected(owner)))
        self._files.add(file)
        return file

    def release(self, file: DataFile) -> Steps:
        """At its end the daemon has dropped the references."""
        self._files.discard(file)
        self._enablers.refresh_later()
        yield Wait(lambda resume: file.channel.finish(lambda: resume(None, None)))
        return b""

    def write(self, file: DataFile, header: Header, offset: int, data: bytes) -> Asking[int]:
        """Returns the bytes taken: all. EFAULT, EINVAL, ENOENT, EBADF in the kernel's order.

        offset: not 0 for the second and further pieces of a call that was too long for one request (512 KiB,
        256 pages): these are no records, and are dropped.
        """
        if offset:
            self._connections.say(
                "pid %d wrote more than 512 KiB or 256 pages in one call; what is behind them is lost",
                header.pid,
            )
            return len(data)
        if len(data) > MAX_RECORD:
            self._judge(file, data)
            return len(data)
        channel = file.channel
        if channel.closed:
            self._come_again(file, header)
            raise error(errno.EBADF)
        if self._connections.silent:
            raise error(errno.EBADF)
        record = data if file.indexes is None else _moved(file.indexes, data)
        tid = header.pid if self._connections.speaks_for_others else 0
        try:
            yield Ask(channel, Write(record, tid or None), answer_s=WRITE_S)
        except OSError as failure:
            if failure.errno == errno.ETIMEDOUT:
                self._connections.say("the daemon does not answer: records are lost until it does")
            elif not channel.closed:
                raise
            raise error(errno.EBADF) from None
        return len(data)

    def _judge(self, file: DataFile, data: bytes) -> None:
        (index,) = _INDEX.unpack_from(data)
        if index < 0:
            raise error(errno.EINVAL)
        if index >= len(file.events):
            raise error(errno.ENOENT)
        if len(data) - _INDEX.size < file.events[index].size:
            raise error(errno.EINVAL)

    # ioctl

    def ioctl(self, file: DataFile, header: Header, flags: int, number: int, argument: int) -> Steps:
        """The kernel's errors in its order; EPERM, EACCES, ESRCH: we cannot access the caller's memory, and
        the log says why."""
        match user_reg.command_of(number, flags):
            case Command.REG:
                yield from self._register(file, header, argument, user_reg.is_32_bit(flags))
            case Command.UNREG:
                yield from self._unregister(header, argument)
            case Command.DEL:
                yield from self._delete(header, argument)
            case None:
                raise error(errno.ENOTTY)
        return _DONE

    def _register(self, file: DataFile, header: Header, argument: int, is_32_bit: bool) -> Asking[None]:
        space, key, enabler = yield self._memory(self._take, header.pid, argument, is_32_bit)
        try:
            self._check_privilege(file, space, enabler)
            index = yield from self._index_of(file, EventRegistration(enabler.command, enabler.flags))
            enabler.event_id = file.events[index].registration.event_id
            connected = yield from self._enablers.add(space, key, enabler)
            if not (yield self._memory(self._hand_over, connected, enabler.token, argument, index)):
                raise error(errno.ENOMEM)
        except OSError:
            self._enablers.remove(space, enabler)
            yield self._memory(self._enablers.give_back, space, key, enabler)
            raise

    def _take(self, tid: int, argument: int, is_32_bit: bool) -> tuple[AddressSpace, Key, Enabler]:
        """In the memory thread: the checks up to the command string; then the word is reserved."""
        space = self._space_of(tid)
        reg = UserReg.read(space.read, argument, is_32_bit=is_32_bit)
        key = reg.address, reg.bit
        if key in space.enablers:
            raise error(errno.EADDRINUSE)
        command = space.read_string(reg.name_args, MAX_COMMAND_STRING)
        enabler = Enabler(reg.size, command, reg.flags, self._enablers.new_token())
        space.add(reg.address, reg.bit, enabler)
        return space, key, enabler

    def _hand_over(self, connected: Connected, token: int, argument: int, index: int) -> bool:
        """In the memory thread, at the end: False when the word cannot be written. The kernel does not check
        whether write_index could be stored, either."""
        if not self._enablers.write_bit(connected, token):
            return False
        with contextlib.suppress(OSError):
            connected.space.write(argument + user_reg.WRITE_INDEX_OFFSET, _WRITE_INDEX.pack(index))
        return True

    def _check_privilege(self, file: DataFile, space: AddressSpace, enabler: Enabler) -> None:
        """The daemon checks the rights of the process that opened the file; passing a descriptor on does not
        pass on rights."""
        if enabler.flags & REG_PERSIST and space.uid != file.owner.uid and space.uid not in (0, os.geteuid()):
            is_name_wrong = b":" in enabler.command.partition(b" ")[0]
            raise error(errno.EINVAL if is_name_wrong else errno.EPERM)

    def _index_of(self, file: DataFile, registration: EventRegistration) -> Asking[int]:
        """The event's write_index on that file."""
        while True:
            yield from self._connections.present()
            channel = file.channel
            try:
                answer = yield Ask(channel, registration)
            except OSError:
                if not self._connections.is_retried(channel):
                    raise
                yield self._connections.pause()
            else:
                return self._note(file, registration, answer)

    def _note(self, file: DataFile, registration: EventRegistration, answer: object) -> int:
        registered = checked(Registered.from_wire, answer, EventRegistration.METHOD)
        index = registered.write_index
        if file.indexes is not None:
            if index in file.indexes:
                return file.indexes.index(index)
            file.indexes.append(index)
            index = len(file.indexes) - 1
        if index == len(file.events):
            size = answer.get("size", 0) if isinstance(answer, dict) else 0
            again = EventRegistration(
                registration.name_args, registration.flags, event_id=registered.event_id
            )
            file.events.append(_Event(again, size))
        return index

    def _unregister(self, header: Header, argument: int) -> Asking[None]:
        space, enabler, is_clear = yield self._memory(self._take_back, header.pid, argument)
        self._enablers.remove(space, enabler)
        if not is_clear:
            raise error(errno.EFAULT)

    def _take_back(self, tid: int, argument: int) -> tuple[AddressSpace, Enabler, bool]:
        """In the memory thread: return the bit to the program."""
        space = self._space_of(tid)
        unreg = UserUnreg.read(space.read, argument)
        key = unreg.address, unreg.bit
        enabler = space.remove(*key)
        return space, enabler, set_bit(space, key, enabler, False)

    def _delete(self, header: Header, argument: int) -> Asking[None]:
        """On the caller's own connection, since its capability counts."""
        name = yield self._memory(self._name_to_delete, header.pid, argument)
        yield self._enablers.leaving
        owner = self._connections.process_of(header)
        channel = yield from self._connections.connected(owner)
        try:
            yield Ask(channel, EventDeletion(name))
        finally:
            channel.close()

    def _name_to_delete(self, tid: int, argument: int) -> bytes:
        """In the memory thread. Ended processes have no references any more."""
        self._spaces.refresh()
        return self._space_of(tid).read_string(argument, MAX_COMMAND_STRING)

    def _space_of(self, tid: int) -> AddressSpace:
        try:
            return self._spaces.of_caller(tid)
        except OSError as failure:
            text = failure.strerror or str(failure)
            if failure.errno != errno.ESRCH:  # it was killed while it waited
                self._memory.post(lambda: self._connections.say("%s", text))
            raise

    # The daemon goes and comes

    def daemon_went(self) -> None:
        """The daemon ended; another one will follow."""
        self._connections.is_away = True

    def daemon_came(self) -> None:
        """Register all events and enablers with the next daemon."""
        self._connections.is_away = False
        for file in list(self._files):
            file.channel.close()
            self._bring(file)
        self._enablers.daemon_came()

    def close(self) -> None:
        """The mount ends. The memory thread is closed after this."""
        self._enablers.close()

    def _come_again(self, file: DataFile, header: Header) -> None:
        """The opening process had ended when the daemon came, so the file belongs to the first process that
        uses it."""
        if self._connections.reconnects and not self._connections.is_away and not file.is_coming:
            file.owner = self._connections.process_of(header)
            self._bring(file)

    def _bring(self, file: DataFile) -> None:
        file.is_coming = True
        self._connections.begin(self._connect_again(file))

    def _connect_again(self, file: DataFile) -> Asking[None]:
        indexes: list[int | None] = []
        try:
            channel = yield from self._connections.connected(file.owner)
            for event in file.events:
                indexes.append((yield from self._index_again(channel, event)))
        except OSError as failure:
            if failure.errno != errno.ESRCH:
                raise
            return
        finally:
            file.is_coming = False
        file.indexes = None if indexes == list(range(len(indexes))) else indexes
        file.channel = channel
        if file not in self._files:
            channel.close()

    def _index_again(self, channel: Channel, event: _Event) -> Asking[int | None]:
        try:
            answer = yield Ask(channel, event.registration)
            return Registered.from_wire(answer).write_index
        except (OSError, TraceError) as failure:
            if channel.closed:
                raise
            self._connections.say("%s cannot be registered again: %s", event.registration.name_args, failure)
            return None


def _moved(indexes: list[int | None], record: bytes) -> bytes:
    """A record with its event's present index; an invalid record stays invalid. EBADF."""
    if len(record) < _INDEX.size:
        return record
    (index,) = _INDEX.unpack_from(record)
    if not 0 <= index < len(indexes):
        return record
    now = indexes[index]
    if now is None:
        raise error(errno.EBADF)
    return _INDEX.pack(now) + record[_INDEX.size :]
