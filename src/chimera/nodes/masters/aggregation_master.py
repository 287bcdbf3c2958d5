"""A master for bagging: each worker fits its own model, and the master averages their predictions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from chimera.core.errors import ChimeraError, DataError
from chimera.engines.http import HttpEngine
from chimera.engines.http.failure import Refusal
from chimera.nodes.masters.averaging import average
from chimera.nodes.masters.estimator_actor import EstimatorActor, predict_body
from chimera.nodes.masters.master import Master
from chimera.nodes.masters.outcome import FailureReporter, outcome, report, report_fit
from chimera.nodes.settings import Settings
from chimera.nodes.table import Table
from chimera.web.errors import AllWorkersFailed, NotFittedError


class AggregationMaster(Master):
    """Calls all workers at once, and combines the results of those that answer.

    Each worker has ``CHIMERA_WORKERS_ENDPOINTS_TIMEOUT`` seconds and ``CHIMERA_WORKERS_ENDPOINTS_MAX_RETRIES`` retries. The
    answer, the status log and stderr name each worker that does not answer, with the reason. The next request calls it again.

    Parameters
    ----------
    settings : settings of the node; default: from the environment and `chimera.toml`.
    """

    def __init__(self, *, settings: Settings | None = None) -> None:
        super().__init__("aggregation", settings)
        self._lock = threading.Lock()
        self._engine: HttpEngine | None = None
        self._workers: dict[str, Any] = {}
        self._fitted = False
        self._failing = FailureReporter("predict")

    @property
    def fitted(self) -> bool:
        """Whether this master has fitted a worker."""
        return self._fitted

    def fit(self) -> dict[str, Any]:
        """Fit all workers, and return the body of the answer. The fit succeeds if one worker succeeds.

        Raises
        ------
        AllWorkersFailed : no worker was fitted; the message states the reason for each.
        """
        engine, refs = self._call_all("fit")
        reason: dict[str, str] = {}
        pending = list(refs.values())
        while pending:  # a failure is reported at once: other workers may need a long time
            done, pending = engine.wait(pending)
            _, failed = self._answers(engine, {name: ref for name, ref in refs.items() if ref in done})
            for name, error in failed.items():
                reason[name] = str(error)
                report(f"{name}: fit failed: {error}", ok=False)
        report_fit(refs, reason)
        if len(reason) == len(refs):
            raise AllWorkersFailed(f"no worker was fitted: {'; '.join(reason[name] for name in refs)}")
        self._fitted = True
        return {"fit": "ok", "workers": outcome("fit", refs, reason)}

    def predict(self, table: Table) -> dict[str, Any]:
        """Return the mean prediction for these rows over the workers that answer.

        Raises
        ------
        NotFittedError : no worker is fitted.
        DataError : no worker has predicted, and at least one refused the rows, for example because of their columns.
        AllWorkersFailed : no worker has predicted for other reasons; the message states the reason for each.
        """
        engine, refs = self._call_all("predict", predict_body(table))
        engine.wait(list(refs.values()), count=len(refs))
        return self._mean(engine, refs, len(table.rows))

    async def predict_async(self, table: Table) -> dict[str, Any]:
        """Do the same as `predict` without blocking the event loop."""
        engine, refs = self._call_all("predict", predict_body(table))
        loop = asyncio.get_running_loop()
        there = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(there.set)

        engine.when_done(list(refs.values()), wake)
        await there.wait()
        return self._mean(engine, refs, len(table.rows))

    def _mean(self, engine: HttpEngine, refs: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return the mean prediction of the workers from their refs, which must be done."""
        predictions, failures = self._answers(engine, refs)
        if not predictions:
            self._failing.note(failures, ())
            refused = [error for error in failures.values() if isinstance(error, Refusal)]
            if refused and all(error.name == NotFittedError.__name__ for error in refused):
                raise NotFittedError(
                    f"no worker is fitted yet: POST /v1/chimera/aggregation/fit first ({_reasons(failures)})"
                )
            if unfit := [str(error) for error in refused if error.status == 422]:
                raise DataError("; ".join(unfit))
            raise AllWorkersFailed(f"no worker has predicted: {_reasons(failures)}")
        try:
            body, left_out = average(predictions, rows)
        except DataError as error:
            raise AllWorkersFailed(f"no worker has returned a usable prediction: {error}") from error
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

    def _call_all(self, method: str, *args: Any) -> tuple[HttpEngine, dict[str, Any]]:
        """Call all workers, and return the refs of their answers by name of the worker."""
        engine, workers = self._engine_and_workers()
        values = [engine.put(value) for value in args]
        return engine, {name: getattr(worker, method)(*values) for name, worker in workers.items()}

    def _answers(self, engine: HttpEngine, refs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, ChimeraError]]:
        """Return the answers, and the errors of the workers that failed, by name of the worker."""
        answers: dict[str, Any] = {}
        failures: dict[str, ChimeraError] = {}
        for name, ref in refs.items():
            try:
                answers[name] = engine.get(ref)
            except ChimeraError as error:
                failures[name] = error
        return answers, failures

    def _engine_and_workers(self) -> tuple[HttpEngine, dict[str, Any]]:
        with self._lock:
            if self._engine is None:
                self._engine = self.engine()
                names = self.settings.workers_nodes_names
                self._workers = {name: self._engine.spawn(EstimatorActor, name=name) for name in names}
            return self._engine, self._workers


def _reasons(failures: dict[str, ChimeraError]) -> str:
    return "; ".join(str(error) for error in failures.values())
