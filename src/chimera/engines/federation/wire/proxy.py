"""Proxies between a member and its hub: which one to use, and its method ``CONNECT`` over a TCP connection that is open."""

from __future__ import annotations

import asyncio
import base64
import socket
import urllib.parse
import urllib.request

from chimera.core.address import is_loopback
from chimera.core.errors import ConfigurationError

_MAX_HEAD_BYTES = 1 << 14


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL, by the rules of the variables ``HTTPS_PROXY`` and ``NO_PROXY``; None if there is none.

    A hub at a loopback address is called directly: a proxy would connect to itself. The URL may have the name and password of a
    user: messages have its `host_of` instead.

    Raises
    ------
    ConfigurationError : the variables have no usable URL. Neither the text nor an exception before it has the password.
    """
    parts = urllib.parse.urlsplit(url)
    if is_loopback(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get("wss") or proxies.get("https")
    if (socks := proxies.get("socks")) is not None and "wss" not in proxies:
        proxy = socks.replace("http://", "socks5h://", 1)  # how some systems write it
    if proxy is None:
        return None
    if (usable := _usable(proxy)) is None:
        raise ConfigurationError(
            f"the proxy {host_of(proxy)} of the environment (HTTPS_PROXY, WSS_PROXY or SOCKS_PROXY) cannot be used: "
            "give its URL as http://[USER:PASSWORD@]HOST:PORT, and write '/', '@', '#', '?' and '%' of a password as %2F, %40, "
            "%23, %3F and %25"
        )
    return usable


def host_of(proxy: str) -> str:
    """Return the host and port of a proxy's URL, without the name and password of a user, for messages."""
    return proxy.rpartition("//")[2].rpartition("@")[2]


def _usable(proxy: str) -> str | None:
    """Return a URL that Chimera and the library accept; None for other URLs. An error of the library would quote the URL."""
    from websockets.exceptions import InvalidProxy
    from websockets.proxy import parse_proxy

    try:
        parts = urllib.parse.urlsplit(proxy)
        if parts.username is not None and parts.password is None:  # the library needs a password, if only an empty one
            proxy = parts._replace(netloc=":@".join(parts.netloc.rsplit("@", 1))).geturl()
        parse_proxy(proxy)
    except (InvalidProxy, ValueError):
        return None
    return proxy


async def pass_through(reached: socket.socket, proxy: str, to: str) -> None:
    """Ask a proxy to connect an open TCP connection to an address. Later bytes are exchanged with that address.

    Parameters
    ----------
    reached : a connection to the proxy that does not block.
    proxy : the URL of the proxy, with a user's name and password if it needs them.
    to : host and port.

    Raises
    ------
    ConnectionError : the proxy refuses, or its answer is not HTTP.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(reached, _request(urllib.parse.urlsplit(proxy), to))
    head = b""
    while b"\r\n\r\n" not in head:
        data = await loop.sock_recv(reached, _MAX_HEAD_BYTES)
        head += data
        if not data:
            raise ConnectionError("the proxy closed the connection without an answer to CONNECT")
        if len(head) > _MAX_HEAD_BYTES:
            raise ConnectionError("the answer of the proxy is not HTTP")
    line, _, _ = head.partition(b"\r\n")
    version, _, status = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
        raise ConnectionError("the answer of the proxy is not HTTP")
    if not status.startswith(b"2"):
        raise ConnectionError(f"the proxy refuses CONNECT with the status {status[:3].decode()}")
    if not head.endswith(b"\r\n\r\n"):  # a hub sends nothing before the TLS handshake
        raise ConnectionError("the proxy sent bytes after its answer to CONNECT")


def _request(proxy: urllib.parse.SplitResult, to: str) -> bytes:
    lines = [f"CONNECT {to} HTTP/1.1", f"Host: {to}"]
    if proxy.username is not None:
        user = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")
