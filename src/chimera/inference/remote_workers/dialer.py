"""The connection of one worker of this machine with a cluster that it dials.

The dialer passes requests and answers on as bytes. It has two threads, because the coordinator sends two requests at
once: one waits for results, the other sends batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from chimera.core.address import Address
from chimera.core.errors import TimeLimitError
from chimera.core.processes import kill_process
from chimera.engines.http import wire
from chimera.engines.http.connection import JSON, Answer, Connection, InvalidAnswer, Unreachable
from chimera.inference.membership import Member
from chimera.inference.remote_workers.cluster import ENDED, ClusterAddress, ClusterConnection
from chimera.inference.remote_workers.protocol import (
    GONE,
    LATE,
    MAX_MESSAGE_BYTES,
    PIECE_BYTES,
    Next,
    Piece,
    PieceRequest,
    Report,
)
from chimera.inference.remote_workers.versions import own_versions
from chimera.inference.worker.protocol import PATH as WORKER_PATH

_REQUESTS = frozenset({"adopt", "assign", "collect", "prepare", "forget", "drain", "stop"})
_TIMEOUT_S = 1.0  # timeout of a request to the worker
_BYTES_PER_S = 16 << 20  # a request with a large batch has more time
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0  # after a report without an answer; it doubles each time


class Dialer:
    """Connects one start of a worker with a cluster, until `stop`.

    Parameters
    ----------
    cluster : the address of the cluster.
    member : the worker, as a member of its machine's folder. The owner updates it.
    token : token of the worker, which is that of its machine's folder.
    machine : random text that identifies this program.

    Attributes
    ----------
    warning : what is unusual about the machine; empty: nothing. The owner updates it.
    """

    def __init__(self, cluster: ClusterAddress, member: Member, token: str, machine: str) -> None:
        self.member, self.warning = member, ""
        self._cluster, self._token, self._machine = cluster, token, machine
        self._stopped = threading.Event()
        self._handled: set[int] = set()
        self._connections = [cluster.connection() for _ in range(2)]
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name=f"chimera-dial-{member.name}", daemon=True)
            for each in self._connections
        ]

    def start(self) -> None:
        """Start the threads."""
        for each in self._threads:
            each.start()

    def stop(self, *, leaves: bool) -> None:
        """Stop the threads; with ``leaves``, report that the worker has left the cluster."""
        self._stopped.set()
        for each in self._connections:
            each.break_off(ENDED)
        for thread in self._threads:
            thread.join()
        if leaves:
            connection = self._cluster.connection()
            self._cluster.report(connection, self.member.name, self._report(leaves=True))
            connection.close()

    def _run(self, connection: ClusterConnection) -> None:
        local = Connection(Address.of(self.member.address), self._token, None, MAX_MESSAGE_BYTES)
        pieces: Iterator[Piece] = iter(())
        number: int | None = None
        pause_s = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            found = self._exchanged(connection, pieces, number)
            pieces, number = iter(()), None
            if found is not None and found.kill:
                kill_process(self.member.pid, self.member.start)
            if found is None or found.kill:
                self._stopped.wait(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            if found.request is not None:
                number = found.request.number
                self._handled.add(number)
                body = self._whole(connection, found.request)
                if body is not None:
                    pieces = _pieces(number, asked(local, found.request.what, body))
        local.close()
        connection.close()

    def _exchanged(self, connection: ClusterConnection, pieces: Iterator[Piece], number: int | None) -> Next | None:
        """Report the pieces of the answer to a request, and return what follows.

        If the connection breaks, the answer is dropped: the worker keeps its results, and the coordinator asks again.
        """
        found = None
        for piece in pieces:
            if piece.at + len(piece.data) >= piece.size:
                self._handled.discard(piece.number)
            found = self._cluster.report(connection, self.member.name, self._report(answer=piece))
            if found is None or self._stopped.is_set():
                break
        if number is not None:
            self._handled.discard(number)
        return found or self._cluster.report(connection, self.member.name, self._report())

    def _whole(self, connection: ClusterConnection, first: Piece) -> bytes | None:
        """Return the whole body of a request; None if the coordinator does not wait for its answer any more."""
        body = bytearray(first.data)
        while len(body) < first.size:
            wanted = PieceRequest(first.number, len(body))
            found = self._cluster.report(connection, self.member.name, self._report(wanted=wanted))
            more = None if found is None else found.request
            if more is None or not more.data or (more.number, more.at) != (first.number, len(body)):
                return None
            body += more.data
        return bytes(body)

    def _report(
        self, *, answer: Piece | None = None, wanted: PieceRequest | None = None, leaves: bool = False
    ) -> Report:
        own = self.member
        return Report(
            self._machine, own.address, own.host, own.pid, own.state, own.epoch,
            handled=sorted(self._handled.copy()), answer=answer, wanted=wanted, leaves=leaves,
            warning=self.warning, versions=own_versions(),
        )  # fmt: skip


def asked(local: Connection, what: str, body: bytes) -> Answer:
    """Send a request to the worker, and return its answer; an error for a request that workers do not have."""
    if what not in _REQUESTS:
        return Answer(404, JSON, b'{"message": "this version of Chimera does not know the request"}')
    timeout_s = _TIMEOUT_S + len(body) / _BYTES_PER_S
    try:
        return local.request(
            "POST", f"{WORKER_PATH}/{what}", body, wire.CONTENT_TYPE, timeout_s=timeout_s, idempotent=True
        )
    except TimeLimitError:
        return Answer(LATE, "", b"")
    except (Unreachable, InvalidAnswer):
        return Answer(GONE, "", b"")


def _pieces(number: int, answer: Answer) -> Iterator[Piece]:
    body = answer.body
    for at in range(0, max(len(body), 1), PIECE_BYTES):
        data = bytes(body[at : at + PIECE_BYTES])
        yield Piece(number, answer.content_type, answer.status, at, len(body), data)
