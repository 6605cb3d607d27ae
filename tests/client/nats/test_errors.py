"""The tree of errors."""

from __future__ import annotations

from utracefs.nats.errors import ApiError, NoResponders, NotFound, WireError, WrongLastSequence


def test_the_tree() -> None:
    assert issubclass(WireError, ConnectionError)
    assert not issubclass(ApiError, OSError)
    for kind in (NoResponders, NotFound, WrongLastSequence):
        error = kind("no", 10059)
        assert isinstance(error, ApiError)
        assert (str(error), error.err_code) == ("no", 10059)
