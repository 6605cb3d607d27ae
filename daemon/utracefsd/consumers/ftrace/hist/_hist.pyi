from collections.abc import Callable, Iterable
from typing import ClassVar, Self

from utracefsd.consumers.ftrace.hist.program import Program, Step
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.machine._writer_names import WriterNames

class Op(int):
    CONST: ClassVar[Self]
    FIELD: ClassVar[Self]
    TYPE: ClassVar[Self]
    PID: ClassVar[Self]
    CPU: ClassVar[Self]
    TIMESTAMP: ClassVar[Self]
    REF: ClassVar[Self]
    LOG2: ClassVar[Self]
    BUCKET: ClassVar[Self]
    ADD: ClassVar[Self]
    SUB: ClassVar[Self]
    MULT: ClassVar[Self]
    DIV: ClassVar[Self]
    DIV_CONST: ClassVar[Self]
    NEGATE: ClassVar[Self]

class KeyKind(int):
    NUMBER: ClassVar[Self]
    FIXED_STRING: ClassVar[Self]
    DATA_LOC: ClassVar[Self]
    REL_LOC: ClassVar[Self]
    NOTHING: ClassVar[Self]
    COMM: ClassVar[Self]

class When(int):
    ALWAYS: ClassVar[Self]
    SAVED: ClassVar[Self]
    TRACKED: ClassVar[Self]

def warn_of_memory(folder: object, error: OSError) -> None: ...

class HistTable:
    check_room: Callable[[HistTable], None] | None
    @property
    def path(self) -> str | None: ...
    @property
    def nr_bytes(self) -> int: ...
    @property
    def full_bytes(self) -> int: ...
    @property
    def has_memory(self) -> bool: ...
    @property
    def bits(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def drops(self) -> int: ...
    @staticmethod
    def bytes_of(bits: int, key_size: int, nr_words: int) -> int: ...
    @staticmethod
    def create(bits: int, key_size: int, nr_words: int, path: str | None = None) -> HistTable: ...
    @staticmethod
    def adopt(bits: int, key_size: int, nr_words: int, path: str) -> HistTable: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    @property
    def taken(self) -> tuple[bytes, int] | None: ...
    def has_taken(self, who: int, serial: int) -> bool: ...
    def remove(self) -> None: ...

class Link:
    @property
    def hist(self) -> Hist: ...
    def __init__(self, hist: Hist, slot: int, once: bool) -> None: ...

class Emission:
    @property
    def tracepoint(self) -> Tracepoint: ...
    def __init__(
        self,
        tracepoint: Tracepoint,
        size: int,
        params: Iterable[tuple[bool, int, int, int, bool, bool]],
    ) -> None: ...

class Hist:
    clock_is_ns: bool
    @property
    def table(self) -> HistTable: ...
    def __init__(self, program: Program, table: HistTable, names: WriterNames | None = None) -> None: ...
    def link(
        self, links: Iterable[Link], actions: Iterable[tuple[int, bool, int, bool, bool, Emission | None]]
    ) -> None: ...
    def count(
        self,
        payload: bytes,
        *,
        ts_ns: int = 0,
        cpu: int = 0,
        pid: int = 0,
        id: int = 0,
        who: int = 0,
        serial: int = 0,
        times: int = 1,
    ) -> bool: ...

def check_depth(steps: Iterable[Step], wanted: bool) -> None: ...
