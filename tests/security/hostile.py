"""A hostile node: a real worker whose answers are modified before they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import nn

from chimera.engines.http import wire
from chimera.engines.http.joined import methods_in, pack_replies, read_replies
from chimera.nodes.workers import TorchWorker
from nodes.served import serving, settings, write_data

ROWS, COLUMNS = 40, 4

Mangle = Callable[[str, dict[str, Any]], Any]
"""Changes the answer to a call of a method, or returns bytes to send in its place."""


class Attacker:
    """The current attack; none by default."""

    def __init__(self) -> None:
        self.mangle: Mangle | None = None


class ModifyingProxy:
    """Hands each answer of an app to a call to the attacker."""

    def __init__(self, app: ASGIApp, attacker: Attacker) -> None:
        self._app, self._attacker = app, attacker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or "/v1/chimera/actors/" not in path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def hold(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                changed = self._changed(path, body)
                headers = [(k, v) for k, v in start["headers"] if k.lower() != b"content-length"]
                start["headers"] = [*headers, (b"content-length", str(len(changed)).encode())]
                await send(start)
                await send({"type": "http.response.body", "body": changed})

        await self._app(scope, receive, hold)

    def _changed(self, path: str, body: bytes) -> bytes:
        methods = methods_in(path.rpartition("/")[2])
        if self._attacker.mangle is None or len(methods) == 1:
            return self._mangled(methods[0], body)
        replies = zip(methods, read_replies(body, len(methods)), strict=True)
        return pack_replies(
            [(status, kind, self._mangled(method, bytes(own))) for method, (status, kind, own) in replies]
        )

    def _mangled(self, method: str, body: bytes) -> bytes:
        if self._attacker.mangle is None:
            return body
        told = wire.unpack(body, open_inner=False)
        changed = self._attacker.mangle(method, told)
        return changed if isinstance(changed, bytes) else wire.pack(told if changed is None else changed)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, 3), nn.Tanh(), nn.Linear(3, 2))


def rows(number: int) -> tuple[Any, Any]:
    """Return the rows of one node, or of the driver."""
    inputs = np.random.default_rng(number).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


@contextmanager
def nodes(folder: Path, honest: int) -> Iterator[tuple[list[str], Attacker]]:
    """Serve honest nodes and one of an attacker, the last; gives their addresses."""
    attacker = Attacker()
    with ExitStack() as stack:
        urls = []
        for number in range(honest + 1):
            write_data(folder / f"tree{number}", *rows(number))
            own = settings(folder, f"tree{number}")
            app = TorchWorker(network, settings=own).app()
            if number == honest:
                # Outside of Chimera's middleware, which calls plain routes without FastAPI's.
                app.middleware_stack = ModifyingProxy(app.build_middleware_stack(), attacker)
            urls.append(stack.enter_context(serving(app, own)))
        yield urls, attacker
