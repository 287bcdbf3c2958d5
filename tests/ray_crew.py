"""Members of a group on Ray as threads of one process, with real connections, for tests without Ray."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chimera.core.call import ActorContext
from chimera.engines.ray.groups.connections import Connections
from chimera.engines.ray.groups.rendezvous import Members


class Costs(ActorContext):
    waited_s, collective_bytes, sent_bytes, received_bytes = 0.0, 0, 0, 0


class Board:
    """Entries that all threads can read, in place of Ray's store."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._entries[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: key in self._entries)
            return self._entries[key].encode()


class Threads(Members):
    """Members that are threads of this process; the test decides which are dead."""

    def __init__(self, rank: int, size: int, dead: set[str]) -> None:
        super().__init__(Costs(), f"key {rank}", [(f"key {each}", f"member {each}") for each in range(size)])
        self._dead = dead

    def check_for_deaths(self) -> None:
        for name in self._dead:
            raise self.lose_to_death(name)


class Crew:
    def __init__(self, size: int) -> None:
        self.dead: set[str] = set()
        self.board = Board()
        self.threads = ThreadPoolExecutor(size)
        self.costs = [Costs() for _ in range(size)]
        self._size = size
        self._connected: list[Connections] = []

    def connect(self) -> list[Connections]:
        return list(self.threads.map(self.connect_one, range(self._size)))

    def connect_one(self, rank: int) -> Connections:
        board: Any = self.board
        member = Connections(self.costs[rank], self.threads_of(rank), board, "127.0.0.1")
        self._connected.append(member)
        return member

    def threads_of(self, rank: int) -> Threads:
        """Return the members of the group, as one of them sees them."""
        return Threads(rank, self._size, self.dead)

    def close(self) -> None:
        for member in self._connected:
            member.close()
        self.threads.shutdown()
