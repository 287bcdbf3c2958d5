"""Renewal of the certificate of a node or requester: over its connection to the hub, for the same key, before it expires."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import write
from chimera.engines.federation.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials

EARLY = dt.timedelta(hours=1)
"""Time before its issue from which a certificate is valid, since clocks differ."""
DUE = 2 / 3
"""The part of its lifetime after which a certificate is renewed."""
_EVERY_S = 3600.0  # seconds between two requests


class Renewal:
    """Renews the certificate of an identity.

    Parameters
    ----------
    credentials : the identity.
    clock : returns seconds since 1970.
    """

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.time) -> None:
        self._credentials, self._clock = credentials, clock
        self._next_s = 0.0

    def request(self) -> bytes | None:
        """Return a request for a new certificate, in PEM; None if it is not yet time, or one was made in the last hour.

        Raises
        ------
        ConfigurationError : the files of the identity cannot be used.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _EVERY_S
        own, key = self._files()
        begin, end = (own.not_valid_before_utc + EARLY).timestamp(), own.not_valid_after_utc.timestamp()
        return request_for(key) if now_s >= begin + DUE * (end - begin) else None

    def take(self, pem: bytes) -> None:
        """Check the certificate that the hub has sent, and store it in place of the former one.

        Raises
        ------
        DataError : the certificate is not signed by the hub's authority, has another key, role or name, or ends before the
            former one.
        ConfigurationError : the certificate cannot be written.
        """
        own, key = self._files()
        try:
            new = x509.load_pem_x509_certificate(pem)
            authority = x509.load_pem_x509_certificate((self._credentials.folder / AUTHORITY).read_bytes())
            new.verify_directly_issued_by(authority)
            same = fits(pem, key) and _names(new) == _names(own) and new.not_valid_after_utc >= own.not_valid_after_utc
        except Exception as error:  # the library has many errors for bytes that are not a certificate
            raise DataError(
                f"the hub sent a renewed certificate that cannot be used: {type(error).__name__}"
            ) from error
        if not same:
            raise DataError("the hub sent a renewed certificate of another key, role or name, or of a shorter time")
        made = self._credentials.folder / f"{CERTIFICATE}.new"
        try:
            write(made, pem)
            made.replace(self._credentials.folder / CERTIFICATE)
        except OSError as error:
            raise ConfigurationError(f"the renewed certificate {made} cannot be written: {error.strerror}") from error

    def _files(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        folder = self._credentials.folder
        try:
            key: Any = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
            return x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()), key
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(f"the identity in {folder} cannot be used: {error}") from error


def request_for(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate signing request for this key, in PEM."""
    empty = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return empty.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def fits(pem: bytes, key: ec.EllipticCurvePrivateKey) -> bool:
    """Return whether a certificate is for this key."""
    der = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return x509.load_pem_x509_certificate(pem).public_key().public_bytes(*der) == key.public_key().public_bytes(*der)


def _names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)
