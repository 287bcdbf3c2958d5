"""Requests for the actors of a node, without a web server: the routes below ``/v1/chimera/actors`` and ``/health``."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from chimera.core.errors import ActorLost, ConfigurationError, UnavailableError
from chimera.engines.http import wire
from chimera.engines.http.connection import JSON
from chimera.engines.http.hosting.host import Body, Host
from chimera.engines.http.hosting.hosted_actor import Done, Reply, error_reply
from chimera.engines.http.node import ACTORS

ANSWERED = (ActorLost, ConfigurationError, UnavailableError)
"""The errors of `Host` that are answers."""


def refusal(error: BaseException) -> Reply:
    """Return the answer for one of the errors `ANSWERED`."""
    return error_reply(
        404 if isinstance(error, ActorLost) else 503 if isinstance(error, UnavailableError) else 422, error
    )


def actor_of(path: str) -> tuple[str, str]:
    """Return the names of actor and method in a path, see `HostedActor.ask`; empty texts for missing names."""
    parts = urlsplit(path).path.removeprefix(ACTORS).strip("/").split("/")
    names = [unquote(part) for part in parts]
    return names[0], names[1] if len(names) == 2 else ""


def dispatch(host: Host, engine: str, verb: str, path: str, content_type: str, body: Body, done: Done) -> None:
    """Answer a request; ``done`` receives the reply, in this thread or in the actor's thread.

    Parameters
    ----------
    engine : key of the only engine whose actors may be reached.
    """
    try:
        reply = _reply(host, engine, verb, path, content_type, body, done)
    except ANSWERED as error:
        reply = refusal(error)
    except Exception as error:  # a request without an answer would block its driver
        reply = error_reply(500, error)
    if reply is not None:
        done(reply)


def _reply(host: Host, engine: str, verb: str, path: str, content_type: str, body: Body, done: Done) -> Reply | None:
    if verb == "GET" and path == "/health":
        return _json({"status": "ok", "binary": True})
    if not path.startswith(ACTORS):
        return error_reply(404, ConfigurationError(f"there is no route {path[:100]!r}"))
    actor, method = actor_of(path)
    # A path with an actor reaches that actor, whichever engine its query names.
    named = actor.partition(".")[0] if actor else parse_qs(urlsplit(path).query).get("engine", [engine])[0]
    if named != engine:
        return error_reply(403, ConfigurationError("this is no actor of the engine that asks"))
    if verb == "GET" and not actor:
        return _json({"kinds": sorted(host.kinds), "joined": True, "actors": host.actors(engine)})
    if verb == "DELETE":
        return _json({"dropped": int(host.kill(actor)) if actor else host.kill_all(engine)})
    if verb != "POST" or not actor:
        return error_reply(405, ConfigurationError(f"there is no {verb} for {path[:100]!r}"))
    if content_type != wire.CONTENT_TYPE:
        return error_reply(415, ConfigurationError(f"the body must be of type {wire.CONTENT_TYPE}"))
    if method:
        host.call(actor, method, body, done)
    else:
        host.create(actor, body, done)
    return None


def _json(content: dict[str, Any]) -> Reply:
    return Reply(200, JSON, msgspec.json.encode(content))
