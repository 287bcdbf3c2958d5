"""A TCP connection for each pair of members of a group that do not share memory: messages, and parts of collectives.

torch.distributed sends both too, but gloo ends all connections when one wait reaches its time limit, cannot poll, and needs
another round trip for each message and each step of a collective (decisions/0070, decisions/0082).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ActorLost
from chimera.engines.collectives import Costs, check_count, check_ranks
from chimera.engines.ray.groups.frames import Arrived, Blocks, Incoming, Step, framed, received
from chimera.engines.ray.groups.handshake import connected
from chimera.engines.ray.groups.rendezvous import DEATH_CHECK_INTERVAL_S, Members, RendezvousStore
from chimera.engines.shared_memory.values import Packed

_IN_FLIGHT_S = 0.2
_BLOCKS = 8  # unused blocks of received parts
_MAX_PIECES = 64  # largest number in one system call


class Connection:
    """The connection with one other member, without waiting.

    Attributes
    ----------
    sock : its socket.
    outgoing : bytes that are not sent yet.
    queued, sent : bytes that were ever added to ``outgoing``, and those that were sent.
    values : received messages, each with its number among all arrivals and the bytes of its arrays.
    parts : received parts of collectives, by the number of their collective.
    ended : why it cannot be used any more; empty while it can.
    """

    def __init__(self, sock: socket.socket, max_bytes: int, blocks: Blocks) -> None:
        self.sock, self.ended = sock, ""
        self.outgoing: deque[memoryview] = deque()
        self.queued = self.sent = 0
        self.values: deque[tuple[int, Any, int]] = deque()
        self.parts: dict[int, deque[Arrived]] = {}
        self._incoming = Incoming(max_bytes, blocks)

    def queue(self, pieces: Sequence[memoryview]) -> None:
        """Add bytes to those that `write` sends."""
        self.outgoing.extend(pieces)
        self.queued += sum(map(len, pieces))

    def write(self) -> None:
        """Send as much as the system takes."""
        while self.outgoing:
            try:
                sent = self.sock.sendmsg(itertools.islice(self.outgoing, _MAX_PIECES))
            except BlockingIOError:
                return
            self.sent += sent
            while self.outgoing and sent >= len(self.outgoing[0]):
                sent -= len(self.outgoing.popleft())
            if sent:
                self.outgoing[0] = self.outgoing[0][sent:]

    def read(self, numbers: itertools.count[int]) -> None:
        """Receive as much as has arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if (found := self._incoming.read(self.sock.recv_into)) is None:
                    continue
                if found.step is None:
                    self.values.append((next(numbers), found.value, found.nbytes))
                else:
                    self.parts.setdefault(found.step[0], deque()).append(found)


class Connections:
    """The connections of one member of a group with all others.

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
        self._blocks = Blocks(_BLOCKS)
        self._peers: dict[int, Connection] = {}
        for rank, sock in connected(members, board, host).items():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._peers[rank] = Connection(sock, max_bytes, self._blocks)
            self._selector.register(sock, selectors.EVENT_READ, self._peers[rank])
        self._own: deque[tuple[int, Any, int]] = deque()  # values for this member itself

    def send(self, values: Mapping[int, Any]) -> None:
        """Send the values; return when the system has taken them.

        Raises
        ------
        ActorLost : a member died meanwhile.
        """
        check_ranks(list(values), self._members.size)
        self._costs.sent_bytes += self._queue(values, None)
        busy = [self._peers[rank] for rank in values if rank != self._members.rank and self._peers[rank].outgoing]
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

    def post(self, parts: Mapping[int, NDArray[np.float32]], step: Step) -> dict[int, int]:
        """Send parts of a collective without waiting. An array may change once `sent` has returned for its end.

        Returns
        -------
        For each member, the end of its part among all bytes that this member sends to it.
        """
        self._queue(parts, step)
        return {rank: self._peers[rank].queued for rank in parts}

    def sent(self, ends: Mapping[int, int]) -> None:
        """Return when the system has taken the bytes up to these ends; raise `ActorLost` if a member died."""
        peers = [(self._peers[rank], end) for rank, end in ends.items()]
        if any(peer.sent < end for peer, end in peers):
            self._wait_for_all(lambda: all(peer.sent >= end for peer, end in peers))

    def parts(self, members: Sequence[int], number: int) -> list[Arrived]:
        """Return the next part of a collective from each of these members, when all have arrived.

        A collective has two numbers: an even one, and the next one for the pieces that members share. Parts of earlier
        collectives are dropped: the members did not agree on them.

        Raises
        ------
        ActorLost : a member died meanwhile.
        """
        peers = [self._peers[rank] for rank in members]
        for peer in peers:
            for old in [each for each in peer.parts if each < number - number % 2]:
                del peer.parts[old]
        if not all(peer.parts.get(number) for peer in peers):
            self._wait_for_all(lambda: all(peer.parts.get(number) for peer in peers))
        return [peer.parts[number].popleft() for peer in peers]

    def reuse(self, parts: Sequence[Arrived]) -> None:
        """Receive other parts into the memory of these ones, which are not read any more."""
        for part in parts:
            self._blocks.give_back(part.block)

    def close(self) -> None:
        """End all connections."""
        self._selector.close()
        for peer in self._peers.values():
            peer.sock.close()

    def _queue(self, values: Mapping[int, Any], step: Step | None) -> int:
        """Queue the values, and send what the system takes; return the array bytes, a value of many receivers once."""
        frames: dict[int, list[memoryview]] = {}  # by the id of the value
        array_bytes = 0
        for rank, value in values.items():
            if id(value) not in frames:
                packed = Packed(value)
                frames[id(value)] = framed(packed, step)
                array_bytes += packed.array_bytes
            pieces = frames[id(value)]
            if rank == self._members.rank:
                self._own.append((next(self._numbers), received(pieces), 0))
                continue
            peer = self._peers[rank]
            if peer.ended:
                continue
            waits = bool(peer.outgoing)
            peer.queue(pieces)
            self._attempt(peer, peer.write)
            if peer.outgoing and not waits:
                self._selector.modify(peer.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        return array_bytes

    def _wait_for_all(self, done: Callable[[], bool]) -> None:
        """Wait for a step of a collective. It needs all members, so a death prolongs the wait: ask Ray later, not first."""
        self._checked_s = time.monotonic()
        self._wait(done)

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
            with contextlib.suppress(OSError):
                peer.read(self._numbers)  # what it sent before it ended
            peer.ended = str(error) or type(error).__name__
            peer.outgoing.clear()
            self._selector.unregister(peer.sock)
            peer.sock.close()

    def _look(self) -> None:
        """Raise `ActorLost` if a connection has ended, or if Ray reports a member as dead."""
        if ended := next((peer.ended for peer in self._peers.values() if peer.ended), ""):
            raise self._members.lose_to_break(ended)
        if time.monotonic() - self._checked_s > DEATH_CHECK_INTERVAL_S:
            self._members.check_for_deaths()
            self._checked_s = time.monotonic()
