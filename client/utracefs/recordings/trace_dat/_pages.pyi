from collections.abc import Iterable

from utracefs_protocol.pages._stream_ring import StreamRing

def count_events(page: bytes | bytearray | memoryview) -> int: ...
def unknown_ids(
    pages: bytes | bytearray | memoryview, page_size: int, known: Iterable[int]
) -> dict[int, int]: ...
def gather_pages(
    ring: StreamRing, into: bytearray, page_size: int, nr_cpus: int
) -> list[tuple[int, int, int, int]]: ...
