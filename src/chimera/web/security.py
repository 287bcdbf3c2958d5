"""Access rules of a server: requests need its token; a server without a token answers its own machine only."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from chimera.core.address import is_loopback
from chimera.core.errors import ConfigurationError
from chimera.web.logs import status

_PAGE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
_ANSWER_HEADERS = (_PAGE_HEADERS[0], (b"content-security-policy", b"frame-ancestors 'none'"))  # few, to save time

SelectedHeaders = Mapping[bytes, bytes | None]
HostPort = tuple[str, int | None]

_READ = frozenset({b"authorization", b"content-length", b"host", b"origin", b"sec-fetch-site"})
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::([0-9]{0,5}))?")
_MAX_HOST_BYTES = 300
_PORTS = {"http": 80, "https": 443}


class Access(Protocol):
    """The settings that decide which requests a server answers; part of the settings of nodes."""

    @property
    def token(self) -> str | None:
        """The bearer token that every request needs; None for a server that answers its own machine only."""

    @property
    def max_body_bytes(self) -> int:
        """Maximum size of a request's body."""

    @property
    def tls_cert(self) -> Path | None:
        """A PEM file with the certificate; without it the server uses plain HTTP."""

    @property
    def tls_key(self) -> Path | None:
        """A PEM file with the certificate's key."""

    @property
    def tls_client_ca(self) -> Path | None:
        """A PEM file of certificate authorities; with it, clients must present a certificate signed by one of them."""

    @property
    def insecure(self) -> bool:
        """Whether the server may listen beyond loopback with neither a token nor client certificates."""

    @property
    def published_on_loopback(self) -> bool:
        """Whether the server runs in a container whose port is published on loopback only."""


class AnonymousAccess(Enum):
    """The requests that a server answers without a token."""

    LOOPBACK = "from clients on this machine, to a loopback address"
    PUBLISHED = "to a loopback address; in a container, clients seem to come from the container's network"
    INSECURE = "from all clients, to an IP address or the name of this machine"
    CLIENT_CERTIFICATES = "from all clients, because TLS has verified their certificates"


def anonymous_access(settings: Access) -> AnonymousAccess:
    """Return the requests that a server with these settings answers without a token."""
    if settings.tls_client_ca is not None:
        return AnonymousAccess.CLIENT_CERTIFICATES
    if settings.published_on_loopback:
        return AnonymousAccess.PUBLISHED
    return AnonymousAccess.INSECURE if settings.insecure else AnonymousAccess.LOOPBACK


def selected_headers(headers: Iterable[tuple[bytes, bytes]]) -> SelectedHeaders:
    """Return the headers that decide about a request, by ASGI's lower-case name; None for a header that is given twice."""
    given: dict[bytes, bytes | None] = {}
    for name, value in headers:
        if name in _READ:
            given[name] = None if name in given else value
    return given


def has_token(given: SelectedHeaders, token: str) -> bool:
    """Return whether a request has the token, in constant time.

    Several ``Authorization`` headers count as none, because servers differ in which of them they use.
    """
    scheme, _, credentials = (given.get(b"authorization") or b"").partition(b" ")
    same = hmac.compare_digest(credentials.strip(), token.encode())
    return same and scheme.lower() == b"bearer"


def host_and_port(host: bytes | None) -> HostPort | None:
    """Return the host and port of a ``Host`` header; None if it is malformed or missing."""
    return None if host is None or len(host) > _MAX_HOST_BYTES else _host_and_port(host)


@lru_cache(maxsize=256)
def _host_and_port(host: bytes) -> HostPort | None:
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    address, name, port = (None if part is None else part.decode() for part in found.groups())
    try:
        if address is not None:
            ipaddress.IPv6Address(address)
        number = int(port) if port else None
    except ValueError:
        return None
    return None if number is not None and number > 65_535 else (address or name or "", number)


