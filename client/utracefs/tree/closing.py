"""The base of context managers that close themselves."""

from typing import Self


class Closing:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice."""
        raise NotImplementedError
