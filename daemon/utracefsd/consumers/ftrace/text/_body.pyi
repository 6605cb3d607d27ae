from collections.abc import Sequence

from utracefs_protocol.events.declaration import Field

class BodyPlan:
    def __init__(self, event: tuple[bytes, Sequence[Field]] | None) -> None: ...
