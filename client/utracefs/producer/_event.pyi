from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, Self, SupportsFloat, SupportsIndex

from utracefs_protocol.errors import TraceError

KINDS: Final[dict[str, int]]

class Event:
    name: str
    declaration: str
    flags: int
    session: Any
    defaults: dict[str, Any] | None
    __hash__: ClassVar[Any]
    def __new__(
        cls,
        session: Any,
        name: bytes,
        declaration: bytes,
        command: bytes,
        flags: int,
        fields: Iterable[tuple[bytes, int, int, int, bool, bool, int]],
        max_size: int,
    ) -> Self: ...
    def __bool__(self) -> bool: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def registered(self) -> bool: ...
    @property
    def index(self) -> int: ...
    @property
    def emitted(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def refused(self) -> dict[str, int]: ...
    @property
    def error(self) -> TraceError | None: ...
    def _counts(self) -> tuple[int, int, int]: ...
    def _start_child(self) -> None: ...
    def emit(
        self,
        *args: SupportsIndex | SupportsFloat | str | bytes | bytearray | memoryview | Sequence[SupportsFloat],
        **kwargs: Any,
    ) -> None: ...
