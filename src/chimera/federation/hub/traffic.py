"""The traffic through a hub: a line of the audit log for each call, and sums for each run."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import lru_cache
from typing import Any

from chimera.engines.federation.wire.frames import Answer, BodyChunk, CallRequest, Done, Header
from chimera.engines.http.hosting.dispatch import actor_of
from chimera.engines.http.joined import MAX_CALLS, methods_in

_MAX_OPEN = 1000  # calls of a run without an answer; a requester must not fill the memory of the hub
_MAX_METHOD_CHARACTERS = 100
_AWAY_S, _MAX_DISCONNECTED_RUNS = 600.0, 200  # runs whose drivers are away


class _Call:
    """A request for calls that was passed on, and whose answer has not passed yet."""

    __slots__ = ("bytes_in", "bytes_out", "path")

    def __init__(self, path: str) -> None:
        self.path, self.bytes_in, self.bytes_out = path, 0, 0


class RunTraffic:
    """The traffic of one run.

    Attributes
    ----------
    requester, fingerprint : name and SHA-256 of the certificate of the requester.
    calls : number of calls that were answered.
    bytes_in, bytes_out : size of the requests and of the answers, in bytes.
    here_s : last time at which the driver was connected, in the seconds of `Traffic.drop_disconnected_runs`.
    """

    __slots__ = ("bytes_in", "bytes_out", "calls", "fingerprint", "here_s", "open", "requester")

    def __init__(self, requester: str, fingerprint: str) -> None:
        self.requester, self.fingerprint = requester, fingerprint
        self.calls = self.bytes_in = self.bytes_out = 0
        self.here_s: float | None = None
        self.open: dict[tuple[str, int], _Call] = {}

    def take(self) -> tuple[int, int, int]:
        """Return calls and bytes since the last time, and count from 0 again."""
        taken = self.calls, self.bytes_in, self.bytes_out
        self.calls = self.bytes_in = self.bytes_out = 0
        return taken


class Traffic:
    """The calls that a hub relays. It knows the headers of frames, and sizes of bodies.

    Requests without a body of their own (heartbeats, and the removal of actors) run no call of a node, and have no line.

    Parameters
    ----------
    note : adds a line to the audit log, see `AuditJournal.note`.

    Attributes
    ----------
    runs : the traffic of each run whose driver is connected, or was recently.
    """

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self.runs: dict[str, RunTraffic] = {}

    def passed(self, header: Header, size: int) -> None:
        """Count a frame that was passed on.

        Parameters
        ----------
        header : the header; that of `CallRequest` has the requester.
        size : size of the payload, in bytes.
        """
        if isinstance(header, CallRequest):
            if header.verb == "POST":
                self._asked(header, size)
        elif isinstance(header, Answer | BodyChunk | Done) and (run := self.runs.get(header.run)) is not None:
            if isinstance(header, Done):
                for number in header.settled:
                    self._end(header.run, run, (header.node, number), "unanswered")
            elif (call := run.open.get((header.node, header.number))) is not None:
                if isinstance(header, BodyChunk):
                    call.bytes_in += size
                else:
                    call.bytes_out += size
                    if header.at + size >= header.size:
                        run.calls += len(_methods(call.path))
                        self._end(header.run, run, (header.node, header.number), "relayed")

    def _asked(self, request: CallRequest, size: int) -> None:
        run = self.runs.get(request.run)
        if run is None:
            run = self.runs[request.run] = RunTraffic(request.requester, request.fingerprint)
        key = request.node, request.number
        call = run.open.get(key)
        if call is None:
            if len(run.open) >= _MAX_OPEN:
                self._end(request.run, run, next(iter(run.open)), "unanswered")
            call = run.open[key] = _Call(request.path)
        call.bytes_in += size

    def _end(self, key: str, run: RunTraffic, about: tuple[str, int], decision: str) -> None:
        """Add the lines of a request's calls. The first has the size of the request and of the answer."""
        call = run.open.pop(about, None)
        if call is None:
            return
        run.bytes_in += call.bytes_in
        run.bytes_out += call.bytes_out
        sizes = {"bytes_in": call.bytes_in, "bytes_out": call.bytes_out}
        for place, method in enumerate(_methods(call.path)):
            self._note(
                decision, requester=run.requester, fingerprint=run.fingerprint, node=about[0], run=key,
                number=about[1] + place, method=method, **(dict.fromkeys(sizes, 0) if place else sizes),
            )  # fmt: skip

    def drop_disconnected_runs(self, here: Container[str], now_s: float) -> None:
        """Drop the runs whose drivers were away for ten minutes; if there are many, also those that were away longest.

        Parameters
        ----------
        here : the runs whose drivers are connected.
        now_s : seconds of a clock that is not set back.
        """
        away: dict[str, float] = {}
        for key, run in self.runs.items():
            if key in here or run.here_s is None:
                run.here_s = now_s
            if key not in here:
                away[key] = run.here_s
        last = sorted(away, key=away.__getitem__)
        for place, key in enumerate(last):
            if now_s - away[key] > _AWAY_S or len(last) - place > _MAX_DISCONNECTED_RUNS:
                self.forget(key)

    def forget(self, run: str) -> None:
        """Add the lines of a run's calls that were not answered, and drop its sums."""
        if (passed := self.runs.get(run)) is not None:
            for about in list(passed.open):
                self._end(run, passed, about, "unanswered")
            del self.runs[run]

    def close(self) -> None:
        """Drop all runs."""
        for run in list(self.runs):
            self.forget(run)


@lru_cache(4096)
def _methods(path: str) -> tuple[str, ...]:
    """Return the names of the calls in a path; ``create`` if it creates an actor. Nodes refuse more calls than `MAX_CALLS`."""
    method = actor_of(path)[1] or "create"
    methods = methods_in(method)
    return tuple(each[:_MAX_METHOD_CHARACTERS] for each in (methods if len(methods) <= MAX_CALLS else [method]))


def about(role: Any, name: str) -> dict[str, str]:
    """Return the keys of a line about a member."""
    return {"kind": role, role: name}
