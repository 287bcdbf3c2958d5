"""Addresses of servers, ``http://host:port``: parsing, and the check whether a token may be sent there."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from chimera.core.errors import ConfigurationError

INSECURE = "CHIMERA_INSECURE"
"""The variable by which a user accepts that tokens and data travel in clear."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """The address of a server.

    Attributes
    ----------
    url : as the user wrote it, without a slash at the end; used in all messages.
    secure : whether the server uses TLS.
    path : the path before the routes, usually empty.
    """

    url: str
    host: str
    port: int
    secure: bool
    path: str

    @classmethod
    def of(cls, url: str, what: str = "the address") -> Address:
        """Parse a URL.

        Parameters
        ----------
        what : the purpose of the URL, for the error.

        Raises
        ------
        ConfigurationError : it is not of the form ``http://host:port`` or ``https://host:port``.
        """
        mistake = ""
        try:
            parts = urlsplit(url)
            host, port, has_user = parts.hostname or "", parts.port, parts.username is not None
        except ValueError as error:
            mistake = f"{what} {url!r} cannot be used: {error}"
        else:
            well_formed = url.isascii() and url.isprintable() and " " not in url and port != 0
            if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or not well_formed:
                mistake = f"{what} {url!r} is not of the form 'http://host:port' or 'https://host:port'"
        if "@" in url and (mistake or has_user):  # in a URL of another form, the password may be in any part
            raise ConfigurationError(f"{what} has a password in it: give the token apart from the address")
        if mistake:
            raise ConfigurationError(mistake)
        scheme = parts.scheme
        return cls(url.rstrip("/"), host, port or _PORTS[scheme], scheme == "https", parts.path.rstrip("/"))

    def check_token_is_protected(self) -> None:
        """Refuse to send a token to this address unencrypted. Data for an address of this machine does not leave it.

        Raises
        ------
        ConfigurationError : the address has no TLS and is not this machine, and the user has not set ``CHIMERA_INSECURE=1``.
        """
        if not (self.secure or is_loopback(self.host) or is_own_address(self.host) or is_insecure_accepted()):
            raise ConfigurationError(
                f"a token would travel to {self.url} in clear: use an https:// address, or set {INSECURE}=1 if you accept that"
            )


def host_in_url(host: str) -> str:
    """Return a host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on ``host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_own_address(host: str) -> bool:
    """Return whether an IP address is one of this machine's. A host name could resolve to another address a moment later."""
    try:
        address = ipaddress.ip_address(host)
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def is_insecure_accepted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user allows unencrypted tokens and data."""
    return environment.get(INSECURE, "").strip().lower() in ("1", "true", "yes", "on")
