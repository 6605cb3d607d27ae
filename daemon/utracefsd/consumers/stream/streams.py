"""Streams: records of many events, into one ring that a reader maps (docs/protocol.md, section 6.1).

    open ──> attached to the wanted events  <── registered, or enabled in an instance: attached, too
                │  record ──> StreamProbe ──> ring ──> (published after each step) ──> doorbell
                v
             close, or the end of the connection: detached

Each reader has a stream of its own, so a reader that stalls loses only its own records, counted for each
event. An event for which a stream's filter is invalid is left out.

With `pages` the ring gets the pages of an instance's ring buffer instead, each when it is full, and the
format of each event in front of its first page. If the reader falls behind, they stay in the buffer, which
then overwrites or drops records, with the counts and marks that every reader of it gets.

Only administrators can open streams. The limits protect against mistakes.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_header import header_name
from utracefs_protocol.events.event_names import is_glob, matches
from utracefs_protocol.filter import Filter, FilterError, parse_filter
from utracefs_protocol.filter.parse import FIELD_NOT_FOUND
from utracefs_protocol.messages.tracefs import Missed, StreamAttr, StreamMissed
from utracefs_protocol.text import shown
from utracefsd.consumers.ftrace.event.event_words import check_glob, glob_matches
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.instances import Instances
from utracefsd.consumers.stream._sink import StreamPages, StreamProbe, StreamSink
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.events.synthetic import format_of
from utracefsd.machine._writer_names import WriterNames

MAX_STREAMS = 64
"""Each stream is a probe on every event that it wants, which each record passes. EMFILE."""

MAX_BYTES = 1 << 30
"""Limit of all rings together: they are the daemon's memory. Beyond it ENOMEM."""


@attrs.define(eq=False)
class OpenStream:
    """An opened ring; `close` ends it."""

    attr: StreamAttr
    _sink: StreamSink
    _handle: int
    _closed: Callable[["OpenStream"], None]
    """Called once, at the end."""
    _open: bool = attrs.field(default=True, init=False)

    def descriptors(self) -> tuple[int, int]:
        """New descriptors of the ring's memfd and the doorbell, the caller's to close."""
        memory = os.dup(self._sink.memory_fd)
        try:
            return memory, os.dup(self._sink.bell_fd)
        except OSError:
            os.close(memory)
            raise

    def publish(self) -> None:
        """Publish new records to the reader, and ring its doorbell if due."""
        self._sink.publish()

    def ready(self) -> bool:
        """Whether the reader has work: the watermark is reached, or records were lost."""
        self.publish()
        return self._sink.is_filled()

    def close(self) -> None:
        """Detach, and close the ring; the reader's mapping stays. A second call is harmless."""
        if self._open:
            self._open = False
            self._detach()
            self._sink.close()
            self._closed(self)

    def missed(self) -> StreamMissed:
        raise TraceError(errno.EINVAL, "a stream of pages has the counts of its instance's files")

    def attach(self) -> None:
        raise NotImplementedError

    def _detach(self) -> None:
        raise NotImplementedError


@attrs.define(eq=False)
class PageStream(OpenStream):
    """The pages of an instance's ring buffer."""

    _instance: Instance
    _pages: StreamPages
    _described: dict[int, Event] = attrs.Factory(dict)
    """By id: events whose formats are in the ring."""

    def attach(self) -> None:
        """TraceError: EBUSY (another stream has the buffer's pages), EINVAL (they are too large)."""
        if self._instance.sink.page_reader is not None:
            raise TraceError(
                errno.EBUSY, "another stream has the pages of this instance; read trace_pipe_raw"
            )
        if self._instance.buffer.subbuf_size > self.attr.size // 4:
            raise TraceError(errno.EINVAL, "size must be that of four sub-buffers at least")
        self._instance.sink.page_reader = self._pages
        self._instance.events.followers.append(self._describe)
        for file in self._instance.events:
            self._describe(file.event)

    def _describe(self, event: Event) -> None:
        if self._described.get(event.id) is not event and self._instance.events.of(event).was_enabled:
            self._described[event.id] = event
            self._pages.describe(event.id, event.system + b"\0" + format_of(event))

    def publish(self) -> None:
        self._pages.go_on()
        self._instance.buffer.hand_to(self._pages)
        super().publish()

    def ready(self) -> bool:
        """Also hands over pages that are not full."""
        self._pages.go_on()
        self._instance.buffer.hand_to(self._pages, all_of_them=True)
        return super().ready()

    def _detach(self) -> None:
        self._pages.go_on()
        if self._instance.sink.page_reader is self._pages:
            self._instance.sink.page_reader = None
            self._instance.events.followers.remove(self._describe)


