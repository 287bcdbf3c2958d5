"""The pool of remote workers, and its union with the pool of the cluster's own workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from chimera.core.errors import ConfigurationError, ConflictError, UnavailableError
from chimera.engines.http.connection import Unreachable
from chimera.inference.console import warn
from chimera.inference.membership import Member
from chimera.inference.pool.pool import Pool
from chimera.inference.remote_workers.link import RemoteLink
from chimera.inference.remote_workers.protocol import Report, check_worker
from chimera.inference.remote_workers.session import AnswerBudget, Session, SessionConnection
from chimera.inference.remote_workers.versions import differences, refusal
from chimera.inference.worker.protocol import Link
from chimera.web.logs import status

MAX_WORKERS = 200
"""Maximum number of remote workers. Each has two connections, and the fixed address has 500."""
MAX_ANSWER_BYTES = 1 << 30
"""Maximum size of all answers that arrive at once."""
GONE_S = 30.0
"""A worker without a report for this long has left."""
_IN_USE_S = 3.0  # a name without a report for this long is free for another machine
_REJOIN_S = 3.0
_MAX_SHOWN = 200  # different warnings


class RemoteWorkers(Pool):
    """The workers that have dialed this coordinator."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._budget = AnswerBudget(MAX_ANSWER_BYTES)
        self._shown: set[str] = set()

    def reported(self, name: str, report: Report) -> Session | None:
        """Note a report about a worker, and return the connection with it; None once it has left.

        Raises
        ------
        ConfigurationError : the name is invalid.
        ConflictError : a worker of another machine has this name.
        UnavailableError : there are too many remote workers.
        """
        check_worker(name)
        with self._lock:
            self._drop_gone()
            found = self._sessions.get(name)
            if found is not None and found.report.machine != report.machine and found.silent_s < _IN_USE_S:
                raise ConflictError(
                    f"another machine, {found.report.host!r}, has the worker {name!r}: choose another --name"
                )
            if report.leaves:
                if found is not None and found.is_of(report):
                    self._sessions.pop(name).end("it has left")
                return None
            if found is None or not found.is_of(report):
                if found is None and len(self._sessions) >= MAX_WORKERS:
                    raise UnavailableError(f"the cluster has {MAX_WORKERS} remote workers already, which is its limit")
                if found is not None:
                    found.end("it has restarted")
                found = self._sessions[name] = Session(name, report, self._budget)
                self._warn(found)
            found.note(report)
            return found

    def check_version(self, name: str, versions: object) -> None:
        """Check that a worker's machine has this version of Chimera; show a refusal once on the console.

        Raises
        ------
        ConfigurationError : it has another one.
        """
        if reason := refusal(name, versions):
            self._show(reason, refusal(name.rpartition(".")[0], versions))
            raise ConfigurationError(reason)

    def _warn(self, session: Session) -> None:
        if found := differences(session.report.versions):
            session.other_versions = f"{session.report.host} has {found}: results of its batches may differ slightly"
            self._show(session.other_versions, session.other_versions)

    def _show(self, text: str, key: str) -> None:
        """Show the first text with a key; the workers of a machine have the same key."""
        if key not in self._shown and len(self._shown) < _MAX_SHOWN:
            self._shown.add(key)
            status().warning("%s", text)
            warn(text)

    def is_of(self, name: str, machine: str) -> bool:
        """Return whether a worker is one of a machine."""
        found = self._sessions.get(name)
        return found is not None and found.report.machine == machine

    def addresses(self) -> Mapping[str, str]:  # noqa: D102
        with self._lock:
            self._drop_gone()
            return {name: _address(session) for name, session in self._sessions.items()}

    def silent_s(self, name: str) -> float:  # noqa: D102
        found = self._sessions.get(name)
        return 0.0 if found is None else found.silent_s

    def link(self, address: str) -> Link:
        """Return a link over the worker's own connections.

        Raises
        ------
        Unreachable : at the first call, if the worker has restarted or left meanwhile.
        """
        found = next((each for each in list(self._sessions.values()) if _address(each) == address), None)
        return RemoteLink(address, SessionConnection(found) if found is not None else _NoConnection())

    def kill(self, name: str, address: str) -> bool:  # noqa: D102
        found = self._sessions.get(name)
        if found is not None and _address(found) == address:
            found.kill()
        return True

    def members(self) -> list[Member]:  # noqa: D102
        now_s = time.time()
        return [_member(each, now_s) for each in list(self._sessions.values())]

    def host(self, name: str) -> str:  # noqa: D102
        found = self._sessions.get(name)
        return "" if found is None else found.report.host

    def warning(self, name: str) -> str:  # noqa: D102
        found = self._sessions.get(name)
        return "" if found is None else found.warnings

    def rejoin_s(self, name: str) -> float:  # noqa: ARG002, D102
        return _REJOIN_S

    def shares_files(self, name: str) -> bool:  # noqa: ARG002, D102
        return False

    def _drop_gone(self) -> None:
        for name in [name for name, session in self._sessions.items() if session.silent_s > GONE_S]:
            self._sessions.pop(name).end("its machine does not report any more")


class Pools(Pool):
    """The cluster's own workers and the remote ones. Only names of remote workers have a dot.

    Parameters
    ----------
    own : the pool of the cluster's own workers.
    remote : the remote workers.
    """

    def __init__(self, own: Pool, remote: RemoteWorkers) -> None:
        self._own, self._remote, self.poll_s = own, remote, own.poll_s

    def addresses(self) -> Mapping[str, str]:  # noqa: D102
        return {**self._own.addresses(), **self._remote.addresses()}

    def silent_s(self, name: str) -> float:  # noqa: D102
        return self._of(name).silent_s(name)

    def link(self, address: str) -> Link:  # noqa: D102
        return (self._remote if address.startswith(_SCHEME) else self._own).link(address)

    def kill(self, name: str, address: str) -> bool:  # noqa: D102
        return self._of(name).kill(name, address)

    def members(self) -> list[Member]:  # noqa: D102
        return [*self._own.members(), *self._remote.members()]

    def host(self, name: str) -> str:  # noqa: D102
        return self._of(name).host(name)

    def warning(self, name: str) -> str:  # noqa: D102
        return self._of(name).warning(name)

    def rejoin_s(self, name: str) -> float:  # noqa: D102
        return self._of(name).rejoin_s(name)

    def shares_files(self, name: str) -> bool:  # noqa: D102
        return self._of(name).shares_files(name)

    def _of(self, name: str) -> Pool:
        return self._remote if "." in name else self._own


_SCHEME = "dialed:"


def _address(session: Session) -> str:
    return f"{_SCHEME}{session.name}/{session.report.machine}/{session.report.address}"


def _member(session: Session, now_s: float) -> Member:
    own, beat_at_s = session.report, now_s - session.silent_s
    state = "; ".join(filter(None, (own.state, session.warnings)))
    return Member("worker", session.name, own.host, own.pid, own.address, state, own.epoch, beat_at_s)


class _NoConnection(SessionConnection):
    """The connection with a worker that has restarted or left meanwhile."""

    def __init__(self) -> None:
        pass

    def request(self, *_: object, **__: object) -> None:  # type: ignore[override]
        raise Unreachable("the worker has restarted or left")

    def break_off(self, reason: str) -> None:
        pass
