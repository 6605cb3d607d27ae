"""`set_event_pid` and `set_event_notrace_pid`: threads whose records an instance keeps or drops.

With the option event-fork, children of listed threads are added, and ended ones removed. The kernel hooks
each fork and each exit (trace_filter_add_remove_task() in kernel/trace/trace_pid.c); a process cannot. So a
thread is checked when its first record arrives: it is added to a list that has its process, or one of its
ancestors, as far as those live. So a thread older than the option is added, too, and a grandchild is not if
its parent ended before any daemon saw it. Ended threads are removed when the list is read.
"""

from collections.abc import Iterable

import attrs

from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.settings import Settings
from utracefsd.machine.comms import CommTable


@attrs.define(eq=False)
class PidLists:
    """Both lists of one instance; stored in its settings."""

    _settings: Settings
    _sink: FtraceSink
    _comms: CommTable
    _inherit: bool = False

    def text(self, *, notrace: bool) -> bytes:
        """`set_event_pid`, or with notrace `set_event_notrace_pid`."""
        if self._inherit:
            self._remove_dead()
        return b"".join(b"%d\n" % pid for pid in sorted(self._list(notrace)))

    def add(self, pids: Iterable[int], *, notrace: bool) -> None:
        """From now on record only these threads, or all but these; an empty list: no filtering."""
        self._set(self._list(notrace).union(pids), notrace=notrace)

    def clear(self, *, notrace: bool) -> None:
        """Truncating the file calls this."""
        self._set(frozenset(), notrace=notrace)

    def apply(self, *, inherit: bool) -> None:
        """Copy the lists to the objects that use them. inherit: the option event-fork is on."""
        self._inherit = inherit
        pids, notrace_pids = self._settings.pids or None, self._settings.notrace_pids or None
        inherits = self._find_parents if inherit and (pids or notrace_pids) else None
        self._sink.set_threads(pids, notrace_pids, inherits)

    def _list(self, notrace: bool) -> frozenset[int]:
        return self._settings.notrace_pids if notrace else self._settings.pids

    def _set(self, pids: frozenset[int], *, notrace: bool) -> None:
        if notrace:
            self._settings.notrace_pids = pids
        else:
            self._settings.pids = pids
        self.apply(inherit=self._inherit)

    def _find_parents(self, pid: int) -> None:
        missing = [notrace for notrace in (False, True) if pid not in self._list(notrace)]
        if missing:
            parents = set(self._comms.ancestors(pid))
            for notrace in missing:
                if not parents.isdisjoint(self._list(notrace)):
                    self.add((pid,), notrace=notrace)

    def _remove_dead(self) -> None:
        for notrace in (False, True):
            pids = self._list(notrace)
            # 0 is the idle task, which never ends.
            living = frozenset(pid for pid in pids if pid == 0 or self._comms.lives(pid))
            # An empty list would mean all threads, so the last entry stays, although its thread has ended.
            if living and living != pids:
                self._set(living, notrace=notrace)
