"""Targets by their addresses; secrets and certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judges import library
from utracefs.forward.target import Settings, open_target, schemes


def test_no_such_target() -> None:
    with pytest.raises(LookupError, match="no target 'none'; there are: "):
        open_target("none:x", Settings())
    assert "none" not in schemes()


def test_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert Settings().secret("token") is None
    (tmp_path / "token").write_text("from systemd\n")
    (tmp_path / "mine").write_text("mine\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert Settings().secret("token") == "from systemd"
    assert Settings().secret("other") is None
    settings = Settings(secrets={"token": str(tmp_path / "mine")})
    assert settings.secret("token") == "mine"
    (tmp_path / "mine").write_text("renewed")
    assert settings.secret("token") == "renewed"
    with pytest.raises(OSError):
        Settings(secrets={"token": str(tmp_path / "none")}).secret("token")
    (tmp_path / "mine").write_bytes(b"\xff")
    with pytest.raises(OSError, match="not UTF-8"):  # so records wait; another error would refuse them
        settings.secret("token")


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("otlp://here", "headers"),
        ("nats://here/RECORDS", "password, token, nkey, creds"),
        ("parquet:{folder}", "access_key, secret_key, session_token"),
    ],
)
def test_secrets_that_a_target_does_not_know(tmp_path: Path, address: str, names: str) -> None:
    if not address.startswith("otlp"):
        library("pyarrow")
    address = address.format(folder=tmp_path)
    settings = Settings(secrets={"tokem": "file"})
    with pytest.raises(ValueError, match=f"no secret 'tokem' of [a-z]+; there are: {names}$"):
        open_target(address, settings)
    open_target(address, settings, others=["tokem"]).close()


def test_a_host_without_a_scheme() -> None:
    with pytest.raises(LookupError, match="an address begins with one: otlp://collector:4318"):
        open_target("collector:4318", Settings())


@pytest.mark.parametrize(
    ("settings", "file"),
    [
        (Settings(ca="none.pem"), "none.pem"),
        (Settings(cert="none.pem"), "none.pem"),
        (Settings(cert="a.pem", key="b.pem"), "a.pem, b.pem"),
    ],
)
def test_an_error_of_tls_names_the_file(settings: Settings, file: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        settings.tls()
    assert raised.value.filename == file
