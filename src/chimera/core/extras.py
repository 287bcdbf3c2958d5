"""Whether the packages of an extra are installed: commands that start processes look before they start any."""

from __future__ import annotations

from importlib.util import find_spec

from chimera.core.errors import MissingExtraError

WEB = ("fastapi", "httptools", "orjson", "prometheus_client", "pydantic", "pydantic_settings", "starlette", "uvicorn")
"""The packages of the extra ``nodes`` that every server imports."""


def require_web(what: str, extra: str = "nodes") -> None:
    """Look whether the packages of a server are installed. Nothing is imported.

    Raises
    ------
    MissingExtraError : one of them is not; ``what`` needs it, and ``extra`` brings it.
    """
    for module in WEB:
        if find_spec(module) is None:
            raise MissingExtraError(what, module, extra)
