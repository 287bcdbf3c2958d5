"""The servers of the project, each with a token, served on loopback by this process; and their routes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI

from chimera.web.security import Access
from nodes.served import serving, settings, write_data
from security.attacker import TOKEN


@dataclass(frozen=True)
class Route:
    """A method of a path that an application answers."""

    method: str
    path: str
    openapi: dict[str, Any] = field(compare=False, hash=False)

    @property
    def example(self) -> dict[str, Any]:
        """The body that the pages of the server show for it."""
        contents = self.openapi.get("requestBody", {}).get("content", {})
        found = contents.get("application/json", {})
        return dict(found.get("example") or found.get("schema", {}).get("example") or {})


@dataclass(frozen=True)
class Server:
    """A server under attack."""

    name: str
    app: FastAPI
    url: str
    token: str | None

    @property
    def routes(self) -> list[Route]:
        """All that the application answers, by method."""
        return sorted(routes_of(self.app.routes), key=lambda route: (route.path, route.method))


def routes_of(routes: Any) -> set[Route]:
    """Return the routes of an application, including those of its routers."""
    found: set[Route] = set()
    for route in routes:
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        if not hasattr(route, "methods") and inner is not None:
            found |= routes_of(inner.routes)
        else:
            extra = getattr(route, "openapi_extra", None) or {}
            found |= {Route(method, route.path, extra) for method in route.methods or ()}
    return found


Made = tuple[FastAPI, Access]


def node(kind: str) -> Callable[[Path, ExitStack], Made]:
    """Return what makes the app of a worker of REST nodes."""

    def make(folder: Path, _: ExitStack) -> Made:
        from chimera.nodes import workers

        rng = np.random.default_rng(0)
        labels = rng.normal(size=20) if kind == "regression" else np.arange(20) % 2
        write_data(folder / "tree1", rng.normal(size=(20, 4)), labels)
        own = settings(folder, token=TOKEN)
        worker: Any = {
            "classification": lambda: workers.ClassificationWorker(_tree("Classifier"), settings=own),
            "regression": lambda: workers.RegressionWorker(_tree("Regressor"), settings=own),
            "sgd": lambda: workers.SGDWorker("classifier", settings=own),
            "torch": lambda: workers.TorchWorker(_network, settings=own),
        }[kind]()
        return worker.app(), own

    return make


def _tree(kind: str) -> Any:
    from sklearn import tree

    return getattr(tree, f"DecisionTree{kind}")()


def _network() -> Any:
    from torch import nn

    return nn.Linear(4, 2)


def master(kind: str) -> Callable[[Path, ExitStack], Made]:
    """Return what makes the app of a master, whose one worker is not there."""

    def make(folder: Path, _: ExitStack) -> Made:
        from chimera.nodes import AggregationMaster, ParameterServerMaster

        own = settings(folder, token=TOKEN, workers_mapped_ports=[1])
        made: Any = {
            "aggregation": lambda: AggregationMaster(settings=own),
            "parameter-server": lambda: ParameterServerMaster("classifier", settings=own),
        }[kind]()
        return made.app(), own

    return make


def jobs(folder: Path, stack: ExitStack) -> Made:
    """Return the app of a daemon of jobs, with its page, that has no workers."""
    from chimera.jobs.cluster.folder import ClusterFolder, Options
    from chimera.jobs.daemon.app import create_jobs_app
    from chimera.jobs.daemon.daemon import Daemon
    from chimera.jobs.scheduling.messages import Limits

    cluster = ClusterFolder(folder)
    cluster.create()
    (folder / "token").write_text(TOKEN)
    listener = stack.enter_context(socket.socket())
    return create_jobs_app(Daemon(cluster, Options(page=True), listener, Limits()))


def inference(folder: Path, stack: ExitStack) -> Made:
    """Return the app of a coordinator of inference, with the routes of served models, that leads and has no workers."""
    from chimera.inference.api.cluster_routes import cluster_router
    from chimera.inference.api.job_routes import jobs_router
    from chimera.inference.api.openai_routes import ERROR_FORMS, openai_router
    from chimera.inference.api.serving_routes import QuerySender, serving_router
    from chimera.inference.api.submission_routes import submissions_router
    from chimera.inference.candidate import Candidate
    from chimera.inference.cluster_folder import ClusterFolder
    from chimera.inference.journal.sqlite import SqliteJournal
    from chimera.inference.page.data import RateHistory
    from chimera.inference.page.routes import bare_page_router, page_router
    from chimera.inference.remote_workers.protocol import PATH, worker_token
    from chimera.inference.remote_workers.routes import dial_router
    from chimera.web.app import create_app
    from chimera.web.metrics import Metrics

    cluster = ClusterFolder(folder)
    cluster.create()
    (folder / "token").write_text(TOKEN)
    candidate = Candidate("c0", cluster, "fair-share", ray=False, journal=lambda: SqliteJournal(cluster.journal))
    metrics, access = Metrics(), cluster.access()
    query_sender = QuerySender(candidate.leader, metrics)
    routers = [
        jobs_router(candidate.leader, candidate.rows),
        submissions_router(candidate.leader),
        cluster_router(candidate.leader, cluster),
        dial_router(candidate.leader, candidate.remote),
        page_router(candidate.leader, RateHistory(candidate.leader), folder / "logs"),
        serving_router(query_sender),
        openai_router(query_sender),
    ]
    app = create_app(
        title="inference",
        settings=access,
        routers=routers,
        public=[bare_page_router()],
        about={"name": "c0"},
        metrics=metrics,
        error_forms=ERROR_FORMS,
        limited_tokens={f"{PATH}/": worker_token(TOKEN)},
    )
    candidate.start("http://127.0.0.1:1")
    stack.callback(candidate.stop)
    return app, access


def inference_worker(folder: Path, stack: ExitStack) -> Made:
    """Return the app of a worker of inference."""
    from chimera.inference.worker.routes import create_worker_app
    from chimera.inference.worker.worker import InferenceWorker
    from chimera.web.folder import Access as FolderAccess

    worker = InferenceWorker("w0", on_exit=lambda _: None, folder=folder)
    stack.callback(worker.close)
    access = FolderAccess(TOKEN)
    return create_worker_app(worker, access, lambda: None), access


def hub_page(folder: Path, _: ExitStack) -> Made:
    """Return the app of the page of a hub."""
    from chimera.federation.hub.page.serving import create_page_app
    from chimera.web.folder import Access as FolderAccess

    access = FolderAccess(TOKEN)
    return create_page_app(folder, access), access


SERVERS: dict[str, Callable[[Path, ExitStack], Made]] = {
    **{f"{kind} worker": node(kind) for kind in ("classification", "regression", "sgd", "torch")},
    **{f"{kind} master": master(kind) for kind in ("aggregation", "parameter-server")},
    "jobs": jobs,
    "inference": inference,
    "inference worker": inference_worker,
    "hub page": hub_page,
}


@contextmanager
def served(name: str, folder: Path) -> Iterator[Server]:
    """Serve one of `SERVERS`, with logs and data in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(chdir(folder))
        app, access = SERVERS[name](folder, stack)
        url = stack.enter_context(serving(app, access))  # type: ignore[arg-type]
        yield Server(name, app, url, access.token)
