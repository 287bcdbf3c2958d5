"""Which requests a server answers: those that bear its token; without one, those of this machine, by names that are its own."""

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

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The policy of a page that has its style and script in itself."""
_PAGE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
_ANSWER_HEADERS = (_PAGE_HEADERS[0], (b"content-security-policy", b"frame-ancestors 'none'"))  # each byte costs time

Given = Mapping[bytes, bytes | None]
Place = tuple[str, int | None]

_READ = frozenset({b"authorization", b"content-length", b"host", b"origin", b"sec-fetch-site"})
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::([0-9]{0,5}))?")
_MOST_HOST_BYTES = 300
_PORTS = {"http": 80, "https": 443}


class Access(Protocol):
    """Which requests a server answers, and how large they may be; the settings of nodes have this among others."""

    @property
    def token(self) -> str | None:
        """What every request must bear; None for a server that answers this machine alone."""

    @property
    def max_body_bytes(self) -> int:
        """The size of the largest request."""

    @property
    def tls_cert(self) -> Path | None:
        """A PEM file; without it the server speaks plain HTTP."""

    @property
    def tls_key(self) -> Path | None:
        """The PEM file of the certificate's key."""

    @property
    def tls_client_ca(self) -> Path | None:
        """A PEM file of certificate authorities; with it clients must present a certificate that one of them has signed."""

    @property
    def insecure(self) -> bool:
        """Whether the server may listen beyond loopback with neither token nor certificates of clients."""

    @property
    def published_on_loopback(self) -> bool:
        """Whether it runs in a container whose port is published on loopback alone."""


class Open(Enum):
    """Which requests are answered without a token."""

    LOOPBACK = "of clients on this machine, at a loopback address"
    PUBLISHED = "at a loopback address; clients seem to come from the container's network"
    CLASSROOM = "of all clients, at an IP address or this machine's own name"
    CERTIFIED = "of all clients, since TLS has checked their certificates"


def open_to(settings: Access) -> Open:
    """Return which requests a server with these settings answers without a token."""
    if settings.tls_client_ca is not None:
        return Open.CERTIFIED
    if settings.published_on_loopback:
        return Open.PUBLISHED
    return Open.CLASSROOM if settings.insecure else Open.LOOPBACK


def headers_of(headers: Iterable[tuple[bytes, bytes]]) -> Given:
    """Return the headers (ASGI: lower-case names) that decide about a request; None for one that is given twice."""
    given: dict[bytes, bytes | None] = {}
    for name, value in headers:
        if name in _READ:
            given[name] = None if name in given else value
    return given


def bears(given: Given, token: str) -> bool:
    """Return whether a request bears the token; in constant time.

    More than one ``Authorization`` is as good as none: which of them counts would be a guess.
    """
    scheme, _, credentials = (given.get(b"authorization") or b"").partition(b" ")
    same = hmac.compare_digest(credentials.strip(), token.encode())
    return same and scheme.lower() == b"bearer"


def place_of(host: bytes | None) -> Place | None:
    """Return host and port of a ``Host`` header; None if it is malformed or missing."""
    return None if host is None or len(host) > _MOST_HOST_BYTES else _place_of(host)


@lru_cache(maxsize=256)
def _place_of(host: bytes) -> Place | None:
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


def is_own(scope: Mapping[str, Any], place: Place, given: Given, rule: Open) -> bool:
    """Return whether a request without a token comes from where the rule allows, and from no page of another site.

    A page of any site, opened in a browser here, can send requests to this machine (``Origin`` names that site). It can also
    let its own name stand for this machine's address, to read the answers as its own (DNS rebinding: ``Host`` is that name).
    """
    if rule is Open.LOOPBACK:
        client = scope.get("client")
        if client and not is_loopback(client[0]):
            return False
    return (
        (rule is Open.CERTIFIED or is_loopback(place[0]) or (rule is Open.CLASSROOM and _is_address_or_own(place[0])))
        and given.get(b"sec-fetch-site", b"") in (b"", b"none", b"same-origin", b"same-site")
        and (b"origin" not in given or _is_origin(given[b"origin"], scope["scheme"], place))
    )


def is_unlocked(scope: Mapping[str, Any], place: Place, given: Given) -> bool:
    """Return whether a server with a token shows an open page: by the rules of loopback to a connection on loopback."""
    server = scope.get("server")
    on_loopback = server is None or is_loopback(server[0])
    return is_own(scope, place, given, Open.PUBLISHED if on_loopback else Open.CERTIFIED)


def _is_address_or_own(host: str) -> bool:
    """Return whether it is an IP address, which no other site can have for a name, or the name of this machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        own = socket.gethostname().lower()
        return host.rstrip(".").lower() in (own, f"{own.partition('.')[0]}.local")
    return True


def _is_origin(origin: bytes | None, scheme: str, place: Place) -> bool:
    """Return whether an ``Origin`` is the server itself, at the place that ``Host`` names."""
    try:
        found = urlsplit((origin or b"").decode("ascii"))
        port = found.port
    except ValueError:
        return False
    default = _PORTS.get(scheme)
    same = (found.hostname or "", port or default) == (place[0].lower(), place[1] or default)
    return same and found.scheme == scheme


def check_reach(host: str, settings: Access) -> None:
    """Refuse to listen beyond loopback where neither a token nor certificates of clients keep strangers out.

    Raises
    ------
    ConfigurationError : says what to set.
    """
    if not (_is_guarded(host, settings) or settings.insecure):
        raise ConfigurationError(
            f"listening on {host} would let every machine of the network use this server: set CHIMERA_TOKEN, or "
            "CHIMERA_TLS_CLIENT_CA, or listen on 127.0.0.1 (CHIMERA_WORKERS_HOST); CHIMERA_INSECURE=1 allows it all the same"
        )


def warn_if_open(host: str, port: int, settings: Access) -> None:
    """Say, in the status log and on stderr, that every machine of the network may use this server."""
    if _is_guarded(host, settings):
        return
    warning = (
        f"CHIMERA_INSECURE: listening on {host}:{port} WITHOUT A TOKEN: every machine that reaches this one can use this "
        "server, train with its data and read its rows; set CHIMERA_TOKEN"
    )
    status().warning(warning)
    sys.stderr.write(f"chimera: WARNING: {warning}\n")


def _is_guarded(host: str, settings: Access) -> bool:
    guarded = settings.token or settings.tls_client_ca is not None or settings.published_on_loopback
    return bool(guarded) or is_loopback(host)


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer, with those that keep a browser from framing it and from guessing its type.

    A page, which has a policy of its own, is not told of to other sites either.
    """
    given = list(headers)
    for name, _ in given:
        if name == b"content-security-policy":
            return [*given, *_PAGE_HEADERS]
    return [*given, *_ANSWER_HEADERS]
