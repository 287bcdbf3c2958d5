"""A client that sends hostile requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nodes.served import LIMIT_S

TOKEN = "right"
BEARER = ("Authorization", f"Bearer {TOKEN}")


class Attacker:
    """Sends bytes to one server, over new connections."""

    def __init__(self, url: str) -> None:
        self.port = int(url.rsplit(":", 1)[1])
        self.own = f"127.0.0.1:{self.port}"

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as client:
            yield client

    def ask(
        self, path: str = "/v1/rows", *headers: tuple[str, str], host: str | None = "", method: str = "GET"
    ) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and JSON of the answer to a request with these headers."""
        own = [] if host is None else [("Host", host or self.own)]
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in [*own, *headers])]
        with self.connected() as client:
            client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            return answer_of(client)


def answer_of(client: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and JSON of the next answer."""
    with client.makefile("rb", buffering=0) as stream:  # what comes after this answer stays for the next
        status = int(stream.readline().split()[1])
        lines = iter(lambda: stream.readline().decode("latin-1").strip(), "")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = b""
        while len(body) < int(headers["content-length"]):
            part = stream.read(int(headers["content-length"]) - len(body))
            assert part, "the answer breaks off"
            body += part
    return status, headers, json.loads(body) if headers["content-type"] == "application/json" else body
