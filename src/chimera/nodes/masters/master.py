"""The base class of masters: settings, web application, one fit at a time, and the engine that calls workers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from chimera.engines.http import HttpEngine
from chimera.nodes.masters import schemas
from chimera.nodes.masters.outcome import report
from chimera.nodes.metrics import NodeMetrics
from chimera.nodes.settings import Settings, settings_of_program
from chimera.nodes.table import Table
from chimera.web.app import create_app
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.errors import BusyError
from chimera.web.logs import log_latency
from chimera.web.routing import documented, plain_router


class Master(ABC):
    """A web server that calls workers.

    Parameters
    ----------
    prefix : prefix of its routes, such as ``aggregation``.
    settings : settings of the node; default: from the environment and `chimera.toml`.
    """

    def __init__(self, prefix: str, settings: Settings | None) -> None:
        self.settings = settings_of_program() if settings is None else settings
        self._prefix = prefix
        self._fitting = threading.Lock()

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether the master can predict."""

    @abstractmethod
    def fit(self) -> dict[str, Any]:
        """Fit the workers, and return the body of the answer; see the subclass."""

    @abstractmethod
    def predict(self, table: Table) -> dict[str, Any]:
        """Return the body of the answer for these rows; see the subclass."""

    async def predict_async(self, table: Table) -> dict[str, Any]:
        """Do the same as `predict` without blocking the event loop."""
        return await in_thread(self.predict, table)

    @abstractmethod
    def close(self) -> None:
        """Stop running calls, and close connections."""

    def engine(self) -> HttpEngine:
        """Return a new engine with the workers as nodes, in the order of their names."""
        settings = self.settings
        return HttpEngine(
            nodes=settings.workers_urls,
            token=settings.token,
            timeout_s=settings.workers_endpoints_timeout,
            retries=settings.workers_endpoints_max_retries,
            tls_ca=None if settings.tls_cert is None else str(settings.tls_cert),
            tls_client=None if settings.tls_client_ca is None else (str(settings.tls_cert), str(settings.tls_key)),
            tls_check_host=settings.tls_cert is None,  # only the workers' own certificate is trusted
            keeps_rows=False,
            on_answer=lambda url, seconds: log_latency(url, "worker", seconds),
        )

    def about(self) -> dict[str, Any]:
        """Return the fields of ``/health``."""
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

        @router.post("/fit", **documented("Fit the workers, each on its own data.", **schemas.FIT, errors=(409, 503)))
        async def fit(request: Request) -> Response:
            return answer(request, await in_thread(self._fit_alone, request.app.state.metrics))

        @router.post("/predict", **documented("Predict for these rows.", **schemas.PREDICT, errors=(409, 422, 503)))
        async def predict(request: Request) -> Response:
            table = Table.of(*required(await read_object(request), "X_pred_columns", "X_pred_rows"))
            predicted = await self.predict_async(table)
            request.app.state.metrics.count_rows(len(table.rows))
            return answer(request, predicted)

        return router

    def _fit_alone(self, metrics: Any) -> dict[str, Any]:
        """Fit, unless a fit is running. The fit continues in its thread if the client disconnects."""
        if not self._fitting.acquire(blocking=False):  # here, since the thread may not start
            raise BusyError("a fit is running: wait until it has ended")
        ok = False
        try:
            body = self.fit()
            ok = True
        except Exception as error:
            report(f"the fit failed: {' '.join(str(error).split()) or type(error).__name__}", ok=False)
            raise
        finally:
            self._fitting.release()
            metrics.count_fit(ok=ok)
        return body
