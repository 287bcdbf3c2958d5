"""A master that lets each worker fit a model of its own, and averages what they predict: bagging."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from chimera.core.errors import ChimeraError, DataError
from chimera.engines.http import HttpEngine
from chimera.engines.http.failure import Refusal
from chimera.nodes.masters.averaging import averaged
from chimera.nodes.masters.estimator_actor import EstimatorActor, question
from chimera.nodes.masters.master import Master
from chimera.nodes.masters.outcome import Failing, outcome, say_fitted
from chimera.nodes.settings import Settings
from chimera.nodes.table import Table
from chimera.web.errors import AllWorkersFailed, NotFittedError


class AggregationMaster(Master):
    """Asks all workers at once, and goes on with those that answer.

    Each has ``CHIMERA_WORKERS_ENDPOINTS_TIMEOUT`` seconds and ``CHIMERA_WORKERS_ENDPOINTS_MAX_RETRIES`` retries. One that does
    not answer is named, with the reason, in the answer, in the status log and on stderr, and asked again the next time.

    Parameters
    ----------
    settings : of the node; by default as they are now in the environment and in `chimera.toml`.
    """

    def __init__(self, *, settings: Settings | None = None) -> None:
        super().__init__("aggregation", settings)
        self._lock = threading.Lock()
        self._engine: HttpEngine | None = None
        self._workers: dict[str, Any] = {}
        self._fitted = False
        self._failing = Failing("predict")

    @property
    def fitted(self) -> bool:
        """Whether a worker has been fitted by this master."""
        return self._fitted

    def fit(self) -> dict[str, Any]:
        """Let all workers fit, and return the body of the answer; one success is success.

        Raises
        ------
        AllWorkersFailed : says why for each.
        """
        engine, refs = self._asked("fit")
        engine.wait(list(refs.values()), count=len(refs))
        _, failures = self._answers(engine, refs)
        why = {name: str(error) for name, error in failures.items()}
        say_fitted(refs, why)
        if len(failures) == len(refs):
            raise AllWorkersFailed(f"no worker was fitted: {_told(failures)}")
        self._fitted = True
        return {"fit": "ok", "workers": outcome("fit", refs, why)}

    def predict(self, table: Table) -> dict[str, Any]:
        """Return the mean of what the workers predict for these rows, of those that answer.

        Raises
        ------
        NotFittedError : no worker is fitted.
        DataError : nobody predicts, and some because the rows do not fit, in their columns say.
        AllWorkersFailed : says why for each.
        """
        engine, refs = self._asked("predict", question(table))
        engine.wait(list(refs.values()), count=len(refs))
        return self._mean(engine, refs, len(table.rows))

    async def predict_soon(self, table: Table) -> dict[str, Any]:
        """Do the same while the event loop goes on."""
        engine, refs = self._asked("predict", question(table))
        loop = asyncio.get_running_loop()
        there = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(there.set)

        engine.when_done(list(refs.values()), wake)
        await there.wait()
        return self._mean(engine, refs, len(table.rows))

    def _mean(self, engine: HttpEngine, refs: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return the mean of what the workers predicted; their refs stand."""
        predictions, failures = self._answers(engine, refs)
        if not predictions:
            self._failing.note(failures, ())
            refused = [error for error in failures.values() if isinstance(error, Refusal)]
            if refused and all(error.name == NotFittedError.__name__ for error in refused):
                raise NotFittedError(
                    f"no worker is fitted yet: POST /v1/chimera/aggregation/fit first ({_told(failures)})"
                )
            if unfit := [str(error) for error in refused if error.status == 422]:
                raise DataError("; ".join(unfit))
            raise AllWorkersFailed(f"no worker has predicted: {_told(failures)}")
        try:
            body, left_out = averaged(predictions, rows)
        except DataError as error:
            raise AllWorkersFailed(f"no worker has predicted what can be used: {error}") from error
        why = {name: str(error) for name, error in failures.items()}
        why |= {name: f"its prediction is left out: {reason}" for name, reason in left_out.items()}
        self._failing.note(why, [name for name in refs if name not in why])
        return body | {"workers": outcome("predict", refs, why)}

    def close(self) -> None:
        """Close the connections to the workers."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
            self._engine, self._workers = None, {}

    def _asked(self, method: str, *args: Any) -> tuple[HttpEngine, dict[str, Any]]:
        """Call all workers, and return the refs of their answers by the workers' names."""
        engine, workers = self._reached()
        values = [engine.put(value) for value in args]
        return engine, {name: getattr(worker, method)(*values) for name, worker in workers.items()}

    def _answers(self, engine: HttpEngine, refs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, ChimeraError]]:
        """Return what the workers answered, and how the others failed, by their names."""
        answers: dict[str, Any] = {}
        failures: dict[str, ChimeraError] = {}
        for name, ref in refs.items():
            try:
                answers[name] = engine.get(ref)
            except ChimeraError as error:
                failures[name] = error
        return answers, failures

    def _reached(self) -> tuple[HttpEngine, dict[str, Any]]:
        with self._lock:
            if self._engine is None:
                self._engine = self.engine()
                names = self.settings.workers_nodes_names
                self._workers = {name: self._engine.spawn(EstimatorActor, name=name) for name in names}
            return self._engine, self._workers


def _told(failures: dict[str, ChimeraError]) -> str:
    return "; ".join(str(error) for error in failures.values())
