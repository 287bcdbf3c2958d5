"""Routes of the page: the page itself without data or token, and its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from chimera.inference.api.job_routes import PREFIX
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.page import data
from chimera.web.background import in_thread
from chimera.web.body import answer
from chimera.web.page.routes import page_route
from chimera.web.routing import documented, plain_router


def page_router(leader: Callable[[], Coordinator], history: data.RateHistory, logs: Path) -> APIRouter:
    """Return the route of the page's data.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    history : the rates of the last hour.
    logs : folder with the logs of each process.
    """
    router = plain_router(prefix=PREFIX, tags=["page"])

    @router.get(
        "/page",
        **documented(
            "The data of the web page; with ``history`` also the rates of the last hour.", answer={"type": "object"},
            errors=(503,),
        ),
    )  # fmt: skip
    async def page(request: Request) -> Response:
        def collected() -> dict[str, Any]:
            coordinator = leader()
            found = coordinator.call(lambda: data.page(coordinator)) | {"events": data.events(logs)}
            return found | {"edges_s": data.EDGES_S, "history": history.samples()} if with_history else found

        with_history = "history" in request.query_params
        return answer(request, await in_thread(collected))

    return router


def bare_page_router() -> APIRouter:
    """Return the route of the page itself."""
    return page_route("chimera.inference.page", "Chimera inference")
