"""Members of CONNECT: passwords, tokens, nkeys, credentials; a real nats-server checks the signatures."""

from __future__ import annotations

import base64
import binascii
import sys
from pathlib import Path

import pytest

from tests.client.nats.server import serving
from tests.judges import library
from utracefs.nats.login import Login


def seed(secret: bytes, kind: int = 20 << 3) -> str:
    """Seed of an nkey: S and the kind in the first two bytes."""
    raw = bytes([(18 << 3) | kind >> 5, (kind & 31) << 3]) + secret
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def test_nothing() -> None:
    assert Login().members("nonce") == {}


def test_passwords_and_tokens() -> None:
    assert Login("a", "b").members("") == {"user": "a", "pass": "b"}
    assert Login(token="t").members("") == {"auth_token": "t"}


def test_an_nkey(tmp_path: Path) -> None:
    library("cryptography")
    login = Login(seed=seed(bytes(range(32))))
    assert login.seed.startswith("SU")
    public = login.members("")["nkey"]
    assert public.startswith("U") and len(public) == 56
    with serving(tmp_path / "nats", f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server:
        with server.connection(login=lambda: login) as connection:
            assert connection.is_open
        with pytest.raises(PermissionError, match="Authorization Violation"):
            server.connection(login=lambda: Login(seed=seed(bytes(32)))).open()


def test_credentials() -> None:
    library("cryptography")
    text = (
        f"-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed(bytes(32))}\n------END USER NKEY SEED------\n"
    )
    members = Login(creds=text).members("nonce")
    assert members.keys() == {"jwt", "sig"}
    assert members["jwt"] == "a.b.c"
    assert len(base64.urlsafe_b64decode(members["sig"] + "==")) == 64
    with pytest.raises(ValueError, match="no credentials"):
        Login(creds="-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------").members("")


@pytest.mark.parametrize(
    "text", ["x", "SU", seed(bytes(32))[:-1] + "A", seed(bytes(31)), seed(bytes(32), 0), "ü" * 58]
)
def test_invalid_seeds(text: str) -> None:
    with pytest.raises(ValueError, match="no seed"):
        Login(seed=text).members("")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install 'utracefs\[nats\]'"):
        Login(seed=seed(bytes(32))).members("")
