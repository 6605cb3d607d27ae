"""Unexpected exceptions: each is counted, each place in the code is logged once."""

import logging

import pytest

from utracefsd.machine import faults as faults_module
from utracefsd.machine.faults import Faults


def fail(faults: Faults, error: Exception) -> None:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - what is tested
        faults.note(caught, "it")


def test_counted_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            fail(faults, KeyError("x"))
        fail(faults, ValueError("y"))
    assert faults.count == 4
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "Traceback" in caplog.text


def test_the_log_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "_MAX_PLACES", 2)
    faults = Faults()
    with caplog.at_level(logging.ERROR):
        for kind in (KeyError, ValueError, TypeError, OSError):
            fail(faults, kind())
    assert (faults.count, len(caplog.records)) == (4, 2)


def test_an_error_that_was_never_raised() -> None:
    faults = Faults()
    faults.note(ValueError(), "it")
    assert faults.count == 1
