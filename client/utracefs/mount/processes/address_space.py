"""Address spaces with enable words: those of the programs that registered some, and of their forked children.

    of_caller(tid)   the address space of a thread that is in a call to us
    refresh()        finds children, drops ended ones
    Memory           reads and writes one (compiled; it explains why no other memory is accessed)

**Identity of an address space.** The kernel keeps enablers in the mm and copies them at fork
(user_event_mm_dup()). From outside, an mm has no name. Its image has one: at each exec the kernel puts 16
random bytes on the new stack (AT_RANDOM), and a forked child has the same bytes at the same place. So

    same bytes, same process                       the known one
    same bytes, another process, the same mm       a child of vfork (by kcmp()): its parent's
    same bytes, another process, another mm        related by fork
    other bytes                                    another program: exec inherits nothing

All address spaces related so are a Family.

**Inheritance.** A child has the enablers that its parent had when it was forked. We are not notified of
forks, so before each change of any set (`AddressSpace.add`, `remove`) and before states are written we look
at each new process; then the parent's present enablers are the inherited ones. New processes are found by
their pids: the kernel assigns pids in order, and /proc/loadavg has the last one. The parent is `ppid`; a
process orphaned before the look may descend from any member of the family, and gets the enablers common to
all of these. So we never write to an address that neither the program nor a parent named. A relative that
existed before the family's first enabler is no member, nor are its children (`has_outsiders`).

Discovery costs one short read, plus one /proc/PID/stat per new process or thread.

**Permissions** are the kernel's (ptrace_may_access()): processes of the same user with no more capabilities
than ours, or all with CAP_SYS_PTRACE. `why_not` finds the reason for a refusal.
"""

import collections
import contextlib
import errno
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import attrs

from utracefs.mount.processes._memory import Memory, ended, same_memory
from utracefs.mount.processes.access import status_of, why_not
from utracefs.mount.processes.procfs import Stat, stat_of, with_start_stack

logger = logging.getLogger("utracefs.mount")

T = TypeVar("T")

MAX_ADDRESS_SPACES: Final = 4096
"""Limit of a mount. Each has two descriptors open."""

MAX_OF_USER: Final = 2048
"""Limit of one user id."""

MAX_ENABLERS: Final = 4096
"""Limit of one address space; the daemon limits those of a user."""

MAX_HANGS: Final = 4
"""Hangs within HANGS_S of one user id's memory, after which that user's memory is not accessed: each costs a
thread, and delays all others by a second."""

HANGS_S: Final = 60.0

_MAX_SPAN: Final = 1024
"""Limit of new pids that are looked up one by one. For more of them /proc is listed."""

_COUNT_S: Final = 0.1
"""If the last look is longer ago, the kernel's count of forks shows whether pids wrapped meanwhile. They
cannot within this time: that takes more than 30,000 forks."""

_AGAIN_S: Final = (0.001, 0.01, 0.1, 1.0)
"""Delays before a pid without a process is looked up again: the kernel assigns it before the process is
visible (copy_process())."""


@attrs.define
class Enabler:
    """An enable bit of an event in a program's memory."""

    size: int
    """Bytes of its word: 4 or 8."""
    command: bytes
    """The event's command string, as registered."""
    flags: int
    token: int = 0
    """Its token at the daemon; 0: none yet."""
    event_id: int = 0
    """`event_id` of a registration, for the daemon to find the event (`Registered.event_id`)."""


@attrs.define(eq=False)
class Family:
    """Address spaces that descend from one exec."""

    fingerprint: bytes
    start_stack: int
    members: "set[AddressSpace]" = attrs.field(factory=set)
    has_outsiders: bool = False
    """There are, or were, relatives by fork that are no members: they have none of these enablers."""


