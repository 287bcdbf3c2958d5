"""Routes of the page: the page itself without data or token, and its data."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from chimera.inference.api.job_routes import PREFIX
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.page import data
from chimera.web.background import in_thread
from chimera.web.body import answer
from chimera.web.routing import documented, plain_router
from chimera.web.security import PAGE_POLICY


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
    """Return the route of the page itself; its script requests the data with the token."""
    router = plain_router()
    page = files("chimera.inference.page").joinpath("page.html").read_bytes()

    @router.get("/", include_in_schema=False)
    async def bare(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})

    return router
