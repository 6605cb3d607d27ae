"""Where the C client is found."""

import os
from pathlib import Path

import pytest

from utracefs import c_client


def test_what_was_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_client, "PREFIX", str(tmp_path))
    assert (c_client.prefix(), c_client.preload_library()) == (None, None)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "utracefs.h").touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libutracefs-preload.so").touch()
    assert c_client.prefix() == str(tmp_path)
    assert c_client.preload_library() == str(tmp_path / "lib" / "libutracefs-preload.so")


def test_it_lies_in_the_package() -> None:
    import utracefs

    assert os.path.join(os.path.dirname(str(utracefs.__file__)), "c") == c_client.PREFIX
