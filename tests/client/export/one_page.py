"""Records of one page of cpu 3: for writers of one format each."""

import struct
from collections.abc import Sequence

from tests.protocol.pages import page_writer
from utracefs.recordings._records import EventDecoder, Records
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs_protocol.events.declaration import Field, FieldKind

TEXT = Field(b"char[]", b"t", 8, 0, True, FieldKind.CHAR_ARRAY)
"""All that there is."""

SIZE = 1 << 18


def records_of(
    entries: Sequence[bytes],
    fields: Sequence[Field],
    *,
    broken: bool = False,
    tids: Sequence[int] = (7,),
    comms: dict[int, str] | None = None,
    tgids: dict[int, int] | None = None,
    lost: int = 0,
    event: str = "ev",
    step_ns: int = 1,
) -> Records:
    """Payloads after the common fields, one each step_ns from 1 on, by the threads `tids` in turns; `lost` in
    front of them."""
    writer = page_writer.PageWriter(SIZE)
    for n, data in enumerate(entries):
        assert writer.add(1 + n * step_ns, struct.pack("<HBBi", 1, 0, 0, tids[n % len(tids)]) + data)
    page = page_writer.broken(writer.page(lost)) if broken else writer.page(lost)
    source = MergedPages(page, [(0, 3, 0, SIZE, SIZE)], tgids=tgids)
    source.comms = {7: "c"} if comms is None else comms
    return Records(source, lambda _: EventDecoder("s", event, fields), instances=["box"])
