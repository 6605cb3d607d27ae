"""Records of one page of cpu 3: for writers of one format each."""

import struct
from collections.abc import Sequence

from tests.protocol.pages.page_writer import PageWriter
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
    writer = PageWriter(SIZE)
    for n, data in enumerate(entries):
        assert writer.add(1 + n * step_ns, struct.pack("<HBBi", 1, 0, 0, tids[n % len(tids)]) + data)
    page = bytearray(writer.page(lost))
    if broken:
        word = struct.unpack_from("<I", page, 8)[0]
        struct.pack_into("<I", page, 8, word + 4)
        struct.pack_into("<I", page, 16 + word, 28)
    source = MergedPages(bytes(page), [(0, 3, 0, SIZE, SIZE)], tgids=tgids)
    source.comms = {7: "c"} if comms is None else comms
    return Records(source, lambda _: EventDecoder("s", event, fields), instances=["box"])
