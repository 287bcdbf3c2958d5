"""Routes whose function reads the request and builds the response itself, without pydantic; documented like other routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Scope

from chimera.engines.http import wire
from chimera.web.errors import responses

Endpoint: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]


class _Plain(APIRoute):
    """A route without dependencies to resolve and without a body to validate."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        places = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in re.findall(r"{(\w+)", path)
        ]
        extra = {**(options.pop("openapi_extra", None) or {}), **({"parameters": places} if places else {})}
        super().__init__(path, endpoint, openapi_extra=extra, **options)

    def get_route_handler(self) -> Endpoint:
        endpoint: Endpoint = self.endpoint
        return endpoint


def plain_router(**options: Any) -> APIRouter:
    """Return a router for functions ``async (request) -> Response``."""
    return APIRouter(route_class=_Plain, **options)


class Endpoints:
    """The functions of plain routes, by method and path.

    Parameters
    ----------
    routers : routers with plain routes; other routes in them are ignored.
    """

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        plain = [route for router in routers for route in router.routes if isinstance(route, _Plain)]
        pairs = [(method, route) for route in plain for method in route.methods or ()]
        self._fixed = {(method, route.path): route for method, route in pairs if "{" not in route.path}
        self._patterns = [(method, route) for method, route in pairs if "{" in route.path]

    def find(self, scope: Scope) -> Endpoint | None:
        """Return the function for a request, and set its route and path parameters; None if no plain route matches."""
        method, path = scope["method"], scope["path"]
        route = self._fixed.get((method, path))
        if route is None:
            for own, one in self._patterns:
                if own == method and (match := one.path_regex.match(path)):
                    scope["path_params"] = match.groupdict()
                    route = one
                    break
            else:
                return None
        scope["route"] = route
        endpoint: Endpoint = route.endpoint
        return endpoint


def documented(
    summary: str,
    *,
    body: dict[str, Any] | None = None,
    answer: dict[str, Any],
    errors: tuple[int, ...] = (),
    answer_example: Any = None,
    example: Any = None,
    binary: bool = True,
    media: str = "application/json",
) -> dict[str, Any]:
    """Return the options of a plain route that describe it in OpenAPI.

    Parameters
    ----------
    summary : one line.
    body, example : JSON schema of the request's body, if it has one, and an example.
    answer, answer_example : JSON schema of the answer, and an example.
    errors : statuses of its errors besides 400, 401, 403, 413 and 500.
    binary : whether body and answer may also have the binary form of `wire`.
    media : media type of the answer.
    """
    extra: dict[str, Any] = (
        {"requestBody": {"required": True, "content": _content(body, example, binary)}} if body else {}
    )
    ok = {"description": "Done.", "content": _content(answer, answer_example, binary, media)}
    return {
        "summary": summary,
        "openapi_extra": extra,
        "responses": {200: ok, **responses(400, 401, 403, 413, 500, *errors)},
        "response_model": None,
    }


def _content(schema: dict[str, Any], example: Any, binary: bool, media: str = "application/json") -> dict[str, Any]:
    content: dict[str, Any] = {media: {"schema": schema, "example": example}}
    if binary:
        content[wire.CONTENT_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    return content
