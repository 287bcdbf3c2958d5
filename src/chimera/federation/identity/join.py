"""The function by which a node or requester joins a hub with an invitation's code. Its key never leaves this machine."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError, DataError, RunError
from chimera.core.private import make_own_folder, write
from chimera.engines.federation.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    MEMBERSHIP,
    Credentials,
    Membership,
    client_tls,
)
from chimera.engines.federation.renewal import fits, request_for
from chimera.engines.federation.wire.proxy import host_of, proxy_for
from chimera.federation.identity import messages
from chimera.federation.identity.authority import fingerprint_of, key_pem, new_key
from chimera.federation.identity.invitations import Invitation

_PATIENCE_S = 20.0


def join(url: str, code: str, folder: Path) -> Credentials:
    """Join a hub, and write the new identity to a folder.

    The code identifies the authority of the hub. The secret of the code is sent only over a connection whose
    certificate that authority has signed. If the hub was given a certificate, it must be one that this machine trusts.

    Raises
    ------
    ConfigurationError : the address, code or proxy cannot be used, the folder has an identity already or is another user's, or
        the hub is another one.
    RunError : the hub cannot be reached, or does not accept the code.
    """
    invitation = Invitation.read(code)
    address = Address.of(url, "the address of the hub")
    if not address.secure:
        raise ConfigurationError(f"the hub {address.url} must have an address that begins with https://")
    if (folder / MEMBERSHIP).exists():
        raise ConfigurationError(f"{folder} has an identity already: choose another folder by --folder")
    proxy = proxy_for(address.url)
    way = "" if proxy is None else f" through the proxy {host_of(proxy)}"
    try:
        make_own_folder(folder)
        return asyncio.run(asyncio.wait_for(_join(address, invitation, folder), _PATIENCE_S))
    except (ConfigurationError, RunError):
        raise
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"the server at {address.url}{way} is not the hub of this code: {error.verify_message}"
        ) from error
    except TimeoutError as error:
        raise RunError(f"the hub {address.url} did not answer{way} within {_PATIENCE_S:g} s") from error
    except Exception as error:  # any failure of the network, a proxy or the other side
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise RunError(f"the hub {address.url} cannot be reached{way}: {message}") from error


async def _join(address: Address, invitation: Invitation, folder: Path) -> Credentials:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE  # the fingerprint verifies the authority
    async with _connect(address, unverified) as connection:
        hub = await _received(connection, messages.Hub)
    try:
        fingerprint = fingerprint_of(hub.authority)
    except ValueError as error:
        raise DataError(f"the hub {address.url} sent no certificate") from error
    if not hmac.compare_digest(fingerprint, invitation.fingerprint):
        raise ConfigurationError(f"the server at {address.url} is not the hub of this code: it has another authority")
    write(folder / AUTHORITY, hub.authority)
    key = new_key()
    async with _connect(address, client_tls(folder / AUTHORITY, invitation.own_certificate)) as connection:
        await _received(connection, messages.Hub)
        await connection.send(messages.pack(messages.Request(invitation.secret, request_for(key))))
        made = await _received(connection, messages.Certificate)
    if not fits(made.certificate, key):
        raise DataError(f"the hub {address.url} sent a certificate for another key")
    write(folder / KEY, key_pem(key))
    write(folder / CERTIFICATE, made.certificate)
    member = Membership(address.url, made.name, made.role, invitation.own_certificate)
    write(folder / MEMBERSHIP, msgspec.json.format(msgspec.json.encode(member)))
    return Credentials.read(folder, made.role)


def _connect(address: Address, tls: ssl.SSLContext) -> Any:
    from websockets.asyncio.client import connect

    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    return connect(
        f"wss{address.url.removeprefix('https')}/join",
        ssl=tls, compression=None, max_size=messages.MAX_BYTES, ping_interval=None, close_timeout=1.0,
        user_agent_header=None, proxy=proxy_for(address.url),
    )  # fmt: skip


async def _received(connection: Any, kind: Any) -> Any:
    try:
        message = messages.decoder.decode(await connection.recv())
    except (msgspec.MsgspecError, TypeError) as error:
        raise DataError(f"the hub sent a message that cannot be read: {error}") from error
    if isinstance(message, messages.NotJoined):
        raise RunError(f"the hub does not accept this code: {message.reason}")
    if not isinstance(message, kind):
        raise DataError("the hub sent another message than expected")
    return message
