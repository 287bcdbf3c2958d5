"""Workers that are local processes and answer over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec

from chimera.core.address import Address
from chimera.core.errors import DataError, RunError
from chimera.core.processes import kill_process
from chimera.engines.http import wire
from chimera.engines.http.connection import Answer, Connection, InvalidAnswer, Unreachable
from chimera.engines.http.routes import document_of
from chimera.inference.membership import Member, Members
from chimera.inference.pool.pool import Pool
from chimera.inference.worker.protocol import PATH, Assignment, BatchId, Collected, Link, StaleEpoch, WorkerState

_MAX_BYTES = 1 << 30
_BYTES_PER_S = 16 << 20  # minimum rate of a request with a large batch

T = TypeVar("T")


class Requests(Protocol):
    """The methods of `chimera.engines.http.connection.Connection` that a link needs."""

    def request(
        self, verb: str, path: str, body: bytes, content_type: str, *, timeout_s: float, idempotent: bool
    ) -> Answer:
        """Send a request, and return the answer."""

    def break_off(self, reason: str) -> None:
        """Abort the current request, from another thread. This request and all later ones raise `Unreachable`."""

    def close(self) -> None:
        """Close the connection."""


class HttpLink(Link):
    """A link over one keep-alive connection.

    Parameters
    ----------
    address : address of the worker.
    connection : sends the requests to it.
    timeout_s : maximum seconds until an answer, including the time that `collect` waits.
    """

    def __init__(self, address: str, connection: Requests, *, timeout_s: float = 1.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._closed, self._busy = False, threading.Lock()
        self._connection = connection

    @classmethod
    def to(cls, address: str, token: str | None, *, timeout_s: float = 1.0) -> HttpLink:
        """Return a link to the worker at ``http://host:port``, which needs a token."""
        return cls(address, Connection(Address.of(address), token, None, _MAX_BYTES), timeout_s=timeout_s)

    def adopt(self, epoch: int, owner: str) -> WorkerState:  # noqa: D102
        return self._call("adopt", {"epoch": epoch, "owner": owner}, WorkerState)

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:  # noqa: D102
        rows = [msgspec.structs.asdict(one) for one in assignments]
        return self._call("assign", {"epoch": epoch, "assignments": rows}, WorkerState)

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:  # noqa: D102
        body = {"epoch": epoch, "done": [list(batch_id) for batch_id in done], "wait_s": wait_s}
        return self._call("collect", body, Collected)

    def prepare(self, epoch: int, models: Sequence[dict[str, Any]]) -> None:  # noqa: D102
        self._call("prepare", {"epoch": epoch, "models": list(models)}, dict)

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:  # noqa: D102
        return self._call("forget", {"epoch": epoch, "jobs": list(jobs)}, WorkerState)

    def drain(self, epoch: int) -> WorkerState:  # noqa: D102
        return self._call("drain", {"epoch": epoch}, WorkerState)

    def stop(self, epoch: int) -> None:  # noqa: D102
        self._call("stop", {"epoch": epoch}, dict)

    def close(self) -> None:  # noqa: D102
        self._closed = True
        self._connection.break_off("the link was closed")
        self._close_if_idle()

    def _call(self, verb: str, body: dict[str, Any], kind: type[T]) -> T:
        where = f"the worker at {self.address}"
        try:
            answer = self._request(verb, body, self._timeout_s)
            if answer.status != HTTPStatus.OK:
                raise _refusal(where, answer.status, document_of(answer))
            return msgspec.convert(wire.unpack(answer.body), kind)
        except (InvalidAnswer, DataError, msgspec.ValidationError) as error:
            raise RunError(f"{where} sent an invalid answer to {verb}: {error}") from error
        finally:
            if self._closed:
                self._close_if_idle()

    def _request(self, verb: str, body: dict[str, Any], timeout_s: float) -> Answer:
        packed = wire.pack(body)
        timeout_s += len(packed) / _BYTES_PER_S
        with self._busy:
            try:
                return self._connection.request(
                    "POST", f"{PATH}/{verb}", packed, wire.CONTENT_TYPE, timeout_s=timeout_s, idempotent=True
                )
            except InvalidAnswer as error:  # the worker died while it answered, or another program listens there now
                raise Unreachable(str(error)) from error

    def _close_if_idle(self) -> None:
        """Close the connection, unless a request is in progress; its thread closes it then."""
        if self._busy.acquire(blocking=False):
            self._connection.close()
            self._busy.release()


class HttpPool(Pool):
    """The workers in the folder of members.

    Parameters
    ----------
    members : members of the cluster.
    token : token of the cluster.
    """

    def __init__(self, members: Members, token: str) -> None:
        self._members, self._token = members, token
        self._silent_s: dict[str, float] = {}

    def addresses(self) -> Mapping[str, str]:  # noqa: D102
        there = [one for one in self._members.members() if one.role == "worker"]
        self._silent_s = {one.name: one.heartbeat_age_s() for one in there}
        return {one.name: one.address for one in there}

    def silent_s(self, name: str) -> float:  # noqa: D102
        return self._silent_s.get(name, 0.0)

    def link(self, address: str) -> HttpLink:  # noqa: D102
        return HttpLink.to(address, self._token)

    def kill(self, name: str, address: str) -> bool:  # noqa: D102
        for one in self._members.members():
            if (one.name, one.address, one.host) == (name, address, socket.gethostname()):
                kill_process(one.pid, one.start)
                return True
        return False

    def members(self) -> list[Member]:  # noqa: D102
        return []

    def host(self, name: str) -> str:  # noqa: ARG002, D102
        return socket.gethostname()


def _refusal(where: str, status: int, document: dict[str, Any]) -> RunError:
    text = f"{where} answered {status}: {document.get('message', 'no reason')}"
    details = document.get("details")
    kind = details.get("errorMessage") if isinstance(details, dict) else None
    return StaleEpoch(text) if kind == StaleEpoch.__name__ else RunError(text)
