"""What both masters have in common: settings, an app, a fit at a time, an engine that reaches the workers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from chimera.engines.http import HttpEngine
from chimera.nodes.masters import schemas
from chimera.nodes.metrics import NodeMetrics
from chimera.nodes.settings import Settings, read_settings
from chimera.nodes.table import Table
from chimera.web.app import create_app
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.errors import BusyError
from chimera.web.logs import log_latency
from chimera.web.routing import documented, plain_router


class Master(ABC):
    """A web server that asks workers.

    Parameters
    ----------
    prefix : of its routes, such as ``aggregation``.
    settings : of the node; by default as they are now in the environment and in `chimera.toml`.
    """

    def __init__(self, prefix: str, settings: Settings | None) -> None:
        self.settings = read_settings() if settings is None else settings
        self._prefix = prefix
        self._fitting = threading.Lock()

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether it can predict."""

    @abstractmethod
    def fit(self) -> dict[str, Any]:
        """Let the workers fit, and return the body of the answer; see the master."""

    @abstractmethod
    def predict(self, table: Table) -> dict[str, Any]:
        """Return the body of the answer for these rows; see the master."""

    async def predict_soon(self, table: Table) -> dict[str, Any]:
        """Do the same without holding up the event loop."""
        return await in_thread(self.predict, table)

    @abstractmethod
    def close(self) -> None:
        """End what it has started."""

    def engine(self) -> HttpEngine:
        """Return a new engine that reaches the workers, in the order of their names."""
        settings = self.settings
        return HttpEngine(
            nodes=settings.workers_urls,
            token=settings.token,
            timeout_s=settings.workers_endpoints_timeout,
            retries=settings.workers_endpoints_max_retries,
            tls_ca=None if settings.tls_cert is None else str(settings.tls_cert),
            tls_client=None if settings.tls_client_ca is None else (str(settings.tls_cert), str(settings.tls_key)),
            tls_check_host=settings.tls_cert is None,  # the workers' own certificate is all that is trusted
            keeps_rows=False,
            on_answer=lambda url, seconds: log_latency(url, "worker", seconds),
        )

    def about(self) -> dict[str, Any]:
        """Return what ``/health`` tells of it."""
        return {"name": self._prefix, "kind": "master", "type": type(self).__name__, "fitted": self.fitted}

    def app(self) -> FastAPI:
        """Return a new web application of this master."""
        title = f"Chimera {type(self).__name__}"
        return create_app(
            title=title, settings=self.settings, routers=[self.router()], about=self.about, metrics=NodeMetrics()
        )

    def router(self) -> APIRouter:
        """Return the routes ``/v1/chimera/<prefix>/fit`` and ``/v1/chimera/<prefix>/predict``."""

        @asynccontextmanager
        async def closing(_: Any) -> AsyncIterator[None]:
            try:
                yield
            finally:
                self.close()

        router = plain_router(prefix=f"/v1/chimera/{self._prefix}", tags=[self._prefix], lifespan=closing)

        @router.post(
            "/fit", **documented("Let the workers fit, each on its own data.", **schemas.FIT, errors=(409, 503))
        )
        async def fit(request: Request) -> Response:
            if not self._fitting.acquire(blocking=False):
                raise BusyError("a fit is under way: wait until it has ended")
            return answer(request, await in_thread(self._fit_and_release, request.app.state.metrics))

        @router.post("/predict", **documented("Predict for these rows.", **schemas.PREDICT, errors=(409, 422, 503)))
        async def predict(request: Request) -> Response:
            table = Table.of(*required(await read_object(request), "X_pred_columns", "X_pred_rows"))
            predicted = await self.predict_soon(table)
            request.app.state.metrics.rows_predicted(len(table.rows))
            return answer(request, predicted)

        return router

    def _fit_and_release(self, metrics: Any) -> dict[str, Any]:
        """Fit, in a thread that outlives a client who goes away."""
        well = False
        try:
            body = self.fit()
            well = True
        finally:
            self._fitting.release()
            metrics.fit_ended(well=well)
        return body
