"""Reading of calls from the requests of a driver."""

from __future__ import annotations

import chimera.training.worker.driver_schema  # noqa: F401 - registers the types of drivers' messages
from chimera.core.errors import ChimeraError
from chimera.engines.http.hosting.host import Body, ReadBody, read_body
from chimera.engines.http.hosting.hosted_actor import call_arguments
from chimera.engines.http.joined import calls_of, methods_in
from chimera.federation.policy.requests import Call
from chimera.federation.policy.rules import START

_MAX_ACTORS = 10_000


class CallReader:
    """Reads calls. The kind of an actor is that of the call that began it."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], str] = {}

    def read_all(self, run: str, number: int, actor: str, method: str, body: Body) -> list[Call]:
        """Return the calls of a request, see `chimera.engines.http.joined`; their numbers begin with that of the request.

        The parameters are those of `read`.
        """
        size, methods = _size(body), methods_in(method)
        try:
            parts = calls_of(methods, read_body(body).request)
        except ChimeraError:
            return [Call(run, number, "", method or START, actor=actor, size=size)]
        read = [ReadBody(part, 0 if place else size) for place, part in enumerate(parts)]
        return [self.read(run, number + i, actor, each, read[i]) for i, each in enumerate(methods)]

    def read(self, run: str, number: int, actor: str, method: str, body: Body) -> Call:
        """Return a call. A call that cannot be read has no kind, so that every policy refuses it.

        Parameters
        ----------
        method : the method; empty to begin the actor. The body of the run's first call has its settings, under
            ``settings``.
        body : the body of the request, as `Host` receives it.
        """
        size = _size(body)
        unread = Call(run, number, "", method or START, actor=actor, size=size)
        try:
            request = read_body(body).request
            given, named, _ = call_arguments(request)
        except ChimeraError:
            return unread
        settings = None
        if not method:
            settings, kind = request.get("settings"), request.get("kind")
            if not isinstance(kind, str) or not isinstance(settings, dict | None):
                return unread
            self._kinds[run, actor] = kind
            while len(self._kinds) > _MAX_ACTORS:
                del self._kinds[next(iter(self._kinds))]
        kind = self._kinds.pop((run, actor), "")
        if kind:
            self._kinds[run, actor] = kind  # the least recently used is removed first
        return Call(run, number, kind, method or START, settings, actor, tuple(given), named, size)


def _size(body: Body) -> int:
    """Return the size of a body, in bytes."""
    return body.size if isinstance(body, ReadBody) else len(body)
