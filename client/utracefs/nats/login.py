"""Logins: the members of CONNECT that say which user the client is.

Nkeys are ed25519 keys in base32: a byte or two of kind, the key, CRC-16 (docs.nats.io, "NKeys"). Signatures
need the package `cryptography`.
"""

import base64
import binascii
import importlib
import re
from collections.abc import Callable
from typing import Any, Final, Self

import attrs

SECRETS: Final = ("password", "token", "nkey", "creds")
"""Names of secrets, in the order of the members of Login behind `user`."""

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z ]+)-----\s*(\S+)\s*-+END [A-Z ]+-+")
_USER: Final = 20 << 3
_SEED_OF_USER: Final = ((18 << 3) | _USER >> 5, (_USER & 31) << 3)


def split_user(text: str) -> tuple[str, str]:
    """`[USER@]HOST...`: user and hosts. A password is left to `servers`, which refuses it."""
    user, _, hosts = text.rpartition("@")
    return ("", text) if ":" in user else (user, hosts)


def inbox_of(user: str) -> str:
    """First words of the subjects of a user's answers: permissions can keep others from reading them."""
    return f"_INBOX.{user}" if re.fullmatch(r"[A-Za-z0-9_-]+", user) else "_INBOX"


@attrs.frozen
class Login:
    """All empty: none. creds: the text of a file that `nsc` writes, JWT and seed."""

    user: str = ""
    password: str = attrs.field(default="", repr=False)
    token: str = attrs.field(default="", repr=False)
    seed: str = attrs.field(default="", repr=False)
    """Seed of an nkey: SU..."""
    creds: str = attrs.field(default="", repr=False)

    @classmethod
    def read(cls, user: str, secret: Callable[[str], str | None]) -> Self:
        """secret: reads one of SECRETS. OSError: of that."""
        return cls(user, *(secret(name) or "" for name in SECRETS))

    def members(self, nonce: str) -> dict[str, Any]:
        """nonce: the server's. ValueError: an invalid seed. ImportError: `cryptography` is missing."""
        found: dict[str, Any] = {}
        if self.user:
            found |= {"user": self.user, "pass": self.password}
        if self.token:
            found["auth_token"] = self.token
        seed = self.seed
        if self.creds:
            blocks = dict(_BLOCK.findall(self.creds))
            try:
                found["jwt"], seed = blocks["NATS USER JWT"], blocks["USER NKEY SEED"]
            except KeyError:
                raise ValueError("no credentials of NATS: a JWT and a seed of a user are needed") from None
        if seed:
            public, signature = _sign(seed, nonce.encode())
            found["sig"] = base64.urlsafe_b64encode(signature).decode().rstrip("=")
            if not self.creds:
                found["nkey"] = public
        return found


def _sign(seed: str, text: bytes) -> tuple[str, bytes]:
    """The public key and the signature."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        raw = b""
    if len(raw) != 36 or binascii.crc_hqx(raw[:34], 0) != int.from_bytes(raw[34:], "little"):
        raise ValueError("no seed of an nkey: its check sum is wrong")
    if (raw[0], raw[1]) != _SEED_OF_USER:
        raise ValueError("no seed of a user: those begin with SU")
    try:
        ed25519 = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ModuleNotFoundError as error:
        raise ImportError(
            "nkeys need the package cryptography: pip install 'utracefs[nats]'", name=error.name
        ) from None
    key = ed25519.Ed25519PrivateKey.from_private_bytes(raw[2:34])
    body = bytes([_USER]) + key.public_key().public_bytes_raw()
    public = base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")
    return public, key.sign(text)