@attrs.define(eq=False)
class AddressSpace:
    """An address space with enablers, or one that may get some. `AddressSpaces` makes it."""

    _all: "AddressSpaces"
    memory: Memory
    family: Family
    pid: int
    """The process that it was first found in. A child of vfork may outlive that."""
    start_time: int
    uid: int
    gid: int
    """Effective ids of that process at that time."""
    enablers: dict[tuple[int, int], Enabler] = attrs.field(factory=dict)
    """By address and bit. Call `AddressSpaces.discover` right before a change, as `add` and `remove` do."""
    processes: set[tuple[int, int]] = attrs.field(factory=set)
    """Pid and start time of its processes."""

    def add(self, address: int, bit: int, enabler: Enabler) -> None:
        """Register the bit. OSError: EADDRINUSE: it has an enabler (the size is not compared); ENOMEM: too
        many."""
        if (address, bit) in self.enablers:
            raise OSError(errno.EADDRINUSE, "this bit is registered already")
        if len(self.enablers) >= MAX_ENABLERS:
            raise OSError(errno.ENOMEM, f"more than {MAX_ENABLERS} enablers in one address space")
        self._all.discover()
        self.enablers[address, bit] = enabler

    def remove(self, address: int, bit: int) -> Enabler:
        """Unregister the bit, and return its enabler. OSError: ENOENT: it has none. The bit is unchanged;
        clear it afterwards."""
        if (address, bit) not in self.enablers:
            raise OSError(errno.ENOENT, "this bit is not registered")
        self._all.discover()
        return self.enablers.pop((address, bit))

    def read(self, address: int, size: int) -> bytes:
        """The bytes at that address. OSError: EFAULT: they are not all readable, or the memory hangs."""
        return self._noting_hangs(self.memory.read, address, size)

    def read_string(self, address: int, limit: int) -> bytes:
        """The string at that address, without its NUL. OSError: EFAULT as `read`; EINVAL: it is longer than
        `limit` bytes."""
        return self._noting_hangs(self.memory.read_string, address, limit)

    def write(self, address: int, data: bytes) -> None:
        """Write these bytes to that address. OSError: EFAULT: not all is writable, or the memory hangs."""
        self._noting_hangs(self.memory.write, address, data)

    def set_bit(self, address: int, size: int, bit: int, on: bool) -> bool:
        """False: it cannot be written, now or ever."""
        try:
            self._noting_hangs(self.memory.set_bit, self.pid, address, size, bit, on)
        except OSError:
            return False
        return True

    def is_alive(self) -> bool:
        """Whether any process has it. One whose memory hangs counts as alive."""
        return not ended([self.memory])

    def _noting_hangs(self, access: Callable[..., T], *arguments: Any) -> T:
        hung = self.memory.hangs
        try:
            return access(*arguments)
        except OSError as error:
            if not hung and self.memory.hangs:
                self._all.note_hang(self.uid)
            if error.errno == errno.ESRCH:
                raise OSError(errno.EFAULT, "the address space is gone") from None
            raise


