MAX_OPEN: int
MAX_SAME_KEY: int

class Track:
    kind: int
    number: int
    name: str
    parent: Track | None
    pid: int
    tid: int
    top: Open | None
    def __init__(
        self, kind: int, number: int, name: str, parent: Track | None = None, pid: int = 0, tid: int = 0
    ) -> None: ...

class Open:
    key: object
    name: str
    system: str
    pid: int
    tid: int
    begin_ns: int
    owner: Track
    track: Track
    under: Open | None
    def __init__(
        self, key: object, name: str, system: str, owner: Track, pid: int, tid: int, begin_ns: int
    ) -> None: ...

class OpenSlices:
    begins_without_end: int
    def __init__(self, max_open: int = ..., max_same_key: int = ...) -> None: ...
    def free_lane(self, one: Open) -> Track | None: ...
    def begin(self, one: Open, track: Track) -> None: ...
    def end(self, key: object, pid: int, tid: int, end_ns: int) -> Open | None: ...
    def forget_lanes(self) -> None: ...

class Nesting:
    def __init__(self, floor_ns: int = 0) -> None: ...
    def lane(self, begin_ns: int, end_ns: int) -> int: ...