def may_serve_without_token(
    scope: Mapping[str, Any], host_port: HostPort, given: SelectedHeaders, rule: AnonymousAccess
) -> bool:
    """Return whether the rule allows a request without a token, and it does not come from a page of another site.

    A page of any site, opened in a browser on this machine, can send requests to it; ``Origin`` then names that site. With DNS
    rebinding the site's own name resolves to this machine, so that the page can read the answers; ``Host`` is then that name.
    """
    if rule is AnonymousAccess.LOOPBACK:
        client = scope.get("client")
        if client and not is_loopback(client[0]):
            return False
    return (
        (
            rule is AnonymousAccess.CLIENT_CERTIFICATES
            or is_loopback(host_port[0])
            or (rule is AnonymousAccess.INSECURE and _is_address_or_own(host_port[0]))
        )
        and given.get(b"sec-fetch-site", b"") in (b"", b"none", b"same-origin", b"same-site")
        and (b"origin" not in given or _is_origin(given[b"origin"], scope["scheme"], host_port))
    )


def may_serve_page(
    scope: Mapping[str, Any], host_port: HostPort, given: SelectedHeaders, *, forwarded: bool = False
) -> bool:
    """Return whether a server with a token sends a page of `OPEN_PATHS`; connections to loopback need a loopback ``Host``.

    Parameters
    ----------
    forwarded : whether connections to loopback may come from another address of this machine, so that any ``Host`` is right.
    """
    server = scope.get("server")
    on_loopback = not forwarded and (server is None or is_loopback(server[0]))
    return may_serve_without_token(
        scope, host_port, given, AnonymousAccess.PUBLISHED if on_loopback else AnonymousAccess.CLIENT_CERTIFICATES
    )


def _is_address_or_own(host: str) -> bool:
    """Return whether the host is the name of this machine or an IP address, which DNS rebinding cannot use."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        own = socket.gethostname().lower()
        return host.rstrip(".").lower() in (own, f"{own.partition('.')[0]}.local")
    return True


def _is_origin(origin: bytes | None, scheme: str, host_port: HostPort) -> bool:
    """Return whether an ``Origin`` is the server itself, at the host and port of ``Host``."""
    try:
        found = urlsplit((origin or b"").decode("ascii"))
        port = found.port
    except ValueError:
        return False
    default = _PORTS.get(scheme)
    same = (found.hostname or "", port or default) == (host_port[0].lower(), host_port[1] or default)
    return same and found.scheme == scheme


def check_exposure(host: str, settings: Access) -> None:
    """Refuse to listen beyond loopback without a token or client certificates.

    Raises
    ------
    ConfigurationError : the server would be open to the network; the message states what to set.
    """
    if not (_is_guarded(host, settings) or settings.insecure):
        raise ConfigurationError(
            f"listening on {host} would let every machine in the network use this server: set CHIMERA_TOKEN or "
            "CHIMERA_TLS_CLIENT_CA, or listen on 127.0.0.1 (CHIMERA_WORKERS_HOST); CHIMERA_INSECURE=1 allows it anyway"
        )


def warn_if_exposed(host: str, port: int, settings: Access) -> None:
    """Warn in the status log and on stderr if every machine in the network may use this server."""
    if _is_guarded(host, settings):
        return
    warning = (
        f"CHIMERA_INSECURE: listening on {host}:{port} WITHOUT A TOKEN: every machine that reaches this one can use this "
        "server, train on its data and read its rows; set CHIMERA_TOKEN"
    )
    status().warning(warning)
    sys.stderr.write(f"chimera: WARNING: {warning}\n")


def _is_guarded(host: str, settings: Access) -> bool:
    guarded = settings.token or settings.tls_client_ca is not None or settings.published_on_loopback
    return bool(guarded) or is_loopback(host)


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer, with those that forbid a browser to frame it and to guess its type.

    A page, which has its own content security policy, also sends no referrer and cannot be embedded by other sites.
    """
    given = list(headers)
    for name, _ in given:
        if name == b"content-security-policy":
            return [*given, *_PAGE_HEADERS]
    return [*given, *_ANSWER_HEADERS]
