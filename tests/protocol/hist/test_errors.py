from __future__ import annotations

import errno

from utracefs_protocol.hist.errors import HistError, Log


def test_positions_are_those_of_the_first_occurrence() -> None:
    log = Log(b"hist:keys=id:vals=id")
    log.add("first", b"id")
    error = log.fault("second", b"nowhere")
    assert isinstance(error, HistError)
    assert error.errno == errno.EINVAL
    assert error.entries == (("first", 10), ("second", 0))
    assert error.text == "second: nowhere"


def test_nothing_to_point_at() -> None:
    assert Log(b"hist:keys=id").fault("all of it", errno=errno.ENOENT).entries == (("all of it", 0),)


def test_refused_without_an_entry_of_its_own() -> None:
    log = Log(b"hist:keys=id")
    assert log.refused("no").entries == ()
    log.add("before")
    assert log.refused("no", errno.ENOMEM).entries == (("before", 0),)
    assert log.refused("no", errno.ENOMEM).errno == errno.ENOMEM
