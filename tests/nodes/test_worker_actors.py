"""Actors of drivers in workers, of the classes that the workers allow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sklearn.linear_model import LinearRegression

import chimera
from chimera.nodes.workers import RegressionWorker
from nodes.served import LIMIT_S, ask, serving, settings


class Counter:
    def __init__(self, start: int) -> None:
        self._count = start

    def add(self, number: int) -> int:
        self._count += number
        return self._count


class NotAllowed(Counter):
    pass


class Hosting(RegressionWorker):
    def actors(self) -> Mapping[str, type]:
        return {f"{Counter.__module__}.{Counter.__qualname__}": Counter}


def test_a_driver_can_create_actors_of_the_allowed_classes_only(tmp_path: Path) -> None:
    own = settings(tmp_path, token="secret")
    worker = Hosting(LinearRegression(), settings=own)
    with serving(worker.app(), own) as url, chimera.engine("http", nodes=[url], token="secret") as engine:
        counter = engine.spawn(Counter, 40)
        assert engine.get([counter.add(1), counter.add(1)], timeout_s=LIMIT_S) == [41, 42]


def test_by_default_a_worker_hosts_no_actors(tmp_path: Path) -> None:
    worker = RegressionWorker(LinearRegression(), settings=settings(tmp_path))
    assert ask(worker.app(), "GET", "/v1/chimera/actors").status_code == 404
    app = Hosting(LinearRegression(), settings=settings(tmp_path)).app()
    assert ask(app, "GET", "/v1/chimera/actors").json()["kinds"] == [f"{Counter.__module__}.Counter"]
