"""Who may talk to a node: the bearer token, and a word where anybody may."""

from __future__ import annotations

import hmac
import ipaddress
import sys
from collections.abc import Iterable
from urllib.parse import urlsplit

from chimera.web.logs import status


def bears(headers: Iterable[tuple[bytes, bytes]], token: str) -> bool:
    """Return whether the headers of a request (ASGI: lower-case names) bear the token; in constant time.

    More than one ``Authorization`` is as good as none: which of them counts would be a guess.
    """
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return False
    scheme, _, credentials = given[0].partition(b" ")
    same = hmac.compare_digest(credentials.strip(), token.encode())
    return same and scheme.lower() == b"bearer"


def from_here(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request bears no token, and asks for this machine by a name that no other site can have.

    Without the second a page of any site, opened here, could read what this machine answers (DNS rebinding).
    """
    given = dict(headers)
    host = given.get(b"host", b"").decode("latin-1")
    return b"authorization" not in given and is_loopback((urlsplit(f"//{host}").hostname or "") if host else "")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def warn_if_open(host: str, port: int, token: str | None) -> None:
    """Say, in the status log and on stderr, that everybody who reaches this machine reaches the node."""
    if token or is_loopback(host):
        return
    warning = (
        f"listening on {host}:{port} without a token: whoever reaches this machine can use this node; "
        "set CHIMERA_TOKEN, or CHIMERA_WORKERS_HOST=127.0.0.1"
    )
    status().warning(warning)
    sys.stderr.write(f"chimera: warning: {warning}\n")
