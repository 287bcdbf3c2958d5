"""What all workers have in common: settings, data, an app, a server."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.engines.http.host import Host
from chimera.models.model import Task
from chimera.nodes.actors import actors_router
from chimera.nodes.metrics import NodeMetrics
from chimera.nodes.settings import Settings, read_settings
from chimera.nodes.workers.training_data import TrainingData
from chimera.web.app import create_app, serve


class Worker(ABC):
    """A web server that owns its data.

    Parameters
    ----------
    task : what its targets are.
    settings : of the node; by default as `read_settings` finds them now.

    Raises
    ------
    ConfigurationError : a setting that cannot be used, or no name.
    """

    def __init__(self, task: Task, settings: Settings | None) -> None:
        self.settings = read_settings() if settings is None else settings
        if not self.settings.worker_name:
            raise ConfigurationError(
                "a worker is named like its file, and here is none: set CHIMERA_WORKER_NAME to the name of its data folder"
            )
        self.name = self.settings.worker_name
        self.task: Task = task
        self._data = TrainingData(self.settings.train_data / self.name, task)

    @abstractmethod
    def routers(self) -> list[APIRouter]:
        """Return the routes of this kind of worker."""

    def about(self) -> dict[str, Any]:
        """Return what ``/health`` tells of it."""
        return {"name": self.name, "kind": "worker", "type": type(self).__name__, "task": self.task}

    def actors(self) -> Mapping[str, Callable[..., Any]]:
        """Return the classes (or what makes their objects, from the driver's arguments) that a driver may have here as actors.

        By the ``module.qualname`` of the class in the driver; nothing else can be made here. By default there are none.
        """
        return {}

    def app(self) -> FastAPI:
        """Return a new web application of this worker."""
        title, routers, kinds = f"Chimera {type(self).__name__} {self.name}", self.routers(), self.actors()
        if kinds:
            routers.append(actors_router(Host(kinds)))
        return create_app(title=title, settings=self.settings, routers=routers, about=self.about, metrics=NodeMetrics())

    def serve(self) -> None:
        """Serve on the host and port of the settings until SIGINT or SIGTERM. For the end of a worker's file.

        A mistake in the settings is one line on stderr, and exit code 2.
        """
        settings, app = self.settings, self.app()

        def tell() -> None:
            host, port = app.state.address
            scheme, shown = "https" if settings.tls_cert else "http", f"[{host}]" if ":" in host else host
            sys.stderr.write(f"chimera: {self.name} listens on {scheme}://{shown}:{port}; its pages are at /docs\n")

        try:
            serve(app, host=settings.workers_host, port=settings.workers_port, settings=settings, on_started=tell)
        except ChimeraError as error:
            sys.stderr.write(f"chimera: {self.name}: {error}\n")
            raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None
