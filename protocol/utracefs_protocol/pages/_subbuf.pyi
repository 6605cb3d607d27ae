from typing import Final, Self

COMMIT_MASK: Final[int]
MISSED_STORED: Final[int]
MISSED_EVENTS: Final[int]
MISSED_UNKNOWN: Final[int]
TYPE_LEN_DATA_MAX: Final[int]
TYPE_PADDING: Final[int]
TYPE_TIME_EXTEND: Final[int]
TYPE_TIME_STAMP: Final[int]
TIME_DELTA_BITS: Final[int]
TIME_STAMP_BITS: Final[int]

class iter_records:
    def __init__(self, page: bytes | bytearray | memoryview) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, int, int]: ...

def page_header(page: bytes | bytearray | memoryview) -> tuple[int, int]: ...
def commit_of(page: bytes | bytearray | memoryview) -> int: ...
def missed_events(page: bytes | bytearray | memoryview) -> int: ...
