"""Numbers that are handed out."""

import pytest

from utracefs import Stats


def test_they_cannot_be_changed() -> None:
    stats = Stats(connected=False, emitted=3, sent=1, pending=1, lost=1, refused=0, events={})
    with pytest.raises(AttributeError):
        stats.lost = 0  # type: ignore[misc]
