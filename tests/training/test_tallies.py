"""Tallies that are requested ahead cover the work before them; a later collection gets the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from chimera.engines.http import HttpEngine
from chimera.training.run.tallies import Tallies
from conformance.node import start_node

LIMIT_S = 30.0


class Counted:
    """An actor whose tally is the number of its calls since the last one."""

    hosted = False
    opened = threading.Event()

    def __init__(self) -> None:
        self._calls = 0

    def work(self) -> None:
        assert self.opened.wait(LIMIT_S)
        self._calls += 1

    def tally(self) -> int:
        calls, self._calls = self._calls, 0
        return calls


@pytest.fixture
def url() -> Iterator[str]:
    node = start_node()
    yield node.url()
    node.stop()


def test_work_after_an_early_request_of_a_tally_is_counted(url: str) -> None:
    """An advance that requested the tallies can end without a row of metrics, and the next one before it requests any."""
    Counted.opened.clear()
    with HttpEngine(nodes=[url]) as engine:
        worker: Any = engine.spawn(Counted, name="worker 0")
        cluster: Any = SimpleNamespace(workers=[worker], on_time=lambda _=None: [worker])
        tallies = Tallies(engine, engine, cluster)  # type: ignore[arg-type]
        tallies.begin()
        worker.work()
        tallies.ask_ahead()
        tallies.begin()
        last = worker.work()
        Counted.opened.set()
        engine.get(last, LIMIT_S)
        assert tallies.collect({"worker 0"}) == [1, 1]
        assert tallies.collect({"worker 0"}) == [0]
