from collections.abc import Callable, Iterable
from typing import ClassVar, Self

from utracefs.export._record_writer import RecordWriter
from utracefs.recordings._records import EventDecoder, Records

class Role(int):
    ATTRIBUTE: ClassVar[Self]
    SEVERITY: ClassVar[Self]
    LOGGING_LEVEL: ClassVar[Self]
    HEADER_LEVEL: ClassVar[Self]
    SEVERITY_TEXT: ClassVar[Self]
    BODY: ClassVar[Self]
    TRACE_ID: ClassVar[Self]
    SPAN_ID_TEXT: ClassVar[Self]
    SPAN_ID_NUMBER: ClassVar[Self]
    PARENT_ID: ClassVar[Self]
    DURATION: ClassVar[Self]
    ERROR_TEXT: ClassVar[Self]
    SPAN_NAME_TEXT: ClassVar[Self]

class Plan:
    name: str
    is_span: bool
    scope: int
    def __init__(
        self,
        event: EventDecoder,
        *,
        name: str,
        is_span: bool,
        roles: Iterable[int],
        scope: int,
        envelope: int,
    ) -> None: ...

def field_kinds(event: EventDecoder) -> list[str]: ...

class OtlpRecords(RecordWriter):
    def __init__(self, plan_of: Callable[[EventDecoder], Plan], roots: dict[int, int]) -> None: ...
    def begin(self, records: Records, *, offset_ns: int, observed_ns: int, trace: bytes) -> None: ...
    def next_request(
        self, max_records: int, max_bytes: int
    ) -> tuple[list[tuple[bool, int, bytes, int]], dict[Plan, int]]: ...
