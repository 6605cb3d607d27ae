from array import array
from typing import Any

from utracefs.recordings._records import Records

OWN: tuple[str, ...]

def columns_of(records: Records) -> dict[str, dict[str, array[Any] | list[str] | list[bytes]]]: ...
