"""The workers of an ensemble: who does what, and who is started anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ChimeraError, ConfigurationError, RunError
from chimera.data.order import checked_parts
from chimera.data.partition import PARTITIONERS
from chimera.ensembles.fitter import Fitter, Rows
from chimera.training.experiment.resolve import open_engine
from chimera.training.plugin import Named, instantiate

_PRELOADED = "chimera.ensembles.fitter", "sklearn.ensemble", "sklearn.linear_model"


class Task(NamedTuple):
    """One call.

    Attributes
    ----------
    method, arguments : of `Fitter`.
    worker : who has the data for it; None for anybody.
    """

    method: str
    arguments: tuple[Any, ...]
    worker: int | None = None


class Crew:
    """Workers on an engine, as a context manager.

    A worker that dies is started anew with the same data, and what it had not answered is asked again: a fit depends on its
    seed alone, so nothing else changes.

    Parameters
    ----------
    engine : a name, a table or an engine; one that is given is not closed.
    inputs, targets : the data, shapes (n, ...) and (n,).
    workers : how many.
    partition : who has which rows, a name or a table; None if all have all of them.
    max_restarts : so many deaths are survived.
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
            parts = instantiate(PARTITIONERS, partition, Callable)(targets, workers, rng)
            self._rows = [*checked_parts(parts, workers, len(targets))]
        self._restarts_left = max_restarts
        self._engine, self._owned = open_engine(engine, preload=_PRELOADED)
        try:
            if self._engine.nodes_own_data:
                raise ConfigurationError(
                    "an ensemble sends its workers data and estimators; here the nodes have their own"
                )
            self._data = self._engine.put(inputs), self._engine.put(targets)
            self._workers = [self._started(worker) for worker in range(workers)]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self._engine.close()
        else:
            for worker in getattr(self, "_workers", ()):
                self._engine.kill(worker)

    @property
    def sizes(self) -> list[int | None]:
        """How many rows each worker has; None for all."""
        return [None if rows is None else len(rows) for rows in self._rows]

    def results(self, tasks: Sequence[Task]) -> list[Any]:
        """Return what the calls return, in the order of the tasks; whoever is free takes the next that he can.

        Raises
        ------
        ConfigurationError : an estimator refuses its data.
        RunError : more workers died than may be started anew.
        """
        waiting, results = deque(range(len(tasks))), [None] * len(tasks)
        running: dict[int, tuple[int, Any]] = {}  # by worker: the task, and the ref of its result
        while waiting or running:
            self._hand_out(tasks, waiting, running)
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

    def _hand_out(self, tasks: Sequence[Task], waiting: deque[int], running: dict[int, tuple[int, Any]]) -> None:
        for number in list(waiting):
            task = tasks[number]
            able = range(len(self._workers)) if task.worker is None else [task.worker]
            free = next((worker for worker in able if worker not in running), None)
            if free is not None:
                waiting.remove(number)
                running[free] = number, getattr(self._workers[free], task.method)(*task.arguments)

    def _started(self, worker: int) -> Any:
        return self._engine.spawn(Fitter, *self._data, self._rows[worker], name=f"worker {worker}")

    def _replace(self, worker: int, error: ActorLost) -> None:
        if self._restarts_left == 0:
            raise RunError(f"worker {worker} died, and no restarts are left: {error}") from error
        self._restarts_left -= 1
        self._workers[worker] = self._started(worker)
