from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, final, overload

from typing_extensions import ParamSpec

from utracefs._event import Event

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Begin = ParamSpec("_Begin", default=...)
_End = ParamSpec("_End", default=...)

BEGIN_FIELDS: Final[str]
END_FIELDS: Final[str]

@final
class Span(Generic[_Begin, _End]):
    begin: Event
    end: Event
    name: str
    fields: tuple[str, ...]
    values: tuple[Any, ...] | None
    def __new__(
        cls,
        name: str,
        begin: Event,
        end: Event,
        fields: tuple[str, ...],
        values: tuple[Any, ...] | None = None,
    ) -> Self: ...
    def having(self, values: tuple[Any, ...] | None) -> Self: ...
    def __bool__(self) -> bool: ...
    @overload
    def __call__(self, function: _Function, /) -> _Function: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, *args: _Begin.args, **kwargs: _Begin.kwargs) -> Running[_End]: ...
    @overload
    def __call__(self, *values: Any, parent_id: int | None, **named: Any) -> Running[_End]: ...
    def __enter__(self) -> Running[_End]: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Off(Generic[_End]):
    @property
    def span_id(self) -> int: ...
    @property
    def parent_id(self) -> int: ...
    def set(self, *args: _End.args, **kwargs: _End.kwargs) -> None: ...
    def __bool__(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Running(Generic[_End]):
    @property
    def span_id(self) -> int: ...
    @property
    def parent_id(self) -> int: ...
    def set(self, *args: _End.args, **kwargs: _End.kwargs) -> None: ...
    def __bool__(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Itself:
    def __get__(self, instance: Any, owner: Any) -> Any: ...

def decorate_by(function: Callable[[Span, Any], Any]) -> None: ...
def current() -> Running | None: ...
