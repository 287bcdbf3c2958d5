"""The listening sockets of a hub, and the bound on connections that have not sent a request yet."""

from __future__ import annotations

import contextlib
import socket

from chimera.core.errors import ConfigurationError
from chimera.web.handshakes import BoundedListener, Handshakes, max_files

MAX_HANDSHAKES = 1024
MAX_HANDSHAKES_OF_ADDRESS = 256
"""A quarter of all: many nodes may share one address behind a router, and dial at once when the hub starts again."""


def bounded_handshakes() -> Handshakes:
    """Return the bound for a hub; with few files, it leaves three quarters of them to the members."""
    files = max_files() // 4
    return Handshakes(max(min(MAX_HANDSHAKES, files), 16), max(min(MAX_HANDSHAKES_OF_ADDRESS, files // 4), 4))


def listen(host: str, port: int, handshakes: Handshakes, stack: contextlib.AsyncExitStack) -> list[BoundedListener]:
    """Return a bound socket for each address of a host; the stack closes them.

    Raises
    ------
    ConfigurationError : an address cannot be used.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        listeners: list[BoundedListener] = []
        refused: OSError | None = None
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listener = BoundedListener(socket.socket(family, kind, protocol), handshakes)
            except OSError as error:  # such as IPv6 on a system without it
                refused = error
                continue
            listeners.append(stack.enter_context(listener))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
        if not listeners and refused is not None:
            raise refused
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigurationError(f"the hub cannot listen on {host} port {port}: {reason}") from error
    return listeners
