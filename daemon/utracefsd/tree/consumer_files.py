"""`consumers/`: a directory for each installed plug-in, with its events and its report.

    consumers/NAME/set_event    the events it is attached to, one a line, newest first; written like the
                                set_event of an instance, and every part of a word may be a glob; truncating
                                detaches all
    consumers/NAME/report       the plug-in's own text

The kernel has no such directory. `consumers.plugins` attaches the events; this module has the files.
"""

import errno
from collections.abc import Iterator

import attrs

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.event.event_words import first_word, glob_matches
from utracefsd.consumers.plugins.plugins import Plugin, Plugins
from utracefsd.events.event_table import EventTable
from utracefsd.tree.nodes import Directory, Node, Row, Rows, RowTable, row_table


@attrs.frozen
class _Consumer:
    table: EventTable
    plugins: Plugins
    name: str

    @property
    def plugin(self) -> Plugin:
        return self.plugins.get(self.name)

    def set_event_text(self) -> bytes:
        attached = set(self.plugin.events())
        return b"".join(
            b"%s\n" % event.full_name for event in reversed(self.table.events()) if event in attached
        )

    def set_event(self, data: bytes) -> int:
        """One word of it, as in an instance; EINVAL when it matches no event."""
        word, used = first_word(data)
        if not word:
            return used
        glob = word.removeprefix(b"!")
        events = [event for event in self.table.events() if glob_matches(glob, event)]
        if not events:
            shown = glob.decode("utf-8", "backslashreplace")
            raise TraceError(errno.EINVAL, f"no event matches {shown!r}; available_events lists them")
        change = self.plugin.attach if glob is word else self.plugin.detach
        for event in events:
            change(event)
        return used

    def detach_all(self) -> None:
        for event in self.plugin.events():
            self.plugin.detach(event)

    def report(self) -> bytes:
        text = self.plugin.report()
        return (text if not text or text.endswith("\n") else text + "\n").encode("utf-8", "surrogateescape")


_CONSUMER_FILES: RowTable[_Consumer] = row_table(
    Row(b"report", _Consumer.report),
    Row(
        b"set_event",
        _Consumer.set_event_text,
        lambda consumer, data, peer: consumer.set_event(data),
        lambda consumer, peer: consumer.detach_all(),
    ),
)


class ConsumersDirectory(Directory):
    """`consumers/`."""

    mode = 0o750

    def __init__(self, table: EventTable, plugins: Plugins) -> None:
        self._table = table
        self._plugins = plugins

    def lookup(self, name: bytes) -> Node | None:
        text = name.decode("utf-8", "replace")
        if text not in self._plugins.names():
            return None
        return Rows(_Consumer(self._table, self._plugins, text), _CONSUMER_FILES, mode=0o750)

    def names(self) -> Iterator[tuple[bytes, str]]:
        for name in self._plugins.names():
            yield name.encode(), "d"
