"""Where there can be tracing. The other cases need interpreters of their own: test_without_tracing.py."""

import pytest

from utracefs import available


def test_in_the_main_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)
    assert available.CAN_TRACE
    assert available._can_trace()


def test_without_a_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    assert not available._can_trace()
