"""`set_event_pid` and `set_event_notrace_pid`: whose events an instance records.

With the option event-fork children of the listed are listed, too, and the dead leave. The kernel hears of
each fork and each exit (trace_filter_add_remove_task() in kernel/trace/trace_pid.c); a process does not. So a
thread is judged when the first of its records arrives: it joins a list on which its process stands, or one
that started it, as far as those live. A thread that was there before the option was switched on joins, too,
and a grandchild does not whose parent ended before anybody had seen it. The dead leave when the list is read.
"""

from collections.abc import Iterable

from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.settings import Settings
from utracefsd.machine.comms import CommTable

__all__ = ["PidLists"]


class PidLists:
    """Both lists of one instance; kept in its settings."""

    def __init__(self, settings: Settings, sink: FtraceSink, comms: CommTable) -> None:
        self._settings = settings
        self._sink = sink
        self._comms = comms
        self._inherit = False

    def text(self, *, notrace: bool) -> bytes:
        """`set_event_pid`, or with notrace `set_event_notrace_pid`."""
        if self._inherit:
            self._remove_dead()
        return b"".join(b"%d\n" % pid for pid in sorted(self._list(notrace)))

    def add(self, pids: Iterable[int], *, notrace: bool) -> None:
        """Only (notrace: not) these threads' events are recorded from now on; an empty list means no
        filtering."""
        self._set(self._list(notrace).union(pids), notrace=notrace)

    def clear(self, *, notrace: bool) -> None:
        """What truncating the file does."""
        self._set(frozenset(), notrace=notrace)

    def apply(self, *, inherit: bool) -> None:
        """Copy the lists to where they take effect. inherit: the option event-fork is on."""
        self._inherit = inherit
        sink, settings = self._sink, self._settings
        sink.pids = settings.pids or None
        sink.notrace_pids = settings.notrace_pids or None
        sink.inherits = self._find_parents if inherit and (settings.pids or settings.notrace_pids) else None

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
            # An empty list would mean everybody: the last one stays, though it is nobody's.
            if living and living != pids:
                self._set(living, notrace=notrace)
