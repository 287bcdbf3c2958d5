"""Errors of nodes, and the form of every error answer.

The body is ``{"message": "...", "details": {"errorCode": <status>, "errorMessage": "<exception class>"}}``. It never contains a
traceback; tracebacks are in the node's ``chimera_status.log``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

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

ErrorForm: TypeAlias = Callable[[Exception], Response]
"""A function that returns the answer to an exception, such as `response_to`."""


class NotFittedError(ConflictError):
    """A prediction was requested before a model was fitted."""


class BusyError(ConflictError):
    """The requested operation is already running."""


class AllWorkersFailed(RunError):  # noqa: N818 - named like `ActorLost`
    """No worker answered correctly; the message states the reason for each."""


class BodyTooLargeError(HTTPException):
    """A request with a body longer than the node accepts."""

    def __init__(self, limit_bytes: int, what: str = "CHIMERA_MAX_BODY_BYTES") -> None:
        super().__init__(413, f"the body is longer than the {limit_bytes} bytes that {what} allows")


class UnsupportedMediaTypeError(HTTPException):
    """A request whose body has another media type than the route accepts."""

    def __init__(self, accepted: str) -> None:
        super().__init__(415, f"this route accepts bodies of the type {accepted} only")


class MalformedRequestError(HTTPException):
    """A request that is not HTTP, or has a malformed header."""

    def __init__(self, header: str) -> None:
        super().__init__(400, f"the request must have exactly one header {header!r}, and it must be well-formed")


class ForeignRequestError(HTTPException):
    """A request without a token that may come from another machine or from a page of another site."""

    def __init__(self) -> None:
        text = (
            "without a token, requests must come from the server's own machine, to a loopback address such as 127.0.0.1, and "
            "not from a page of another site; for other requests set CHIMERA_TOKEN at the server and send it"
        )
        super().__init__(403, text)


class UnauthorizedError(HTTPException):
    """A request without the node's token, or with a wrong one."""

    def __init__(self, *, sent: bool) -> None:
        text = (
            "the token is wrong: send the token of this server"
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
    (ConfigurationError, 422),  # also its subclass `DataError`
    (ChimeraError, 500),
)


class _Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class ErrorDetails(_Camel):
    """The HTTP status, and the class of the exception."""

    error_code: int
    error_message: str


class ErrorBody(_Camel):
    """The body of an error answer."""

    message: str
    details: ErrorDetails


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of the errors with these statuses."""
    descriptions = {
        400: "The request is malformed.",
        403: "The request has no token, and may come from another machine or from a page of another site.",
        401: "The token is missing or wrong.",
        409: "The request conflicts with the present state or with a running operation.",
        413: "The body is too large.",
        422: "The body or the training data is invalid.",
        500: "An unexpected error; see the node's status log.",
        503: "No worker answered correctly, a queue is full, or another process is the coordinator.",
        504: "The answer did not arrive in time.",
        507: "The disk is full, or its last space is reserved for accepted jobs.",
    }
    example = {
        "message": "the column 'age' is missing",
        "details": {"errorCode": 422, "errorMessage": "DataError"},
    }
    content = {"application/json": {"example": example}}
    return {
        code: {"model": ErrorBody, "description": descriptions[code], "content": content if code == 422 else {}}
        for code in codes
    }


def status_of(error: Exception) -> int:
    """Return the HTTP status for an exception."""
    if isinstance(error, HTTPException):
        return error.status_code
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def error_response(code: int, name: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error answer."""
    body = {"message": message, "details": {"errorCode": code, "errorMessage": name}}
    return Response(orjson.dumps(body), code, headers, "application/json")


def response_to(error: Exception) -> Response:
    """Return the answer to a client for an exception. Errors of the node itself (status 500 and above) are also logged."""
    code, name = status_of(error), type(error).__name__
    if isinstance(error, HTTPException):
        return error_response(code, name, str(error.detail), error.headers)
    if isinstance(error, RequestValidationError):
        return error_response(422, name, _one_line(error))
    if isinstance(error, ChimeraError):
        message = " ".join(str(error).split()) or name
        if code >= 500:
            status().error("%s: %s", name, message)
        return error_response(code, name, message)
    status().error("unexpected error: %s", name, exc_info=error)
    return error_response(500, name, f"an unexpected error occurred ({name}); see chimera_status.log of this node")


def _one_line(error: RequestValidationError) -> str:
    """Return pydantic's errors about a body in one line."""
    found = error.errors()
    lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:3]]
    return "; ".join(lines) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def _methods_at(routes: Iterable[BaseRoute], path: str) -> list[str]:
    found = [route for route in routes if isinstance(route, Route) and route.path_regex.match(path)]
    return sorted({method for route in found for method in route.methods or ()})


def install_error_handlers(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Make the app answer every exception with an error in the common form.

    Parameters
    ----------
    routers : routers that the app includes; FastAPI does not list their routes among those of the app.
    """
    routes = [*app.routes, *(route for router in routers for route in router.routes)]

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            # A route knows its own methods only; the header must list those of all routes with this path.
            error.headers = {"Allow": ", ".join(_methods_at(routes, request.url.path))}
        return response_to(error)

    for kind in (ChimeraError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)
