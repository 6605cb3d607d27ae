from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from typing import Any

def strict(on: bool = True) -> bool: ...
def use_context(variable: ContextVar[Mapping[str, Any]], names: AbstractSet[str]) -> None: ...
