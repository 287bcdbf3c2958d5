"""The client of a cluster, whose requests survive a change of the process that answers them."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import IO, Any, TypeVar
from urllib.parse import quote

from chimera.core.errors import (
    ChimeraError,
    ConfigurationError,
    ConflictError,
    NoSpaceError,
    RunError,
    TimeLimitError,
    UnavailableError,
)
from chimera.engines.http import wire
from chimera.web import request, versions

T = TypeVar("T")

PATIENCE_S = 15.0
"""A request is retried for this long while no process answers."""
TRY_S = 3.0
"""Timeout of one attempt. An attempt ends earlier if another process becomes the leader."""
_RETRY_INTERVAL_S = 0.1


class WebClient:
    """Sends requests to the cluster's leader, and retries them while the leader is being replaced.

    Parameters
    ----------
    address : returns the leader's current address, such as ``http://127.0.0.1:40123``; None while there is no leader.
    token : the cluster's token.
    prefix : prefix of all paths.
    server_name : name of the leader in messages.
    up, down : the commands that start and stop the cluster, for messages.
    patience_s : seconds for which a request is retried.
    first_s : the same before the first answer, when the address may be wrong; default: ``patience_s``.
    """

    def __init__(
        self,
        address: Callable[[], str | None],
        token: str,
        *,
        prefix: str,
        server_name: str,
        up: str,
        down: str,
        patience_s: float = PATIENCE_S,
        first_s: float | None = None,
    ) -> None:
        self._first_s, self._is_known = patience_s if first_s is None else first_s, False
        self._address, self._token, self._patience_s = address, token, patience_s
        self._prefix, self._server_name, self._up = prefix, server_name, up
        self._restart = versions.restart(down, up)

    def request_json(
        self,
        verb: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = wire.CONTENT_TYPE,
        try_s: float = TRY_S,
    ) -> dict[str, Any]:
        """Send a request, and return the JSON object in the answer.

        Raises
        ------
        UnavailableError : no process answered within ``patience_s``.
        ChimeraError : the answer is an error; the exception has its kind and message.
        """
        found = self.with_retries(lambda: request.read(self.attempt(verb, path, body, content_type, try_s)))
        try:
            document = json.loads(found)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise RunError(f"{path}: the answer of {self._server_name} is not a JSON object")
        return _Document(document, lambda key: self._incomplete(path, key))

    def _incomplete(self, path: str, key: str) -> ChimeraError:
        """Return the exception for an answer without a key, such as that of another version."""
        return RunError(self._with_versions(f"{path}: the answer of {self._server_name} has no {key!r}"))

    def _with_versions(self, message: str) -> str:
        address = self._address()
        return message if address is None else versions.compared(message, address, self._restart)

    def with_retries(self, send: Callable[[], T]) -> T:
        """Call ``send``, and return its result. Call it again while no process answers."""
        began_s = time.monotonic()
        while True:
            try:
                return send()
            except (_NoLeaderError, request.NoAnswerError) as error:
                if time.monotonic() > began_s + (self._patience_s if self._is_known else self._first_s):
                    hint = "" if isinstance(error, _NoLeaderError) else f": is it up? ({self._up!r} starts it)"
                    raise UnavailableError(f"the cluster cannot be reached: {error}{hint}") from error
            time.sleep(_RETRY_INTERVAL_S)

    def attempt(
        self,
        verb: str,
        path: str,
        body: bytes | IO[bytes] | None = None,
        content_type: str = wire.CONTENT_TYPE,
        try_s: float = TRY_S,
    ) -> http.client.HTTPResponse:
        """Send a request to the current leader once, and return the open response."""
        address = self._address()
        if address is None:
            raise _NoLeaderError(f"it has no leader: is it up? ({self._up!r} starts it)")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            answer = request.send(
                address, verb, f"{self._prefix}{path}", headers=headers, body=body, timeout_s=try_s,
                leads=lambda: self._address() == address,
            )  # fmt: skip
        except request.NoAnswerError as error:
            raise request.NoAnswerError(f"{self._server_name} at {address} does not answer: {error}") from error
        self._is_known = True
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise self._error(answer.status, request.read(answer))
        return answer

    def _error(self, status: int, body: bytes) -> ChimeraError:
        """Return the exception for an error response."""
        message, name = f"{self._server_name} answered {status}", ""
        try:
            document = json.loads(body)
            message, name = str(document["message"]), str(document["details"]["errorMessage"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        if status == HTTPStatus.UNAUTHORIZED:
            return ConfigurationError(
                f"{self._server_name} refuses the token: give the one in the file 'token' of its folder"
            )
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return (UnavailableError if name == "QueueFullError" else _NoLeaderError)(message)
        if status in versions.REFUSALS:
            message = self._with_versions(message)
        kinds = {
            404: ConfigurationError,
            409: ConflictError,
            422: ConfigurationError,
            504: TimeLimitError,
            507: NoSpaceError,
        }
        return kinds.get(status, RunError)(message)


class _Document(dict[str, Any]):
    """An answer of a server. Access to a missing key raises the exception that ``missing`` returns."""

    def __init__(self, document: dict[str, Any], missing: Callable[[str], ChimeraError]) -> None:
        super().__init__(document)
        self._missing = missing

    def __missing__(self, key: str) -> Any:
        """Raise the exception for a missing key."""
        raise self._missing(key)


class _NoLeaderError(UnavailableError):
    """The cluster has no leader at the moment; another process will become it."""


def quoted(name: str, what: str = "job") -> str:
    """Return a name, of a job for example, as a part of a path.

    Raises
    ------
    ConfigurationError : a name cannot be empty or have a slash.
    """
    if not name or "/" in name or name in (".", ".."):
        raise ConfigurationError(f"there is no {what} {name[:100]!r}: names have at least one letter, and no '/'")
    return quote(name, safe="")
