"""A member that is connected to a hub."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from chimera.engines.federation.wire.frames import Budget, Hello, Progress, Refused, pack
from chimera.engines.federation.wire.port import Port
from chimera.federation.hub.missed import MissedFrames


class ConnectedMember:
    """A connected node or driver.

    Attributes
    ----------
    serial, fingerprint : serial number and SHA-256 of its certificate.
    port : sends frames to the member.
    hello : its first frame.
    progress, budget : the last report of a driver, and of a node.
    full : the port of its last frame, if too many bytes wait there; its next frame waits then.
    held : whether its next frame waits, so that the hub reads nothing from it.
    missed : the nodes of which a driver has missed frames.
    renewed_s : time of its last request for a new certificate, by a monotonic clock.
    """

    def __init__(self, role: str, name: str, serial: str, fingerprint: str, port: Port, hello: Hello) -> None:
        self.role, self.name, self.serial, self.fingerprint = role, name, serial, fingerprint
        self.port, self.hello = port, hello
        self.since_s, self.last_received_s = time.time(), time.monotonic()
        self.progress: Progress | None = None
        self.budget: Budget | None = None
        self.full: Port | None = None
        self.held = False
        self.missed = MissedFrames(port)
        self.renewed_s = -math.inf

    async def refuse(self, reason: str) -> None:
        """Send the member the reason, and end its connection."""
        await refuse(self.port.connection, reason)


async def refuse(connection: Any, reason: str) -> None:
    """Send the other side the reason, and end the connection."""
    try:
        async with asyncio.timeout(1.0):
            await connection.send(pack(Refused(reason[:300])))
            await connection.close()
    except Exception:  # noqa: S110 - the other side is gone already
        pass
    connection.transport.abort()
