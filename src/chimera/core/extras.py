"""Checks that the packages of an extra are installed, before a command starts processes."""

from __future__ import annotations

from importlib.util import find_spec

from chimera.core.errors import MissingExtraError

WEB = ("fastapi", "httptools", "orjson", "prometheus_client", "pydantic", "pydantic_settings", "starlette", "uvicorn")
"""The packages of the extra ``nodes`` that every server imports."""

FEDERATION = ("cryptography", "websockets")
"""The packages of the extra ``federation`` that hubs and nodes import."""


def require_web(what: str, extra: str = "nodes") -> None:
    """Check that the packages of a server are installed, without importing them.

    Raises
    ------
    MissingExtraError : a package is missing; ``what`` needs it, and ``extra`` installs it.
    """
    for module in WEB:
        if find_spec(module) is None:
            raise MissingExtraError(what, module, extra)


def require_federation(what: str) -> None:
    """Check that the packages of a federation are installed, without importing them.

    Raises
    ------
    MissingExtraError : a package is missing; ``what`` needs it.
    """
    for module in FEDERATION:
        if find_spec(module) is None:
            raise MissingExtraError(what, module, "federation")
