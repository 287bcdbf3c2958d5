"""REST routes of the cluster itself: the number of its workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from chimera.core.errors import ConfigurationError
from chimera.inference.api.job_routes import PREFIX, known_fields
from chimera.inference.cluster_folder import MAX_WORKERS, ClusterFolder, Scale
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.memory import check_memory
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.routing import documented, plain_router

_WORKERS: dict[str, Any] = {
    "type": "object",
    "required": ["workers"],
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": MAX_WORKERS} for key in ("workers", "most")},
    "additionalProperties": False,
}
_SCALE: dict[str, Any] = {
    "type": "object",
    "required": ["count", "least", "most", "version"],
    "properties": {key: {"type": "integer", "minimum": 0} for key in ("count", "least", "most", "version")},
}


def cluster_router(
    leader: Callable[[], Coordinator], folder: ClusterFolder, available: Callable[[], int | None] = lambda: None
) -> APIRouter:
    """Return the routes.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    folder : folder of the cluster, with the number of workers. `chimera infer up` follows it.
    available : returns the bytes of memory for new workers; None: unknown, because they may run on other machines.
    """
    router = plain_router(prefix=PREFIX, tags=["inference"])

    @router.patch(
        "/workers",
        **documented(
            "Set the number of workers, or with ``most`` its bounds. A worker that leaves finishes its batches first.",
            body=_WORKERS, example={"workers": 6}, answer=_WORKERS, answer_example={"workers": 6, "most": 6}, errors=(422, 503),
        ),
    )  # fmt: skip
    async def set_workers(request: Request) -> Response:
        body = known_fields(await read_object(request), "workers", "most")
        (workers,) = required(body, "workers")
        least, most = checked_bounds(workers, body.get("most"))

        def apply() -> None:
            leader().check_leads()
            scale = folder.scale()
            check_memory(least, "the number of workers", available(), 0 if scale is None else scale.count)
            folder.set_bounds(least, most, time.time_ns() // 1_000_000)

        await in_thread(apply)
        return answer(request, {"workers": least, "most": most})

    @router.get(
        "/scale", **documented("The number of workers that is set, and its bounds.", answer=_SCALE, errors=(503,))
    )
    async def scale(request: Request) -> Response:
        leader().check_leads()
        found = await in_thread(folder.scale)
        return answer(request, msgspec.structs.asdict(found or Scale(0, 0, 0)))

    return router


def checked_bounds(workers: Any, most: Any = None) -> tuple[int, int]:
    """Return the bounds of a number of workers; None: it is fixed. Raise ConfigurationError if they are invalid."""
    most = workers if most is None else most
    for count in (workers, most):
        if type(count) is not int or not 0 <= count <= MAX_WORKERS:
            raise ConfigurationError(f"workers must be a whole number from 0 to {MAX_WORKERS}, not {str(count)[:40]!r}")
    if most < workers:
        raise ConfigurationError(f"workers {workers}:{most}: the upper bound must be at least the lower one")
    return workers, most
