"""Errors of nodes, and the one form in which a client sees every error.

The body is ``{"message": "...", "details": {"errorCode": <status>, "errorMessage": "<exception class>"}}``. It never holds a
traceback; those are in the node's ``chimera_status.log``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chimera.core.errors import (
    ActorLost,
    ChimeraError,
    ConfigurationError,
    ConflictError,
    NonFiniteError,
    NoSpaceError,
    RunError,
    TimeLimitError,
    TooFewWorkersError,
    UnavailableError,
)
from chimera.web.logs import status


class NotFittedError(ConflictError):
    """A prediction was asked for before anything was fitted."""


class BusyError(ConflictError):
    """The node does just now what it was asked to begin."""


class AllWorkersFailed(RunError):  # noqa: N818 - named like `ActorLost`
    """No worker answered as it should; the message says why for each."""


class BodyTooLargeError(HTTPException):
    """A request with a longer body than the node takes."""

    def __init__(self, limit_bytes: int, what: str = "CHIMERA_MAX_BODY_BYTES") -> None:
        super().__init__(413, f"the body is longer than the {limit_bytes} bytes that {what} allows")


class UnsupportedMediaTypeError(HTTPException):
    """A request whose body is of another form than the route takes."""

    def __init__(self, taken: str) -> None:
        super().__init__(415, f"this route takes bodies of the type {taken} only")


class MalformedRequestError(HTTPException):
    """A request that is no HTTP, or has a header that nothing can be made of."""

    def __init__(self, header: str) -> None:
        super().__init__(400, f"the request must have one header {header!r}, and a well-formed one")


class ForeignRequestError(HTTPException):
    """A request without a token that another machine, or a page of another site, may have sent."""

    def __init__(self) -> None:
        text = (
            "without a token only this machine is answered, at a loopback address such as 127.0.0.1 and to no page of another "
            "site: ask there, or set CHIMERA_TOKEN at the server and send it"
        )
        super().__init__(403, text)


class UnauthorizedError(HTTPException):
    """A request without the node's token, or with another one."""

    def __init__(self, *, sent: bool) -> None:
        text = (
            "the token is wrong: it is not the token of this server"
            if sent
            else "the token is missing: send the header 'Authorization: Bearer ...' with the token of this server"
        )
        super().__init__(401, text, {"WWW-Authenticate": "Bearer"})


_STATUS: tuple[tuple[type[ChimeraError], int], ...] = (
    (ConflictError, 409),
    (NoSpaceError, 507),
    (AllWorkersFailed, 503),
    (TooFewWorkersError, 503),
    (UnavailableError, 503),
    (ActorLost, 503),
    (TimeLimitError, 504),
    (NonFiniteError, 422),
    (ConfigurationError, 422),  # and so `DataError`
    (ChimeraError, 500),
)


class _Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class ErrorDetails(_Camel):
    """The status, and the class of the exception."""

    error_code: int
    error_message: str


class ErrorBody(_Camel):
    """What every error looks like."""

    message: str
    details: ErrorDetails


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return what the OpenAPI pages say about errors with these statuses."""
    told = {
        400: "The request is malformed.",
        403: "There is no token, and another machine or a page of another site may have asked.",
        401: "The token is missing or wrong.",
        409: "Not now: it does not go with what is there, or with what is under way.",
        413: "The body is too large.",
        422: "The body or the training data does not fit.",
        500: "Something unforeseen; the node's status log has more.",
        503: "No worker answered as it should, too much waits already, or another process is the coordinator.",
        504: "The answer did not come in time.",
    }
    example = {
        "message": "the column 'age' is missing",
        "details": {"errorCode": 422, "errorMessage": "DataError"},
    }
    content = {"application/json": {"example": example}}
    return {
        code: {"model": ErrorBody, "description": told[code], "content": content if code == 422 else {}}
        for code in codes
    }


def status_of(error: Exception) -> int:
    """Return the HTTP status that tells of an exception."""
    if isinstance(error, HTTPException):
        return error.status_code
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def error_response(code: int, name: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in the one form."""
    body = {"message": message, "details": {"errorCode": code, "errorMessage": name}}
    return Response(orjson.dumps(body), code, headers, "application/json")


def response_to(error: Exception) -> Response:
    """Return what a client is told of an exception; what is the node's own fault is also logged."""
    code, name = status_of(error), type(error).__name__
    if isinstance(error, HTTPException):
        return error_response(code, name, str(error.detail), error.headers)
    if isinstance(error, RequestValidationError):
        return error_response(422, name, _said(error))
    if isinstance(error, ChimeraError):
        message = " ".join(str(error).split()) or name
        if code >= 500:
            status().error("%s: %s", name, message)
        return error_response(code, name, message)
    status().error("unforeseen: %s", name, exc_info=error)
    return error_response(
        500, name, f"something unforeseen went wrong here ({name}); chimera_status.log of this node tells more"
    )


def _said(error: RequestValidationError) -> str:
    """Return one line for what pydantic found in a body."""
    found = error.errors()
    said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:3]]
    return "; ".join(said) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def _methods_at(app: FastAPI, path: str) -> list[str]:
    routes = [route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    return sorted({method for route in routes for method in route.methods or ()})


def install_error_handlers(app: FastAPI) -> None:
    """Let the app answer every exception in the one form."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {"Allow": ", ".join(_methods_at(app, request.url.path))}  # each route knows its own only
        return response_to(error)

    for kind in (ChimeraError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)
