"""The authority of a hub: it signs the certificates of the hub, of nodes and of requesters."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import make_own_folder, write
from chimera.engines.federation.renewal import EARLY

Role = Literal["node", "requester"]
AUTHORITY_DAYS, DAYS = 3650, 365
_KEY, _CERTIFICATE = "authority.key", "authority.pem"


class Issued(NamedTuple):
    """A certificate that was signed.

    Attributes
    ----------
    pem : the certificate.
    serial : its serial number in hexadecimal digits.
    fingerprint : SHA-256 of the certificate in hexadecimal digits.
    """

    pem: bytes
    serial: str
    fingerprint: str


class Authority:
    """The key and certificate of an authority, created in a folder that has none.

    Raises
    ------
    ConfigurationError : the folder cannot be used, or another user owns it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            make_own_folder(folder)
            if not (folder / _KEY).exists():
                _create(folder)
            self._key: Any = serialization.load_pem_private_key((folder / _KEY).read_bytes(), None)
            self.pem = (folder / _CERTIFICATE).read_bytes()
            self._certificate = x509.load_pem_x509_certificate(self.pem)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the authority in {folder} cannot be used: {error}") from error

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of its certificate."""
        return fingerprint_of(self.pem)

    def member(self, request: bytes, role: Role, name: str, days: float = DAYS) -> Issued:
        """Sign the certificate of a node or requester. Of the request, only the public key is used.

        Parameters
        ----------
        request : certificate signing request, in PEM.
        days : validity, in days.

        Raises
        ------
        DataError : the request cannot be read, its signature is wrong, or its key has another type.
        """
        try:
            signing_request = x509.load_pem_x509_csr(request)
            key = signing_request.public_key()
            if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
                raise DataError("the key must be of the type EC P-256")
            if not signing_request.is_signature_valid:
                raise DataError("the signature is wrong")
        except (ValueError, TypeError, InvalidSignature) as error:
            raise DataError(f"the request for a certificate cannot be read: {error}") from error
        uri = x509.UniformResourceIdentifier(f"chimera:{role}:{name}")
        return self._sign(key, f"{role} {name}", [uri], ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def server(self, key: Any, names: Sequence[str]) -> Issued:
        """Sign the certificate of the hub's server, for these host names and addresses."""
        return self._sign(key, "chimera hub", [_place(name) for name in names], ExtendedKeyUsageOID.SERVER_AUTH, DAYS)

    def _sign(
        self, key: Any, common: str, names: Sequence[x509.GeneralName], use: x509.ObjectIdentifier, days: float
    ) -> Issued:
        now = dt.datetime.now(dt.UTC)
        serial = x509.random_serial_number()
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(serial)
            .not_valid_before(min(now, now + dt.timedelta(days=days)) - EARLY)
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = built.public_bytes(serialization.Encoding.PEM)
        return Issued(pem, f"{serial:x}", fingerprint_of(pem).hex())


def _create(folder: Path) -> None:
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chimera hub authority")])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write(folder / _CERTIFICATE, built.public_bytes(serialization.Encoding.PEM))
    write(folder / _KEY, key_pem(key))


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _place(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key of the type EC P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key in PEM, without encryption: its file is readable by its owner only."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def fingerprint_of(pem: bytes) -> bytes:
    """Return the SHA-256 of a certificate in PEM.

    Raises
    ------
    ValueError : it is no certificate.
    """
    return x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256())
