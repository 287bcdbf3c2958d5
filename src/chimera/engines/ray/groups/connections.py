"""Messages between members of a group that do not share memory: a TCP connection for each pair of members.

torch.distributed sends messages too, but gloo ends all connections when one wait reaches its time limit, cannot poll, and needs
another round trip for each message (decisions/0070).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chimera.core.errors import ActorLost
from chimera.engines.collectives import Costs, check_count, check_ranks
from chimera.engines.ray.groups.arrivals import Arrivals, greet
from chimera.engines.ray.groups.frames import Incoming, framed, received
from chimera.engines.ray.groups.rendezvous import DEATH_CHECK_INTERVAL_S, Members, RendezvousStore
from chimera.engines.shared_memory.values import Packed

_BACKLOG = (
    1024  # connections of strangers must not displace those of members, which come while this one connects to others
)
_CONNECT_S = 10.0
_DEATH_REPORT_LIMIT_S = 3.0
_PAUSE_S = 0.05
_IN_FLIGHT_S = 0.2
_MAX_PIECES = 64  # largest number in one system call


class Connection:
    """The connection with one other member, without waiting.

    Attributes
    ----------
    sock : its socket.
    outgoing : bytes that are not sent yet.
    values : received values, each with its number among all arrivals and the bytes of its arrays.
    ended : why it cannot be used any more; empty while it can.
    """

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self.sock, self.ended = sock, ""
        self.outgoing: deque[memoryview] = deque()
        self.values: deque[tuple[int, Any, int]] = deque()
        self._incoming = Incoming(max_bytes)

    def write(self) -> None:
        """Send as much as the system takes."""
        while self.outgoing:
            try:
                sent = self.sock.sendmsg(itertools.islice(self.outgoing, _MAX_PIECES))
            except BlockingIOError:
                return
            while self.outgoing and sent >= len(self.outgoing[0]):
                sent -= len(self.outgoing.popleft())
            if sent:
                self.outgoing[0] = self.outgoing[0][sent:]

    def read(self, numbers: itertools.count[int]) -> None:
        """Receive as much as has arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if (found := self._incoming.read(self.sock.recv_into)) is not None:
                    self.values.append((next(numbers), *found))


