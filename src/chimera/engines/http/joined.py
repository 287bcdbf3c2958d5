"""Requests with several calls of one actor. They save requests where calls are short.

The path of such a request names its methods, separated by commas, and its body has a list ``calls`` with a part for each. The
calls run in this order, and none between them. A failed call does not prevent the next one. The answer has a reply for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from chimera.core.errors import DataError
from chimera.engines.http import wire

MAX_CALLS = 16
"""Maximum number of calls in one request."""

Part: TypeAlias = tuple[int, str, bytes | memoryview]
"""Status, content type and body of the reply to one call."""


def methods_in(method: str) -> list[str]:
    """Return the methods that the last part of a path names."""
    return method.split(",")


def calls_in(path: str) -> int:
    """Return the number of calls in a request with this path, without a query."""
    return len(methods_in(path.rpartition("/")[2]))


def calls_of(methods: Sequence[str], request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the part of each call in the content of a request.

    Raises
    ------
    DataError : it does not have a part for each method, or too many.
    """
    if len(methods) == 1:
        return [request]
    calls = request.get("calls")
    if not isinstance(calls, list) or len(calls) != len(methods) or not all(isinstance(each, dict) for each in calls):
        raise DataError(f"the body has no list of {len(methods)} calls")
    if len(methods) > MAX_CALLS or not all(methods):
        raise DataError(f"a request has 1 to {MAX_CALLS} calls, each with a method")
    return calls


def pack_replies(replies: Sequence[Part]) -> bytes:
    """Return the body of the answer with these replies."""
    return wire.pack({"replies": [[status, kind, wire.Packed(body)] for status, kind, body in replies]})


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    replies: list[Any]


def read_replies(body: bytes | bytearray | memoryview, count: int) -> list[Part]:
    """Return the replies in an answer to ``count`` calls.

    Raises
    ------
    DataError : it has another form.
    """
    try:
        replies = msgspec.convert(wire.unpack(body, open_inner=False), _Answer).replies
    except msgspec.ValidationError as error:
        raise DataError(f"the answer has another form: {error}") from error
    if len(replies) != count:
        raise DataError(f"it has {len(replies)} replies to {count} calls")
    return [_part(reply) for reply in replies]


def _part(reply: Any) -> Part:
    if type(reply) is list and [type(each) for each in reply] == [int, str, wire.Packed]:
        status, kind, packed = reply
        return status, kind, packed.data
    raise DataError("a reply of it has no status, type and body")
