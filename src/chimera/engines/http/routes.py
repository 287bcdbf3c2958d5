"""Actors that exist already, behind documented routes: how a call becomes a request, and an answer becomes a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.engines.http.connection import JSON, Answer, InvalidAnswer
from chimera.engines.http.failure import MAX_KIND_CHARACTERS, Refusal, plain_text

_MAX_TEXT_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of a routed actor. The class lists its routes: ``routes = {"gradient": Route(...)}``.

    An object of the class is in the driver. It executes methods without a route. For the others it makes the request and reads
    the answer.

    Attributes
    ----------
    verb, path : HTTP method and path of the request.
    encode : called with the object and the call's arguments. It returns the body as a dictionary of plain values and arrays, as
        `wire.Packed`, or None for a request without a body. The body is sent as JSON with arrays as lists, or as `wire` to
        nodes that accept it.
    decode : called with the object and the body of the answer, a dictionary. It returns the result of the call; an exception
        means that the answer cannot be used.
    idempotent : whether the request may be sent again when a kept connection breaks.
    """

    verb: str
    path: str
    encode: Callable[..., dict[str, Any] | wire.Packed | None]
    decode: Callable[[Any, dict[str, Any]], Any]
    idempotent: bool = False


def as_lists(array: Any) -> Any:
    """Return the JSON form of a NumPy array or number."""
    if isinstance(array, np.ndarray | np.generic):
        return array.tolist()
    raise TypeError(f"a {type(array).__name__} has no place in JSON")


def request_body(document: dict[str, Any] | wire.Packed | None, binary: bool) -> tuple[bytes, str]:
    """Return a body and its content type."""
    if document is None:
        return b"", JSON
    if isinstance(document, wire.Packed):
        if binary:
            return bytes(document.data), wire.CONTENT_TYPE
        document = document.open()
    if binary:
        return wire.pack(document), wire.CONTENT_TYPE
    return msgspec.json.encode(document, enc_hook=as_lists), JSON


def document_of(answer: Answer) -> dict[str, Any]:
    """Return the body of an answer.

    Raises
    ------
    InvalidAnswer : the body is neither a JSON object nor `wire`.
    """
    try:
        if answer.content_type == wire.CONTENT_TYPE:
            document = wire.unpack(answer.body)
        elif answer.content_type == JSON:
            document = msgspec.json.decode(answer.body)
        else:
            kind = f"of type {answer.content_type!r}" if answer.content_type else "without a type"
            raise InvalidAnswer(f"an answer {kind} with status {answer.status}: {_begin(answer.body)}")
    except (msgspec.MsgspecError, DataError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidAnswer(
            f"an answer with status {answer.status} cannot be read ({type(error).__name__}): {_begin(answer.body)}"
        ) from error
    if not isinstance(document, dict):
        raise InvalidAnswer(f"the answer is no JSON object: {_begin(answer.body)}")
    return document


def error_of(answer: Answer, where: str) -> Refusal:
    """Return the exception for an answer with status 400 or more.

    Raises
    ------
    InvalidAnswer : the answer does not have the documented form.
    """
    document = document_of(answer)
    details = document.get("details")
    name = plain_text(str(details.get("errorMessage", "")), MAX_KIND_CHARACTERS) if isinstance(details, dict) else ""
    message = str(document.get("message") or document.get("detail") or "it does not say why")
    text = " ".join(f"{where} answered {answer.status} ({name or 'an error'}): {message}".split())
    return Refusal(plain_text(text, _MAX_TEXT_CHARACTERS), answer.status, name)


def _begin(body: bytes | bytearray | memoryview) -> str:
    return f"{bytes(body[:60])!r}{'...' if len(body) > 60 else ''}"
