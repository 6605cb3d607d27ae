"""One page of a client's memory, and the atomic change of one bit in it (see the .pyx for the story)."""

from typing import final

PAGE_SIZE: int

@final
class WordPage:
    """Page number `page` of the file behind `fd`, mapped shared and writable. OSError as mmap(2) answers."""

    def __new__(cls, fd: int, page: int) -> WordPage: ...
    def change_bit(self, offset: int, size: int, bit: int, value: bool) -> None: ...
    def close(self) -> None: ...