@attrs.define(eq=False)
class Stream(OpenStream):
    """The records of events."""

    _table: EventTable
    _instances: Sequence[Instance]
    _parse: Callable[[Event, bytes], Filter]
    """Makes a filter for an event; FilterError."""
    _probes: dict[Event, StreamProbe] = attrs.Factory(dict)
    _taken: Counter[tuple[bytes, int]] = attrs.Factory(Counter)
    """Records and losses of events that this stream was attached to earlier, by SYSTEM:NAME and epoch."""

    def attach(self) -> None:
        """Attach to all wanted events, now and later. EINVAL: the filter is invalid for an event that was
        named, or for all events that exist."""
        table = self._table
        wanted = [event for event in table.events() if self._wants(event)]
        refused = {event: error for event in wanted if (error := self._take(event)) is not None}
        named = [glob for glob in self.attr.events if not is_glob(glob)]
        for event, error in refused.items():
            if len(refused) == len(wanted) or any(glob_matches(glob, event) for glob in named):
                raise TraceError(
                    errno.EINVAL, f"filter: {error.text} (of event {shown(event.tracepoint_name)})"
                )
        table.on_created.append(self.look)
        table.idle.subscribers.append(self)
        for instance in self._instances:
            instance.events.followers.append(self.look)

    def look(self, event: Event) -> None:
        """The event is new, or was enabled, disabled or got another filter in an instance."""
        if self._wants(event):
            if self.attr.filtered and event in self._probes and not self._has_its_filter(event):
                self.let_go(event)
            self._take(event)
        elif event in self._probes:
            self.let_go(event)

    def events(self) -> list[Event]:
        """The events that it is attached to."""
        return list(self._probes)

    def missed(self) -> StreamMissed:
        """stream_missed."""
        taken = self._taken.copy()
        for event, probe in self._probes.items():
            taken[event.full_name, event.before.epoch] += probe.recorded + probe.lost
        counts = self._table.emitted
        missed = [
            Missed(name, total.count - taken[name, total.epoch], total.epoch)
            for name, total in counts.totals(self._table.events())
            if any(matches(word, *name.split(b":", 1)) for word in self.attr.events)
        ]
        return StreamMissed(counts.saved.origin.encode(), counts.saved.first_epoch, tuple(missed))

    def would_attach(self, event: Event) -> bool:
        """See idle_events.Subscriber."""
        return event in self._probes

    def let_go(self, event: Event) -> None:
        probe = self._probes.pop(event)
        self._table.detach(event, probe)
        self._taken[event.full_name, event.before.epoch] += probe.recorded + probe.lost

    def _detach(self) -> None:
        for listeners in (self._table.on_created, *(i.events.followers for i in self._instances)):
            if self.look in listeners:
                listeners.remove(self.look)
        if self in self._table.idle.subscribers:
            self._table.idle.subscribers.remove(self)
        for event in self.events():
            self.let_go(event)

    def _wants(self, event: Event) -> bool:
        if not any(glob_matches(glob, event) for glob in self.attr.events):
            return False
        return not self._instances or any(one.events.of(event).enabled for one in self._instances)

    def _is_filtered_by_the_reader(self, event: Event) -> bool:
        declaration = event.declaration
        return self.attr.eventheader and header_name(declaration.name, declaration.fields) is not None

    def _has_its_filter(self, event: Event) -> bool:
        file = self._instances[0].events.of(event)
        return self._probes[event].filter is file.filter and not file.filter_is_invalid

    def _take(self, event: Event) -> FilterError | None:
        """Attach to it; returns the error if the filter is invalid for it."""
        if event in self._probes:
            return None
        filter_ = None
        if self.attr.filtered:
            file = self._instances[0].events.of(event)
            if file.filter_is_invalid:
                return None
            filter_ = file.filter
        elif self.attr.filter is not None and not self._is_filtered_by_the_reader(event):
            try:
                filter_ = self._parse(event, self.attr.filter)
            except FilterError as error:
                return error
        probe = StreamProbe(
            self._sink,
            f"stream:{self._handle}",
            event.id,
            lambda: event.system + b"\0" + format_of(event),
            filter_,
        )
        self._table.attach(event, probe)
        self._probes[event] = probe
        return None


