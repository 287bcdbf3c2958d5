"""Bodies of requests and answers: JSON for general clients, the binary form of `wire` between Chimera's own nodes.

The ``Content-Type`` of a request states the form of its body. The answer is binary if ``Accept`` names the binary form, or if
``Accept`` allows any form and the request was binary; otherwise it is JSON.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.web.errors import BodyTooLargeError

JSON = "application/json"
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


async def read_object(request: Request, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the body as a dictionary, from JSON or from the binary form.

    Parameters
    ----------
    max_bytes : limit of this route, if lower than that of its server.

    Raises
    ------
    DataError : the body is not a JSON object.
    BodyTooLargeError : the body is longer than ``max_bytes``.
    """
    body = await request.body() if max_bytes is None else await _limited(request, max_bytes)
    if _is_binary(request):
        value = wire.unpack(body)
    else:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise DataError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError("the body must be a JSON object")
    return value


async def _limited(request: Request, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    received = 0
    async for part in request.stream():
        received += len(part)
        if received > max_bytes:
            raise BodyTooLargeError(max_bytes, "this route")
        parts.append(part)
    return b"".join(parts)


def required(value: dict[str, Any], *keys: str) -> list[Any]:
    """Return the values of these keys.

    Raises
    ------
    DataError : a key is missing.
    """
    missing = [key for key in keys if key not in value]
    if missing:
        raise DataError(f"the body has no {' and no '.join(map(repr, missing))}; it needs {', '.join(map(repr, keys))}")
    return [value[key] for key in keys]


def answer(request: Request, value: dict[str, Any]) -> Response:
    """Return the response with this value, in the form that the client accepts. Arrays in it must be numeric."""
    accepted = request.headers.get("accept", "*/*")
    if wire.CONTENT_TYPE in accepted or (_is_binary(request) and "*/*" in accepted):
        return Response(wire.pack(value), media_type=wire.CONTENT_TYPE)
    return Response(orjson.dumps(value, default=_plain, option=_OPTIONS), media_type=JSON)


def _is_binary(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == wire.CONTENT_TYPE


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):  # orjson cannot serialize this type or memory order itself
        return value.tolist()
    raise TypeError
