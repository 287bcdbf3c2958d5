"""How a person's process asks a cluster, whoever answers for it just now."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import IO, Any, TypeVar

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
from chimera.web import request

T = TypeVar("T")

PATIENCE_S = 15.0
"""How long a request is tried again while nobody answers."""
TRY_S = 3.0
"""How long an answer may take of one whom nobody replaces."""
_AGAIN_S = 0.1


class WebClient:
    """Sends requests, again where whoever answers is being replaced.

    Parameters
    ----------
    address : returns where the cluster answers just now, such as ``http://127.0.0.1:40123``; None while nobody does.
    token : of the cluster.
    prefix : of all paths.
    who : what messages call the process that answers.
    up : what a person types to start it.
    patience_s : how long to try.
    first_s : how long to try before the first answer; by default as long. An address may be wrong.
    """

    def __init__(
        self,
        address: Callable[[], str | None],
        token: str,
        *,
        prefix: str,
        who: str,
        up: str,
        patience_s: float = PATIENCE_S,
        first_s: float | None = None,
    ) -> None:
        self._first_s, self._is_known = patience_s if first_s is None else first_s, False
        self._address, self._token, self._patience_s = address, token, patience_s
        self._prefix, self._who, self._up = prefix, who, up

    def object(
        self,
        verb: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = wire.CONTENT_TYPE,
        try_s: float = TRY_S,
    ) -> dict[str, Any]:
        """Return the JSON object that is the answer.

        Raises
        ------
        UnavailableError : nobody answers, for as long as this client is patient.
        ChimeraError : of the kind and with the message of the answer.
        """
        document = json.loads(self.again(lambda: request.read(self.once(verb, path, body, content_type, try_s))))
        if not isinstance(document, dict):
            raise RunError(f"{path}: the answer is no JSON object")
        return document

    def again(self, ask: Callable[[], T]) -> T:
        """Return what a request returns; send it again while nobody answers."""
        began_s = time.monotonic()
        while True:
            try:
                return ask()
            except (_NobodyLeadsError, request.Unanswered) as error:
                if time.monotonic() > began_s + (self._patience_s if self._is_known else self._first_s):
                    raise UnavailableError(f"the cluster cannot be reached: {error}") from error
            time.sleep(_AGAIN_S)

    def once(
        self,
        verb: str,
        path: str,
        body: bytes | IO[bytes] | None = None,
        content_type: str = wire.CONTENT_TYPE,
        try_s: float = TRY_S,
    ) -> http.client.HTTPResponse:
        """Return the answer of whoever answers now, open."""
        address = self._address()
        if address is None:
            raise _NobodyLeadsError(f"nobody leads it: is it up? ({self._up!r})")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            answer = request.opened(
                address, verb, f"{self._prefix}{path}", headers=headers, body=body, timeout_s=try_s,
                leads=lambda: self._address() == address,
            )  # fmt: skip
        except request.Unanswered as error:
            raise request.Unanswered(f"{self._who} at {address} does not answer: {error}") from error
        self._is_known = True
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise self._said(answer.status, request.read(answer))
        return answer

    def _said(self, status: int, body: bytes) -> ChimeraError:
        """Return what was answered, as an exception."""
        message, name = f"{self._who} answered {status}", ""
        try:
            document = json.loads(body)
            message, name = str(document["message"]), str(document["details"]["errorMessage"])
        except (ValueError, KeyError, TypeError):
            pass
        if status == HTTPStatus.UNAUTHORIZED:
            return ConfigurationError(f"{self._who} refuses the token: give the one in the file 'token' of its folder")
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return (UnavailableError if name == "QueueFullError" else _NobodyLeadsError)(message)
        kinds = {
            404: ConfigurationError,
            409: ConflictError,
            422: ConfigurationError,
            504: TimeLimitError,
            507: NoSpaceError,
        }
        return kinds.get(status, RunError)(message)


class _NobodyLeadsError(UnavailableError):
    """Somebody else will answer, in a moment."""