class Connections:
    """The messages of one member of a group.

    If the sender dies within `send`, some members can receive their values and others cannot. The values of a `send` that has
    ended arrive at all members: the system delivers them, also after the death of the sender.

    Parameters
    ----------
    costs : the engine object of this actor, which counts costs.
    members : the members.
    board : where the members publish their addresses.
    host : address of this machine for the other members.
    """

    def __init__(self, costs: Costs, members: Members, board: RendezvousStore, host: str) -> None:
        self._costs, self._members = costs, members
        self._numbers, self._checked_s = itertools.count(), 0.0
        self._selector = selectors.DefaultSelector()
        max_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._peers: dict[int, Connection] = {}
        for rank, sock in _connected(members, board, host).items():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._peers[rank] = Connection(sock, max_bytes)
            self._selector.register(sock, selectors.EVENT_READ, self._peers[rank])
        self._own: deque[tuple[int, Any, int]] = deque()  # values for this member itself

    def send(self, values: Mapping[int, Any]) -> None:
        """Send the values; return when the system has taken them.

        Raises
        ------
        ActorLost : a member died meanwhile.
        """
        check_ranks(list(values), self._members.size)
        frames: dict[int, list[memoryview]] = {}  # by the id of the value, which may have many receivers
        for rank, value in values.items():
            if id(value) not in frames:
                packed = Packed(value)
                frames[id(value)] = framed(packed)
                self._costs.sent_bytes += packed.array_bytes  # counted once, like the result of a call
            pieces = frames[id(value)]
            if rank == self._members.rank:
                self._own.append((next(self._numbers), received(pieces), 0))
                continue
            peer = self._peers[rank]
            if not peer.ended:
                peer.outgoing.extend(pieces)
                self._attempt(peer, peer.write)
        busy = [self._peers[rank] for rank in values if rank != self._members.rank and self._peers[rank].outgoing]
        for peer in busy:
            if not peer.ended:
                self._selector.modify(peer.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        self._wait(lambda: not any(peer.outgoing for peer in busy))

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """See `Group.receive`."""
        check_ranks(members, self._members.size)
        count = check_count(members, count)
        queues = [self._own if rank == self._members.rank else self._peers[rank].values for rank in members]
        self._wait(lambda: sum(map(bool, queues)) >= count)
        there = [(queue[0][0], rank, queue) for rank, queue in zip(members, queues, strict=True) if queue]
        if count < len(members):
            there = sorted(there)[:count]
        found = {}
        for _, rank, queue in there:
            _, found[rank], nbytes = queue.popleft()
            self._costs.received_bytes += nbytes
        return found

    def close(self) -> None:
        """End all connections."""
        self._selector.close()
        for peer in self._peers.values():
            peer.sock.close()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Send and receive until ``done``; raise `ActorLost` if a death prevents it."""
        began_s = time.monotonic()
        self._costs.alive()
        try:
            while not done():
                try:
                    self._look()
                except ActorLost:
                    while self._exchange(_IN_FLIGHT_S):  # what was sent before the death
                        pass
                    if not done():
                        raise
                    return
                self._exchange(DEATH_CHECK_INTERVAL_S)
        finally:
            self._costs.waited_s += time.monotonic() - began_s

    def _exchange(self, within_s: float) -> bool:
        """Send and receive what is possible; return whether anything was, within a time limit."""
        events = self._selector.select(within_s)
        for key, mask in events:
            peer: Connection = key.data
            if mask & selectors.EVENT_READ:
                self._attempt(peer, lambda peer=peer: peer.read(self._numbers))  # type: ignore[misc]
            if mask & selectors.EVENT_WRITE and not peer.ended:
                self._attempt(peer, peer.write)
                if not peer.outgoing and not peer.ended:
                    self._selector.modify(peer.sock, selectors.EVENT_READ, peer)
        return bool(events)

    def _attempt(self, peer: Connection, action: Callable[[], None]) -> None:
        """Use a connection; if it ends, drop what could not be sent."""
        try:
            action()
        except OSError as error:
            peer.ended = str(error)
            peer.outgoing.clear()
            self._selector.unregister(peer.sock)
            peer.sock.close()

    def _look(self) -> None:
        """Raise `ActorLost` if a member is dead. If a connection has ended, Ray soon knows of the death."""
        ended = next((peer.ended for peer in self._peers.values() if peer.ended), "")
        deadline_s = time.monotonic() + _DEATH_REPORT_LIMIT_S
        while ended or time.monotonic() - self._checked_s > DEATH_CHECK_INTERVAL_S:
            self._members.check_for_deaths()
            self._checked_s = time.monotonic()
            if ended and self._checked_s > deadline_s:
                raise self._members.lose(f"a group of {self._members.size} actors broke apart: {ended}")
            if ended:
                time.sleep(_PAUSE_S)


def _connected(members: Members, board: RendezvousStore, host: str) -> dict[int, socket.socket]:
    """Connect with all other members, which do the same; return the sockets by rank."""
    found: dict[int, socket.socket] = {}
    secret = secrets.token_hex(16)
    with socket.create_server((host, 0), backlog=_BACKLOG) as listener, Arrivals(listener, secret) as arrivals:
        board.set(f"messages/{members.rank}", f"{host} {listener.getsockname()[1]} {secret}")
        for rank in range(members.rank):
            where, port, other_secret = board.get(f"messages/{rank}").decode().split()
            found[rank] = socket.create_connection((where, int(port)), _CONNECT_S)
            greet(found[rank], other_secret, members.rank)
        while len(found) < members.size - 1:
            arrived = arrivals.wait(DEATH_CHECK_INTERVAL_S)
            if not arrived:
                members.check_for_deaths()
            for other, sock in arrived:
                if other in found or not members.rank < other < members.size:
                    sock.close()  # no member
                else:
                    found[other] = sock
    return found
