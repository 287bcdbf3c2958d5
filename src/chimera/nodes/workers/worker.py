"""The base class of workers: settings, data, web application and server."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI

from chimera.core.address import host_in_url
from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.engines.http.hosting.host import Host
from chimera.models.model import Task
from chimera.nodes.actors import actors_router
from chimera.nodes.metrics import NodeMetrics
from chimera.nodes.settings import Settings, settings_of_program
from chimera.nodes.workers.training_data import TrainingData
from chimera.web.app import create_app, serve


class Worker(ABC):
    """A web server that owns its data.

    Parameters
    ----------
    task : the task of its targets.
    settings : settings of the node; default: from `read_settings`.

    Raises
    ------
    ConfigurationError : a setting is invalid, or the worker has no name.
    """

    def __init__(self, task: Task, settings: Settings | None) -> None:
        self.settings = settings_of_program() if settings is None else settings
        if not self.settings.worker_name:
            raise ConfigurationError(
                "the worker has no name, because there is no main file: set CHIMERA_WORKER_NAME to the name of its data folder"
            )
        self.name = self.settings.worker_name
        self.task: Task = task
        self._data = TrainingData(self.settings.train_data / self.name, task)

    @abstractmethod
    def routers(self) -> list[APIRouter]:
        """Return the routes of this kind of worker."""

    def about(self) -> dict[str, Any]:
        """Return the fields of ``/health``."""
        return {"name": self.name, "kind": "worker", "type": type(self).__name__, "task": self.task}

    def actors(self) -> Mapping[str, Callable[..., Any]]:
        """Return the classes, or factories of their objects, that a driver may use as actors in this node; default: none.

        The keys are the ``module.qualname`` of the classes in the driver. A factory is called with the driver's arguments.
        """
        return {}

    def app(self) -> FastAPI:
        """Return a new web application of this worker."""
        title, routers, kinds = f"Chimera {type(self).__name__} {self.name}", self.routers(), self.actors()
        if kinds:
            routers.append(actors_router(Host(kinds)))
        return create_app(title=title, settings=self.settings, routers=routers, about=self.about, metrics=NodeMetrics())

    def serve(self) -> None:
        """Serve on the host and port of the settings until SIGINT or SIGTERM. A worker's file calls this at its end.

        An error is printed as one line to stderr. The process exits with code 2 for invalid settings or data, 1 for other
        errors.
        """
        settings, app = self.settings, self.app()

        def report() -> None:
            host, port = app.state.address
            scheme, shown = "https" if settings.tls_cert else "http", host_in_url(host)
            sys.stderr.write(f"chimera: {self.name} listens on {scheme}://{shown}:{port}; documentation: /docs\n")

        try:
            self._check_data()  # an error is found at the start, not in the first fit of a class
            serve(app, host=settings.workers_host, port=settings.workers_port, settings=settings, on_started=report)
        except ChimeraError as error:
            sys.stderr.write(f"chimera: {self.name}: {error}\n")
            raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None

    def _check_data(self) -> None:
        """Read the data.

        Raises
        ------
        ConfigurationError : they are invalid.
        """
        try:
            self._data.read()
        except DataError as error:
            raise ConfigurationError(f"its data are invalid: {error}") from None
