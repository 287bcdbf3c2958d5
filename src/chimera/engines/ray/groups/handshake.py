"""How the members of a group connect: each pair over TCP, with secrets from Ray's key-value store."""

from __future__ import annotations

import secrets
import socket

from chimera.engines.ray.groups.arrivals import Arrivals, greet
from chimera.engines.ray.groups.rendezvous import DEATH_CHECK_INTERVAL_S, Members, RendezvousStore

_BACKLOG = (
    1024  # connections of strangers must not displace those of members, which come while this one connects to others
)
_CONNECT_S = 10.0


def connected(members: Members, board: RendezvousStore, host: str) -> dict[int, socket.socket]:
    """Connect with all other members, which do the same; return the sockets by rank.

    Raises
    ------
    ActorLost : a member died meanwhile, or cannot be reached.
    """
    found: dict[int, socket.socket] = {}
    try:
        _connect(members, board, host, found)
    except BaseException as error:
        for sock in found.values():
            sock.close()
        if isinstance(error, OSError):
            raise members.lose_to_break(error) from error
        raise
    return found


def _connect(members: Members, board: RendezvousStore, host: str, found: dict[int, socket.socket]) -> None:
    """Connect to the members of lower rank, and accept those of higher rank."""
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
