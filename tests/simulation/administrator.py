"""Steps of an administrator: he changes and reads files of the tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partialmethod

from tests.simulation.base import Base
from tests.simulation.doubts import changed
from tests.simulation.parts import PLAIN, Instance, place_of

INSTANCES = ["", "a", "b"]
TRIGGERS = {
    "hist": "hist:keys=k:size=128",
    "traceoff": "traceoff if k == 3",
    "snapper": "snapshot if k == 99",
}
CONSUMED = ("trace_pipe", "trace_pipe_raw", "snapshot_raw")


class Administrator(Base):
    """Writes files and learns whether that is accepted; reads, which changes nothing."""

    def _change(
        self,
        where: int | str,
        file: str,
        text: str,
        change: Callable[[Instance], object],
        truncate: bool = True,
    ) -> bool:
        """Write to a file of an instance."""
        name, at = self._place(where)

        return self._write_file(at + file, text, lambda m: change(m.instances[name]), truncate)

    def _turn(self, where: int | str, name: str, kind: str, *, on: bool) -> bool:
        """Enable an event in an instance, or add a trigger; or the opposite."""
        file, text = ("trigger", "!" * (not on) + TRIGGERS[kind]) if kind in TRIGGERS else (kind, "01"[on])
        file = place_of(name) + file
        return self._change(where, file, text, lambda i: i.turn(kind, name, on=on), kind == "enable")

    def _enable(self, where: int, event: int, on: int, *_: int) -> None:
        if name := self._event_in(event):
            self._turn(where, name, "enable", on=on % 4 > 0)

    def _off(self, where: int, *_: int) -> None:
        """All events of an instance, so that those without a program go."""
        self._change(where, "events/enable", "0", lambda i: i.enable.clear())

    def _filter(self, where: int, event: int, limit: int, *_: int) -> None:
        if name := self._event_in(event):
            k = limit % 5 if limit % 3 else None
            text = "0" if k is None else f"k > {k}"
            self._change(where, place_of(name) + "filter", text, lambda i: i.set_filter(name, k))

    def _hist(self, where: int, event: int, on: int, *_: int) -> None:
        self._trigger("hist", where, event, may_remove=on % 3 == 0)

    def _trigger(self, kind: str, where: int, event: int, *_: int, may_remove: bool = True) -> None:
        """Add it, or remove it where it is."""
        inst, name = self._place(where)[0], self._event_in(event, of_programs=kind == "traceoff")
        if name is None:
            return
        is_there = name in getattr(self.models[-1].instances[inst], kind)
        if is_there and not may_remove:
            return
        done = self._turn(inst, name, kind, on=not is_there)
        self._refused_hists += kind == "hist" and not done
        if kind == "snapper" and not done:  # the spare was made, and then there was no room for the rest
            self.models += changed(self.models, lambda m: m.instances[inst].make_spare())

    _traceoff = partialmethod(_trigger, "traceoff")
    _snapper = partialmethod(_trigger, "snapper")  # never fires, but needs a spare buffer

    def _switch(self, where: int, on: int, *_: int) -> None:
        turn = on % 3 > 0
        self._change(where, "tracing_on", "01"[turn], lambda i: setattr(i, "on", turn))

    def _set(self, where: int, which: int, value: int, *_: int) -> None:
        file = list(PLAIN)[which % len(PLAIN)]
        text, shown = list(PLAIN[file].items())[value % len(PLAIN[file])]
        self._change(where, file, text, lambda i: i.plain.__setitem__(file, shown))

    def _tgid(self, on: int, *_: int) -> None:
        turn = on % 4 > 0
        self._write_file("options/record-tgid", "01"[turn], lambda m: setattr(m, "record_tgid", turn))

    def _mkdir(self, which: int, *_: int) -> None:
        name = INSTANCES[1 + which % 2]
        if not any(name in m.instances for m in self.models) and self._tree(
            "mkdir", f"instances/{name}", after=lambda m: m.instances.__setitem__(name, Instance())
        ):
            self._set_size(name, 8)

    def _rmdir(self, which: int, *_: int) -> None:
        name = INSTANCES[1 + which % 2]
        if all(name in m.instances for m in self.models):
            self._tree("rmdir", f"instances/{name}", after=lambda m: m.instances.__delitem__(name))

    def _clear(self, where: int, *_: int) -> None:
        self._change(where, "trace", "", Instance.clear)

    def _snapshot(self, where: int | str, what: int, *_: int) -> None:
        code = (1, 1, 0, 2)[what % 4]
        has_pages = self.models[-1].instances[self._place(where)[0]].has_pages
        self.reached["a swap under a reader of pages"] += code == 1 and has_pages
        self._change(where, "snapshot", str(code), lambda i: i.snapshot(code))

    def _grep(self, where: int, *_: int) -> None:
        """Each file of an instance is opened for reading, read and closed: that changes nothing. (But for the
        files that are read to take records out.)"""
        at = self._place(where)[1]
        self._tree("read_file", at + "trace")
        files: list[str] = []
        folders = [at]
        while folders:
            listed = self._ask_all([("list_dir", folder.rstrip("/")) for folder in folders])
            entries = [
                (folder + entry.decode(), kind)
                for folder, (_, found) in zip(folders, listed, strict=True)
                for entry, kind in found
            ]
            files += [path for path, kind in entries if kind == b"f" and not path.endswith(CONSUMED)]
            folders = [path + "/" for path, kind in entries if kind == b"d" and path != "instances"]
        opened = self._ask_all([("open", path, os.O_RDONLY | os.O_NONBLOCK) for path in files])
        handles = [handle for error, handle in opened if error is None]
        self._opened_counts += "event_counts" in files
        self._ask_all([("read", handle, 4096) for handle in handles])
        self._ask_all([("close", handle) for handle in handles])
        self.reached["files read as by grep"] += len(handles)

    def _pipe(self, where: int, size: int, *_: int) -> None:
        """Consume some records: those are gone from the buffer."""
        inst, at = self._place(where)
        handle = self._tree("open", at + "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        if handle is None:
            return
        for m in self.models:
            m.instances[inst].exact = False
            m.instances[inst].disturbed = True
        self._tree("read", handle, 200 + size % 400)
        self._tree("close", handle)

    def _size(self, where: int | str, size: int, *_: int) -> None:
        """The buffer gets another size, or its sub-buffers do, and then it begins empty."""
        if size % 2 == 0:
            kb = 4 + 4 * (size % 3 > 0)
            self._change(where, "buffer_subbuf_size_kb", str(kb), lambda i: i.resize(kb))
            return
        inst = self._place(where)[0]
        for m in self.models:
            m.instances[inst].exact = m.instances[inst].spare_exact = False
            m.instances[inst].disturbed = True
        self._set_size(inst, 8 + 4 * (size % 3))

    def _set_size(self, instance: str, kb: int) -> None:
        for m in self.models:  # a kill may come between two cpus
            m.instances[instance].size = None
        self._change(instance, "buffer_size_kb", str(kb), lambda i: i.set_size(kb))
