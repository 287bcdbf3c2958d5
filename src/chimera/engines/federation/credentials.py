"""The identity of a node or of a driver: a folder with its key, its certificate, and the authority of its hub."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path

import msgspec

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError

KEY, CERTIFICATE, AUTHORITY, MEMBERSHIP = "key.pem", "certificate.pem", "authority.pem", "membership.json"


class Membership(msgspec.Struct):
    """The entries of an identity's folder about the federation.

    Attributes
    ----------
    hub : address of the hub.
    role : ``node`` or ``requester``.
    own_certificate : whether the hub's own authority signs the certificate of its server; otherwise an authority that this
        machine trusts does.
    """

    hub: str
    name: str
    role: str
    own_certificate: bool = True


@dataclass(frozen=True)
class Credentials:
    """An identity, read from its folder.

    Attributes
    ----------
    hub : address of the hub, ``https://host:port``.
    role, name : role and name in its certificate.
    """

    folder: Path
    hub: str
    role: str
    name: str
    own_certificate: bool = True

    @classmethod
    def read(cls, folder: Path, role: str, hub: str | None = None) -> Credentials:
        """Read a folder that ``chimera node join`` has written.

        Parameters
        ----------
        role : the required role.
        hub : address of the hub that replaces the one in the folder.

        Raises
        ------
        ConfigurationError : the folder has no identity, one that cannot be read, or an identity with another role.
        """
        file = folder / MEMBERSHIP
        try:
            membership = msgspec.json.decode(file.read_bytes(), type=Membership)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigurationError(
                f"{folder} has no identity: join a hub by 'chimera node join URL --code CODE'"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # also for bytes that are no text
            raise ConfigurationError(
                f"{file} is damaged ({error}): restore it from a backup, or delete it and join the hub again with a new code"
            ) from error
        if membership.role != role:
            raise ConfigurationError(f"{folder} has the identity of a {membership.role}, but a {role} is needed here")
        address = Address.of(hub or membership.hub, "the address of the hub")
        if not address.secure:
            raise ConfigurationError(f"the hub {address.url} must have an address that begins with https://")
        return cls(folder, address.url, membership.role, membership.name, membership.own_certificate)

    def websocket(self) -> str:
        """Return the address of the hub's route for this role."""
        return f"wss{self.hub.removeprefix('https')}/{self.role}"

    def tls(self) -> ssl.SSLContext:
        """Return the settings of TLS, by which both sides prove their identity.

        Raises
        ------
        ConfigurationError : a file is missing or cannot be used.
        """
        try:
            tls = client_tls(self.folder / AUTHORITY, self.own_certificate)
            tls.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the identity in {self.folder} cannot be used: {error}") from error
        return tls

    def mistake(self) -> str:
        """Return why no hub accepts the certificate; an empty text if no reason is known.

        A hub ends the handshake without a reason if a certificate is invalid.
        """
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        try:
            own = x509.load_pem_x509_certificate((self.folder / CERTIFICATE).read_bytes())
            authority = x509.load_pem_x509_certificate((self.folder / AUTHORITY).read_bytes())
            own.verify_directly_issued_by(authority)
        except InvalidSignature:
            return f"the certificate in {self.folder} was not signed by the authority of the hub"
        except (OSError, ValueError, TypeError) as error:
            return f"the certificate in {self.folder} cannot be used: {error}"
        if own.not_valid_after_utc <= dt.datetime.now(dt.UTC):
            return f"the certificate in {self.folder} has expired: join again with a new code"
        return ""


def client_tls(authority: Path, own_certificate: bool) -> ssl.SSLContext:
    """Return settings of TLS that trust this authority, and those of the system if the hub's certificate is not its own.

    Raises
    ------
    OSError : the file cannot be used.
    """
    tls = ssl.create_default_context(cafile=str(authority))
    if not own_certificate:
        tls.load_default_certs(ssl.Purpose.SERVER_AUTH)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    return tls
