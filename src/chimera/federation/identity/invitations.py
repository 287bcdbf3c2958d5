"""Codes of invitations: a secret of 128 bits, and the fingerprint by which the invited side recognizes the hub's authority."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import NamedTuple

from chimera.core.errors import ConfigurationError

LASTS_S = 86_400.0
"""Validity of an invitation, in seconds."""
_SECRET, _FINGERPRINT = 16, 32
_OWN, _OTHER = 1, 2  # the first byte: the signer of the certificate of the hub's server


class Invitation(NamedTuple):
    """The content of a code.

    Attributes
    ----------
    secret : 16 random bytes, which the hub accepts once.
    fingerprint : SHA-256 of the certificate of the hub's authority.
    own_certificate : whether that authority signs the certificate of the hub's server.
    """

    secret: bytes
    fingerprint: bytes
    own_certificate: bool

    @property
    def code(self) -> str:
        """The code as text."""
        data = bytes([_OWN if self.own_certificate else _OTHER]) + self.secret + self.fingerprint
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    @property
    def digest(self) -> str:
        """The digest that the hub stores in place of the secret."""
        return digest_of(self.secret)

    @classmethod
    def new(cls, fingerprint: bytes, own_certificate: bool) -> Invitation:
        """Return an invitation with a new secret."""
        return cls(secrets.token_bytes(_SECRET), fingerprint, own_certificate)

    @classmethod
    def read(cls, code: str) -> Invitation:
        """Read a code.

        Raises
        ------
        ConfigurationError : it is no code.
        """
        try:
            data = base64.urlsafe_b64decode(code.strip() + "=" * (-len(code.strip()) % 4))
        except ValueError:
            data = b""
        if len(data) != 1 + _SECRET + _FINGERPRINT or data[0] not in (_OWN, _OTHER):
            raise ConfigurationError("this is no code of 'chimera hub invite': copy the whole code")
        return cls(data[1 : 1 + _SECRET], data[1 + _SECRET :], data[0] == _OWN)


def digest_of(secret: bytes) -> str:
    """Return the digest of a secret. A random secret of 128 bits needs no salt and no slow hash."""
    return hashlib.sha256(secret).hexdigest()