@attrs.define(eq=False)
class Streams:
    """The stream consumer: opens streams."""

    _table: EventTable
    _nr_cpus: int
    _instances: Instances
    _names: WriterNames | None = None
    """Names of the threads that write; None: names are not written."""
    _streams: dict[OpenStream, list[Callable[[], None]]] = attrs.Factory(dict)
    """With functions that release the stream's instances."""
    _lossless: dict[OpenStream, tuple[int, int]] = attrs.Factory(dict)
    """Users of the lossless ones, and `lossless_us`."""
    on_lossless: Callable[[], None] = lambda: None
    """Called after a change of `wait_us`."""

    def __len__(self) -> int:
        return len(self._streams)

    def wait_us(self, uid: int) -> int:
        """How long this user's programs may wait for room in their data rings, for a lossless stream."""
        if not self._lossless:
            return 0
        ours = (0, os.geteuid(), uid)
        return max((us for its_uid, us in self._lossless.values() if its_uid in ours), default=0)

    def open(self, attr: StreamAttr, *, handle: int, uid: int = -1) -> OpenStream:
        """stream_open; `handle` names the consumer in `stats` (`stream:HANDLE`). uid: of the user who opens
        it. EINVAL (a word that matches no event, a filter that is invalid for all events), ENOENT (no such
        instance), EMFILE (too many streams), ENOMEM, EBUSY (another stream of the same pages)."""
        for glob in attr.events:
            check_glob(glob)
        if attr.filter is not None:
            self._check(attr.filter)
        instances = [self._instance(name) for name in dict.fromkeys(attr.instances)]
        if len(self._streams) >= MAX_STREAMS:
            raise TraceError(errno.EMFILE, f"there are {MAX_STREAMS} streams already; close some")
        held = sum(stream.attr.size for stream in self._streams)
        if held + attr.size > MAX_BYTES:
            raise TraceError(
                errno.ENOMEM, f"the rings of streams take {held >> 20} of {MAX_BYTES >> 20} MiB; close some"
            )
        try:
            sink = StreamSink(attr.size, watermark=attr.watermark, names=self._names)
        except OSError as error:
            raise TraceError(error.errno or errno.ENOMEM, f"no stream ring: {error.strerror}") from error
        stream: OpenStream
        if attr.pages:
            pages = StreamPages(sink, attr.lossless_us * 1000)
            stream = PageStream(attr, sink, handle, self._closed, instances[0], pages)
        else:
            stream = Stream(attr, sink, handle, self._closed, self._table, instances, self._parse)
        self._streams[stream] = [self._instances.hold(one) for one in instances]
        try:
            stream.attach()
        except BaseException:
            stream.close()
            raise
        if attr.lossless_us:
            self._lossless[stream] = (uid, attr.lossless_us)
            self.on_lossless()
        return stream

    def publish(self) -> None:
        """Publish all; called after each step of the daemon, and before anything reads the tree."""
        for stream in self._streams:
            stream.publish()

    def text(self) -> str:
        """The part of `daemon_stats`."""
        held = sum(stream.attr.size for stream in self._streams)
        return f"streams: {len(self._streams)} of {MAX_STREAMS}, {held} of {MAX_BYTES} bytes\n"

    def _closed(self, stream: OpenStream) -> None:
        for let_go in self._streams.pop(stream):
            let_go()
        if self._lossless.pop(stream, None):
            self.on_lossless()

    def _instance(self, name: bytes) -> Instance:
        found = self._instances.get(name) if name else self._instances.top
        if found is None:
            raise TraceError(errno.ENOENT, f"there is no instance {shown(name)}")
        return found

    def _check(self, text: bytes) -> None:
        """Refuse a text that is no valid filter for any event, also while no wanted event exists."""
        try:
            parse_filter(text, (), nr_cpus=self._nr_cpus, names=self._names)
        except FilterError as error:
            if error.message != FIELD_NOT_FOUND:
                raise TraceError(errno.EINVAL, f"filter: {error.text}") from error

    def _parse(self, event: Event, text: bytes) -> Filter:
        return parse_filter(text, event.declaration.fields, nr_cpus=self._nr_cpus, names=self._names)
