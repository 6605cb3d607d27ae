"""The records of `trace` and `trace_pipe` as text (tracefs.md section 2, user_events.md 10.5)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from utracefs_protocol.declaration import Field
from utracefsd.consumers.ftrace._ring_buffer import Cursor
from utracefsd.consumers.ftrace.text import TextOptions

LINE_LIMIT: Final[int]
"""Bytes of text (context and body) that one record may have; a longer one becomes `[LINE TOO BIG]`."""

class TextRenderer:
    """Renders the records of one open `trace` or `trace_pipe`.

    One object per open file: it remembers which cpus' records were seen and how many records were shown. An option
    or clock that changes while the file is open needs a new object.
    """

    def __init__(
        self,
        events: Mapping[int, tuple[bytes, Sequence[Field]]]
        | Callable[[int], tuple[bytes, Sequence[Field]] | None],
        comm: Callable[[int], bytes],
        tgid: Callable[[int], int | None],
        options: TextOptions,
        clock_is_ns: bool,
        *,
        time_start: int = 0,
    ) -> None:
        """events: id -> (tracepoint name, fields), None for an id of no event; asked at most once per id and call.

        comm: the name of a thread, b"<...>" if unknown; at most 15 bytes of it are shown. Asked for positive pids
        only, normally once per pid and call. tgid: None or 0 if unknown; asked with record-tgid only. All three may
        be asked in the middle of a `render` call; what they raise comes out of it, and the record at hand is lost.
        time_start: when the buffer was last cleared, in its own clock; latency-format counts from there.
        """

    def render(self, cursor: Cursor, max_bytes: int) -> bytes:
        """The next whole lines; stops after the record that reaches max_bytes, b"" when there are no more records.

        A consuming cursor's record is gone as soon as it is rendered. `CPU:n [LOST k EVENTS]` stands before the
        first record after a gap, `##### CPU n buffer started ####` before the first one of each further cpu, if
        the cursor does not consume and anything was overwritten before the first call. ValueError: max_bytes < 1.
        """

    def render_entry(self, cpu: int, ts: int, data: bytes) -> bytes:
        """One entry (common header first) alone, without those lines. Anything may be in it, it may be too short."""
