"""Hints on other versions of Chimera, in errors about messages that one side does not know."""

from __future__ import annotations

import http.client
import json
import re
from http import HTTPStatus
from typing import Any

from chimera.core.errors import ChimeraError
from chimera.core.printable import printable
from chimera.version import __version__
from chimera.web import request

REFUSALS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
"""Statuses of requests that the server may not know."""
_RUNS = "the cluster runs"
_UNKNOWN = re.compile(r"has no option|unknown (field|kind|option)|answer of .* has no")
_TRY_S = 3.0
_MAX_VERSION = 40


def restart(down: str, up: str) -> str:
    """Return the instruction to restart a cluster with the version of the client, from the commands for it."""
    return f"restart it with this version: {down!r}, then {up!r}"


def is_unknown(message: str) -> bool:
    """Return whether an error is about a field, option or kind that one side does not know."""
    return _UNKNOWN.search(message) is not None


def of_server(message: str, down: str, up: str) -> str:
    """Return the error of a server about a message that it does not know, with its version for a client of another one."""
    return (
        f"{message}; {_RUNS} Chimera {__version__}: if the client has another version, restart the cluster with it "
        f"({down!r}, then {up!r})"
    )


def compared(message: str, address: str, instruction: str) -> str:
    """Return the error of a server, with its version and that of this process if they differ.

    Parameters
    ----------
    address : address of the server, which reports its version at ``/health``.
    instruction : see `restart`.
    """
    there = "" if _RUNS in message else _version_at(address)
    if there and there != __version__:
        return f"{message}; {_RUNS} Chimera {there}, and this client is Chimera {__version__}: {instruction}"
    if there and is_unknown(message):  # a server of the same build names its version in such an error
        return f"{message}; {_RUNS} another build of Chimera {__version__} than this client: {instruction}"
    return message


def _version_at(address: str) -> str:
    """Return the version of a server; empty if it is unknown."""
    try:
        found = request.send(
            address, "GET", "/health", headers={}, body=None, timeout_s=_TRY_S, leads=lambda: True
        )  # fmt: skip
        document: Any = json.loads(_start(found))
        return printable(str(document["chimera"]))[:_MAX_VERSION]
    except (ChimeraError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _start(answer: http.client.HTTPResponse) -> bytes:
    with answer:
        return answer.read(1 << 16)