class AddressSpaces:
    """All address spaces of a mount, used by one thread at a time.

    on_born: called with (child, parent) for a new descendant with copies of enablers: `child.enablers`.
    on_gone: called for one that ended, or execed. Both may be called by any method here. on_pause: called
    from time to time by a look at many processes; it may set bits, but call nothing else here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_born: Callable[[AddressSpace, AddressSpace], None] = lambda *_: None
        self.on_gone: Callable[[AddressSpace], None] = lambda *_: None
        self.on_pause: Callable[[], None] = lambda *_: None
        self._clock = clock
        self._by_process: dict[tuple[int, int], AddressSpace] = {}
        """By pid and start time; that of a child of vfork is listed twice."""
        self._all: dict[Memory, AddressSpace] = {}
        self.families: dict[bytes, Family] = {}
        self._start_stacks: collections.Counter[int] = collections.Counter()
        """Number of families with this start of the stack."""
        self._of_user: collections.Counter[int] = collections.Counter()
        self._hangs: dict[int, list[float]] = {}
        """Times of hangs by user id."""
        self.last_pid = 0
        self._looked = 0.0
        self._forks = 0
        """Count of forks at the last look, or a while before it."""
        self._again: dict[int, tuple[float, int]] = {}
        """Pids without a process: time of the next look, and number of looks."""
        self._said_full = False
        # A process with events has four descriptors, an open user_events_data one.
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def __iter__(self) -> Iterator[AddressSpace]:
        return iter(list(self._all.values()))

    def of_caller(self, tid: int) -> AddressSpace:
        """The address space of a thread that waits for our answer, so it can neither end nor exec meanwhile.

        OSError, with a text for the log: EPERM, EACCES, ESRCH: not permitted or not possible; EMFILE: too
        many; EFAULT: it hangs.
        """
        if tid <= 0:
            raise OSError(errno.EPERM, why_not(tid))
        self.discover()
        status = status_of(tid)
        pid, uid, gid = status["Tgid"][0], status["Uid"][1], status["Gid"][1]
        process, thread = stat_of(pid), stat_of(tid)
        if process is None or thread is None:
            raise OSError(errno.ESRCH, f"there is no process {pid}")
        # Use the thread: the first one of the process may have ended.
        process = attrs.evolve(process, start_stack=thread.start_stack)
        try:
            memory = self._open(tid, uid)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise OSError(error.errno, why_not(tid) or error.strerror) from None
            raise
        key = (pid, process.start_time)
        known = self._by_process.get(key)
        if known is not None:
            if known.memory.fingerprint == memory.fingerprint:
                memory.close()
                return known
            # It has execed; another process may still have the old address space.
            self._leave(key)
        try:
            self._check_room(uid)
        except OSError:
            memory.close()
            raise
        return self._take_in(process, uid, gid, memory)

    def refresh(self) -> None:
        """Add the forked address spaces, and drop the ended ones."""
        self.discover()
        for key, space in list(self._by_process.items()):
            if len(space.processes) > 1 and not _is_there(key):
                self._leave(key)
        if not self._all:
            return
        gone = ended(list(self._all))
        if gone:
            # Processes that they forked since the look above are orphans now.
            self.discover()
        for memory in gone:
            self._forget(self._all[memory])

    def discover(self) -> None:
        """Find those forked since the last look, if any process could have."""
        now = self._clock()
        given_out = self._given_out(now)
        if not self.families:
            self._again.clear()
            return
        pids = {pid for pid, (due, _) in self._again.items() if due <= now} | given_out
        found = []
        for pid in pids:
            self.on_pause()
            process = stat_of(pid)
            if process is None:
                _, times = self._again.pop(pid, (now, 0))
                if times < len(_AGAIN_S):
                    self._again[pid] = (now + _AGAIN_S[times], times + 1)
                continue
            self._again.pop(pid, None)
            if process.start_stack in self._start_stacks:
                found.append(process)
        found.sort(key=lambda process: (process.start_time, process.pid))
        unmet = {process.pid: process for process in found}
        for process in found:
            self.on_pause()
            if process.pid in unmet:
                self._meet(process, unmet)

    def _given_out(self, now: float) -> set[int]:
        """Pids that may have been assigned since the last call. After the highest pid they begin again."""
        before, self.last_pid = self.last_pid, last_pid()
        began_anew = self.last_pid < before
        if now - self._looked > _COUNT_S:
            forks = fork_count()
            began_anew |= forks - self._forks >= pid_max() // 2
            self._forks = forks
        self._looked = now
        if not self.families:
            return set()
        if began_anew or self.last_pid - before > _MAX_SPAN:
            return {int(name) for name in os.listdir("/proc") if name.isdigit()}
        return set(range(before + 1, self.last_pid + 1))

    def note_hang(self, uid: int) -> None:
        """Note an abandoned access to this user's memory."""
        self._hangs.setdefault(uid, []).append(self._clock())
        logger.warning(
            "the memory of a process of user id %d does not answer; its enable words stay as they are", uid
        )

    def close(self) -> None:
        """Close without callbacks. May be called twice."""
        for memory in self._all:
            memory.close()
        for table in (self._all, self._by_process, self.families, self._start_stacks, self._of_user):
            table.clear()

    def _open(self, tid: int, uid: int) -> Memory:
        now = self._clock()
        recent = [then for then in self._hangs.pop(uid, []) if then > now - HANGS_S]
        if recent:
            self._hangs[uid] = recent
        if len(recent) >= MAX_HANGS:
            raise OSError(errno.EFAULT, f"the memory of processes of user id {uid} does not answer")
        try:
            return Memory(tid)
        except OSError as error:
            if error.errno == errno.EFAULT:
                self.note_hang(uid)
            raise

    def _check_room(self, uid: int) -> None:
        if len(self._all) >= MAX_ADDRESS_SPACES:
            raise OSError(errno.EMFILE, f"more than {MAX_ADDRESS_SPACES} address spaces with enablers")
        if self._of_user[uid] >= MAX_OF_USER:
            raise OSError(
                errno.EMFILE, f"more than {MAX_OF_USER} address spaces with enablers of user id {uid}"
            )

    def _meet(self, process: Stat, unmet: dict[int, Stat]) -> None:
        """Add a new process that may be related. Its parent, if that is new, too, is added first."""
        # Not recursive: a chain of such parents may be long.
        chain = [process]
        while chain[-1].ppid in unmet and chain[-1].ppid != chain[-1].pid:
            chain.append(unmet.pop(chain[-1].ppid))
        for one in reversed(chain):
            unmet.pop(one.pid, None)
            self._meet_one(one)

    def _meet_one(self, process: Stat) -> None:
        if (process.pid, process.start_time) in self._by_process:
            return
        try:
            status = status_of(process.pid)
            if status["Tgid"][0] != process.pid:
                return  # a thread
            uid, gid = status["Uid"][1], status["Gid"][1]
            self._check_room(uid)
            memory = self._open(process.pid, uid)
        except OSError as error:
            if error.errno == errno.EMFILE and not self._said_full:
                self._said_full = True
                logger.warning("enable words of some forked children are not written: %s", error)
            return
        if memory.fingerprint in self.families:
            self._take_in(process, uid, gid, memory)
        else:
            memory.close()

    def _take_in(self, process: Stat, uid: int, gid: int, memory: Memory) -> AddressSpace:
        """Add the address space of this process, with the enablers that it inherits."""
        key = (process.pid, process.start_time)
        family = self.families.get(memory.fingerprint)
        if family is None:
            family = Family(memory.fingerprint, process.start_stack)
            family.has_outsiders = _has_relatives(process, memory.fingerprint)
            self.families[memory.fingerprint] = family
            self._start_stacks[process.start_stack] += 1
        parent = self._parent(process, family)
        for member in {parent} if parent is not None else family.members:
            if same_memory(process.pid, member.pid):
                memory.close()
                member.processes.add(key)
                self._by_process[key] = member
                return member
        space = AddressSpace(self, memory, family, process.pid, process.start_time, uid, gid)
        for place, enabler in self._inheritance(parent, family).items():
            space.enablers[place] = attrs.evolve(enabler)
        space.processes.add(key)
        self._by_process[key] = space
        self._all[memory] = space
        self._of_user[uid] += 1
        parent = parent or min(family.members, key=lambda one: (one.start_time, one.pid), default=None)
        family.members.add(space)
        if parent is not None and space.enablers:
            self.on_born(space, parent)
        return space

    def _parent(self, process: Stat, family: Family) -> AddressSpace | None:
        """The address space of its parent process if that is a member; otherwise the family has outsiders."""
        parent = stat_of(process.ppid)
        if parent is None:
            return None
        space = self._by_process.get((parent.pid, parent.start_time))
        if space in family.members:
            return space
        if family.members and parent.start_stack == family.start_stack:
            family.has_outsiders = True
        return None

    def _inheritance(self, parent: AddressSpace | None, family: Family) -> dict[tuple[int, int], Enabler]:
        if parent is not None:
            return parent.enablers
        if family.has_outsiders or not family.members:
            return {}
        first, *others = family.members
        return {
            place: enabler
            for place, enabler in first.enablers.items()
            if all(place in other.enablers for other in others)
        }

    def _leave(self, key: tuple[int, int]) -> None:
        """This process has left its address space, possibly as the last one."""
        space = self._by_process.pop(key)
        space.processes.discard(key)
        if not space.processes and not space.is_alive():
            self._forget(space)

    def _forget(self, space: AddressSpace) -> None:
        for key in space.processes:
            del self._by_process[key]
        del self._all[space.memory]
        self._of_user[space.uid] -= 1
        if not self._of_user[space.uid]:
            del self._of_user[space.uid]
        family = space.family
        family.members.discard(space)
        if not family.members:
            del self.families[family.fingerprint]
            self._start_stacks[family.start_stack] -= 1
            if not self._start_stacks[family.start_stack]:
                del self._start_stacks[family.start_stack]
        space.memory.close()
        self.on_gone(space)


def _is_there(key: tuple[int, int]) -> bool:
    process = stat_of(key[0])
    return process is not None and process.start_time == key[1]


def _has_relatives(process: Stat, fingerprint: bytes) -> bool:
    """Whether another present process descends from the same exec."""
    for pid in with_start_stack(process.start_stack):
        if pid == process.pid:
            continue
        try:
            memory = Memory(pid)
        except OSError:
            continue
        related = memory.fingerprint == fingerprint and not same_memory(pid, process.pid)
        memory.close()
        if related:
            return True
    return False


def last_pid() -> int:
    """The last pid given out in our pid namespace."""
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return int(file.read(256).split()[4])


def fork_count() -> int:
    """Number of processes and threads made since boot, in all pid namespaces."""
    with open("/proc/stat", "rb") as file:
        return int(file.read().partition(b"\nprocesses ")[2].split(maxsplit=1)[0])


def pid_max() -> int:
    with open("/proc/sys/kernel/pid_max", "rb", buffering=0) as file:
        return int(file.read(32))
