"""The relay: it checks and forwards frames between drivers and nodes. It keeps no call, so a restart loses none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from chimera.core.errors import ConflictError, DataError
from chimera.engines.federation.wire.frames import (
    GREETING,
    MAX_LISTED_NODES,
    MAX_REVOKED_CERTIFICATES,
    PROTOCOL,
    REVISION,
    Acknowledged,
    Answer,
    BodyChunk,
    Budget,
    CallPending,
    CallRequest,
    ConnectedNodes,
    Done,
    Header,
    Heartbeat,
    Hello,
    Progress,
    Renew,
    Renewed,
    Revoked,
    greeted,
    pack,
    unpack,
)
from chimera.engines.federation.wire.port import Port
from chimera.federation.hub.member import ConnectedMember, refuse
from chimera.federation.hub.sightings import Seen, SeenRun
from chimera.federation.hub.traffic import Traffic

HELLO_S = 10.0
_RENEW_S = 60.0  # seconds between two requests of one connection for a certificate
_SILENT_S = 10.0  # seconds without a confirmation of sent bytes
_IDLE_TIMEOUT_S = 40.0  # seconds without any frame; a node sends a heartbeat every 10 s


class Relay:
    """The connected nodes and drivers of a hub.

    Parameters
    ----------
    traffic : counts the frames that pass.
    renew : returns a new certificate of a connected member for a request, in PEM; raises ConflictError or DataError.
    """

    def __init__(self, traffic: Traffic, renew: Callable[[ConnectedMember, bytes], bytes]) -> None:
        self._traffic, self._renew = traffic, renew
        self.nodes: dict[str, ConnectedMember] = {}
        self.drivers: dict[str, ConnectedMember] = {}
        self._revoked: dict[bytes, None] = {}
        self._left: dict[str, Seen] = {}
        self._left_drivers: dict[str, ConnectedMember] = {}

    async def serve(self, connection: Any, role: str, name: str, serial: str, fingerprint: str) -> None:
        """Serve one connection until it ends.

        Parameters
        ----------
        role, name, serial, fingerprint : identity of the other side, from its certificate.
        """
        try:
            hello = await _hello(connection)
            if not isinstance(hello, Hello):
                raise DataError("the first frame is no greeting")
            if hello.protocol != PROTOCOL:
                raise DataError(f"the hub uses version {PROTOCOL} of the protocol, not {hello.protocol}")
            if bool(hello.run) != (role == "requester"):
                raise DataError("a driver names its run, and a node none")
        except DataError as error:
            await refuse(connection, str(error))
            return
        except TimeoutError:
            connection.transport.abort()
            return
        member = ConnectedMember(role, name, serial, fingerprint, Port(connection, _SILENT_S), hello)
        if not await self._enter(member):
            return
        writing = asyncio.create_task(member.port.write())
        connection.take = partial(self._take, member)
        try:
            while True:
                frame = await connection.rest()
                while member.full is not None:
                    full, member.full = member.full, None
                    member.held = True
                    await full.room()
                    member.held, member.last_received_s = False, time.monotonic()
                self._take(member, frame)
        except DataError as error:
            await member.refuse(f"a frame that is not allowed: {error}")
        finally:
            connection.take = None
            writing.cancel()
            self._leave(member)
            connection.transport.abort()
            await asyncio.gather(writing, return_exceptions=True)

    async def _enter(self, member: ConnectedMember) -> bool:
        places, key = self._places(member)
        before = places.get(key)
        if before is not None and before.name != member.name:
            await member.refuse("this run belongs to another driver")
            return False
        for other in places.values():  # a side that waits for another one must serve this one, too
            other.port.release()
        places[key] = member
        if before is not None:
            if before.hello.boot != member.hello.boot:
                text = f"another process has connected as {member.name}; run one process for each identity"
                asyncio.ensure_future(before.refuse(text))  # noqa: RUF006 - it ends by itself within a second
            else:
                before.port.abort()
        known = [] if member.role == "node" else [(each.name, each.hello.boot) for each in self.nodes.values()]
        for place in range(0, max(len(known), 1), MAX_LISTED_NODES):
            member.port.post(pack(ConnectedNodes(dict(known[place : place + MAX_LISTED_NODES]), revision=REVISION)))
        if member.role == "node":
            self._warn(member, list(self._revoked))
            self._notify_drivers(ConnectedNodes({member.name: member.hello.boot}))
        return True

    def revoke(self, certificates: Iterable[bytes]) -> None:
        """Send all nodes the revoked certificates.

        Parameters
        ----------
        certificates : SHA-256 of all revoked certificates; the nodes know those of former calls.
        """
        new = [each for each in certificates if each not in self._revoked]
        self._revoked |= dict.fromkeys(new)
        for node in self.nodes.values():
            self._warn(node, new)

    def _warn(self, node: ConnectedMember, revoked: list[bytes]) -> None:
        for place in range(0, len(revoked) if node.hello.revision else 0, MAX_REVOKED_CERTIFICATES):
            node.port.post(pack(Revoked(revoked[place : place + MAX_REVOKED_CERTIFICATES])))

    def _leave(self, member: ConnectedMember) -> None:
        places, key = self._places(member)
        if places.get(key) is member:
            del places[key]
            if member.role == "node":
                self._left[member.name] = _seen(member, here=False)
                self._notify_drivers(ConnectedNodes({}, [member.name]))
            else:
                self._left_drivers[key] = member
        member.missed.close()

    def _places(self, member: ConnectedMember) -> tuple[dict[str, ConnectedMember], str]:
        return (self.nodes, member.name) if member.role == "node" else (self.drivers, member.hello.run)

    def _notify_drivers(self, present: ConnectedNodes) -> None:
        frame = pack(present)
        for driver in self.drivers.values():
            for name in (*present.nodes, *present.gone):
                driver.missed.forget(name)
            driver.port.post(frame)

    def _take(self, member: ConnectedMember, frame: bytes) -> bool:
        """Handle a frame of a member; return False if the queue of an earlier frame's receiver is full."""
        if member.full is not None:
            return False
        member.last_received_s = time.monotonic()
        self._forward(member, frame)
        return True

    def _forward(self, member: ConnectedMember, frame: bytes) -> None:
        """Check a frame, and forward it. Frames to a side that is away are dropped: the driver repeats its request."""
        header, payload = unpack(frame)
        if (
            isinstance(header, Heartbeat | Renew) and member.port.full
        ):  # it reads no answers, which would fill the memory
            return
        if isinstance(header, Heartbeat):
            member.port.beat()
            return
        if header == member.hello:  # it was in the request, too
            return
        if isinstance(header, Renew):
            self._answer_renewal(member, bytes(payload))
            return
        if isinstance(header, Progress) and header.run == member.hello.run:
            member.progress = header
            return
        if isinstance(header, Budget) and member.role == "node":
            member.budget = header
            return
        if (to := self._receiver(member, header)) is None or self._drop(member, to):
            return
        if isinstance(header, CallRequest):
            if header.verb == "POST" and to.name in member.missed:  # the driver will ask again
                return
            header = msgspec.structs.replace(header, requester=member.name, fingerprint=member.fingerprint)
            frame = pack(header, payload)
        to.port.post(frame)
        self._traffic.passed(header, len(payload))
        if to.port.full and self._is_alone(to):
            member.full = to.port

    def _is_alone(self, member: ConnectedMember) -> bool:
        """Return whether it is the only node or the only driver, so that a source which waits for it delays no other one."""
        return len(self.nodes if member.role == "node" else self.drivers) == 1

    def _drop(self, member: ConnectedMember, to: ConnectedMember) -> bool:
        """Drop a frame if its receiver reads too slowly while others may need the sender; return whether it was dropped.

        A sender whose frames wait for the only receiver loses nothing, and need not send them again.
        """
        driver, node = (to, member) if member.role == "node" else (member, to)
        useless = member is node and node.name in driver.missed
        if not useless and (not to.port.full or self._is_alone(to)):
            return False
        driver.missed.add(node.name, node.hello.boot, node.port)
        return True

    def _answer_renewal(self, member: ConnectedMember, request: bytes) -> None:
        now_s = time.monotonic()
        if now_s - member.renewed_s < _RENEW_S:
            member.port.post(pack(Renewed("a certificate was requested a moment ago")))
            return
        member.renewed_s = now_s
        try:
            member.port.post(pack(Renewed(), self._renew(member, request)))
        except (ConflictError, DataError) as error:
            member.port.post(pack(Renewed(str(error)[:300])))

    def _receiver(self, member: ConnectedMember, header: Header) -> ConnectedMember | None:
        if member.role == "node":
            if not isinstance(header, Answer | Acknowledged | CallPending) or header.node != member.name:
                raise DataError("a node answers for itself only")
            return self.drivers.get(header.run)
        if not isinstance(header, CallRequest | BodyChunk | Acknowledged | Done) or header.run != member.hello.run:
            raise DataError("a driver calls in its own run only")
        return self.nodes.get(header.node)

    def members(self) -> list[ConnectedMember]:
        """Return all connected nodes and drivers."""
        return [*self.nodes.values(), *self.drivers.values()]

    def close_idle(self) -> None:
        """Close the connections that no longer send anything, other than those from which the hub does not read."""
        before_s = time.monotonic() - _IDLE_TIMEOUT_S
        for member in self.members():
            if member.last_received_s < before_s and not member.held:
                member.port.abort()

    def runs(self) -> list[SeenRun]:
        """Return the runs that are connected, and those that have left since the last call."""
        left, self._left_drivers = self._left_drivers, {}
        return [self._seen_run(key, member) for key, member in (left | self.drivers).items()]

    def _seen_run(self, key: str, member: ConnectedMember) -> SeenRun:
        passed, progress = self._traffic.runs.get(key), member.progress
        about = (
            ("", "", 0, None, False)
            if progress is None
            else (progress.strategy, progress.model, progress.rounds, progress.fraction, progress.ended)
        )
        return SeenRun(key, member.name, *about, *((0, 0, 0) if passed is None else passed.take()))

    def seen(self) -> list[Seen]:
        """Return the nodes that are connected, and those that have left since the last call."""
        left, self._left = self._left, {}
        here = [_seen(each) for each in self.nodes.values()]
        return [*(seen for name, seen in left.items() if name not in self.nodes), *here]


def _seen(node: ConnectedMember, *, here: bool = True) -> Seen:
    return Seen(node.name, node.since_s, time.time(), node.hello.version, here, node.budget)


async def _hello(connection: Any) -> Header:
    """Return the first frame, from the request if it is there: this saves a round trip."""
    if value := connection.request.headers.get(GREETING):
        return greeted(value)
    async with asyncio.timeout(HELLO_S):
        return unpack(await connection.rest())[0]
