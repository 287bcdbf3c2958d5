"""How the members of a group connect: each pair over TCP, with secrets from Ray's key-value store."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct

from chimera.engines.ray.groups.rendezvous import DEATH_CHECK_INTERVAL_S, Members, RendezvousStore

_HELLO = struct.Struct("<32sq")  # the secret of the listening member, and the rank of the connecting one
_CONNECT_S = 10.0
_HELLO_S = 3.0


def connected(members: Members, board: RendezvousStore, host: str) -> dict[int, socket.socket]:
    """Connect with all other members, which do the same; return the sockets by rank.

    Raises
    ------
    ActorLost : a member died meanwhile, or cannot be reached.
    """
    found: dict[int, socket.socket] = {}
    try:
        with socket.create_server((host, 0), backlog=members.size) as listener:
            secret = secrets.token_hex(16)
            board.set(f"messages/{members.rank}", f"{host} {listener.getsockname()[1]} {secret}")
            for rank in range(members.rank):
                where, port, other_secret = board.get(f"messages/{rank}").decode().split()
                found[rank] = socket.create_connection((where, int(port)), _CONNECT_S)
                found[rank].sendall(_HELLO.pack(other_secret.encode(), members.rank))
            _accept(members, listener, secret, found)
    except BaseException as error:
        for sock in found.values():
            sock.close()
        if isinstance(error, OSError):
            raise members.lose_to_break(error) from error
        raise
    return found


def _accept(members: Members, listener: socket.socket, secret: str, found: dict[int, socket.socket]) -> None:
    """Accept the members of higher rank."""
    listener.settimeout(DEATH_CHECK_INTERVAL_S)
    while len(found) < members.size - 1:
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            members.check_for_deaths()
            continue
        other = _rank_of(sock, secret)
        if other is None or other in found or not members.rank < other < members.size:
            sock.close()  # no member
        else:
            found[other] = sock


def _rank_of(sock: socket.socket, secret: str) -> int | None:
    """Return the rank of the member that has connected; None if it does not know the secret."""
    sock.settimeout(_HELLO_S)
    try:
        hello = sock.recv(_HELLO.size, socket.MSG_WAITALL)
    except OSError:
        return None
    if len(hello) < _HELLO.size:
        return None
    received, rank = _HELLO.unpack(hello)
    return rank if hmac.compare_digest(received, secret.encode()) else None
