"""The workers of an ensemble: assignment of fits, and replacement of dead workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ChimeraError, ConfigurationError, RunError
from chimera.data.assignment import checked_parts
from chimera.data.partition import PARTITIONERS
from chimera.ensembles.fitter import Fitter, Rows
from chimera.training.experiment.resolve import open_engine
from chimera.training.plugin import Named, instantiate

_PRELOADED = "chimera.ensembles.fitter", "sklearn.ensemble", "sklearn.linear_model"


class Task(NamedTuple):
    """One call of a worker.

    Attributes
    ----------
    method, arguments : method of `Fitter`, and its arguments.
    worker : index of the worker that has the data; None: any worker.
    """

    method: str
    arguments: tuple[Any, ...]
    worker: int | None = None


class WorkerPool:
    """Workers on an engine, as a context manager.

    A worker that dies is replaced by one with the same data, and its unfinished call is repeated. The result is the same,
    because a fit depends only on its seed.

    Parameters
    ----------
    engine : name or table of an engine, or an engine object, which stays open.
    inputs, targets : the data, shapes (n, ...) and (n,).
    workers : number of workers.
    partition : name or table of the division of the rows; None: all workers have all rows.
    seed : seed of the partition.
    max_restarts : maximum number of replacements.

    Raises
    ------
    ConfigurationError : ``workers`` is below 1, or the engine's nodes have their own data.
    """

    def __init__(
        self,
        engine: Named | Engine,
        inputs: NDArray[Any],
        targets: NDArray[Any],
        *,
        workers: int,
        partition: Named | None = None,
        seed: int = 0,
        max_restarts: int = 3,
    ) -> None:
        if workers < 1:
            raise ConfigurationError(f"workers must be at least 1, not {workers}")
        self._rows: list[Rows | None] = [None] * workers
        if partition is not None:
            rng = np.random.default_rng([seed, *b"partition"])
            partitioner = instantiate(PARTITIONERS, partition, Callable)
            if getattr(partitioner, "uses", "labels") == "groups":
                raise ConfigurationError(
                    "the rows of an ensemble have no groups: use another partition than 'by-group'"
                )
            self._rows = [*checked_parts(partitioner(targets, workers, rng), workers, len(targets))]
        self._restarts_left = max_restarts
        self._engine, self._owned = open_engine(engine, preload=_PRELOADED)
        try:
            if self._engine.nodes_own_data:
                raise ConfigurationError(
                    "an ensemble sends data and estimators to its workers, but the nodes of this engine have their own data"
                )
            self._data = self._engine.put(inputs), self._engine.put(targets)
            self._workers = [self._start(worker) for worker in range(workers)]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self._engine.close()
        else:
            for worker in getattr(self, "_workers", ()):
                self._engine.kill(worker)

    @property
    def sizes(self) -> list[int | None]:
        """Number of rows of each worker; None: all rows."""
        return [None if rows is None else len(rows) for rows in self._rows]

    def results(self, tasks: Sequence[Task]) -> list[Any]:
        """Run the tasks, each on the next free worker that has its data, and return the results in order.

        Raises
        ------
        ConfigurationError : an estimator cannot be fitted to the data.
        RunError : a worker died, and ``max_restarts`` workers have been replaced already.
        """
        waiting, results = deque(range(len(tasks))), [None] * len(tasks)
        running: dict[int, tuple[int, Any]] = {}  # by worker: index of the task, and ref of its result
        while waiting or running:
            self._dispatch(tasks, waiting, running)
            done, _ = self._engine.wait([ref for _, ref in running.values()])
            finished = {id(ref) for ref in done}
            for worker, (number, ref) in [item for item in running.items() if id(item[1][1]) in finished]:
                del running[worker]
                try:
                    results[number] = self._engine.get(ref)
                except ActorLost as error:
                    self._replace(worker, error)
                    waiting.appendleft(number)
                except ChimeraError:
                    raise
                except Exception as error:
                    first = str(error).strip().split("\n")[0]
                    raise ConfigurationError(f"worker {worker} cannot fit: {type(error).__name__}: {first}") from error
        return results

    def _dispatch(self, tasks: Sequence[Task], waiting: deque[int], running: dict[int, tuple[int, Any]]) -> None:
        for number in list(waiting):
            task = tasks[number]
            candidates = range(len(self._workers)) if task.worker is None else [task.worker]
            free = next((worker for worker in candidates if worker not in running), None)
            if free is not None:
                waiting.remove(number)
                running[free] = number, getattr(self._workers[free], task.method)(*task.arguments)

    def _start(self, worker: int) -> Any:
        return self._engine.spawn(Fitter, *self._data, self._rows[worker], name=f"worker {worker}")

    def _replace(self, worker: int, error: ActorLost) -> None:
        if self._restarts_left == 0:
            raise RunError(f"worker {worker} died, and no restarts are left: {error}") from error
        self._restarts_left -= 1
        self._workers[worker] = self._start(worker)
