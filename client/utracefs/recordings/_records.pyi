from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

from utracefs.recordings.trace_dat._merge import Merge
from utracefs_protocol.events.declaration import Field
from utracefs_protocol.filter import Filter, Names

class RecordSource:
    comms: dict[int, str]

class MergedPages(RecordSource):
    def __init__(self, merge: Merge, offset_ns: int = 0, tgids: Mapping[int, int] | None = None) -> None: ...

class ThreadNames(Names): ...

class EventDecoder:
    filter: Filter | None
    system: str
    name: str
    names: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]
    opcode: int
    count: int
    def __init__(
        self,
        system: str,
        name: str,
        fields: Iterable[Field],
        *,
        paths: tuple[tuple[str, ...], ...] = (),
        json: Collection[str] = (),
        opcode: int = -1,
    ) -> None: ...

class Record:
    time_ns: int
    cpu: int
    pid: int
    tid: int
    lost: int
    comm: str
    system: str
    name: str
    instance: str
    host: str
    file: str
    fields: dict[str, Any]

class Records:
    count: int
    last_ns: int
    lost: int
    lost_uncounted: bool
    is_merged: bool
    def __init__(
        self,
        source: RecordSource,
        find_event: Callable[[int], EventDecoder | None],
        *,
        instances: list[str] = ...,
        places: list[tuple[str, str]] = ...,
        apart: list[tuple[int, str]] | None = None,
        pids: Collection[int] | None = None,
        cpus: Collection[int] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def events(self) -> list[EventDecoder]: ...
