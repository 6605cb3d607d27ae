"""A context manager that closes itself."""

from utracefs.tree.closing import Closing


class Door(Closing):
    is_open = True

    def close(self) -> None:
        self.is_open = False


def test_it_is_closed_at_the_end() -> None:
    with Door() as door:
        assert door.is_open
    assert not door.is_open
