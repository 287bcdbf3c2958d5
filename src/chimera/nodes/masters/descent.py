"""One fit of the parameter server: the `ParameterServer` strategy on workers that are called by documented routes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ActorLost, DataError, TooFewWorkersError
from chimera.core.parameters import Flat, Layout
from chimera.engines.http import HttpEngine
from chimera.nodes.masters.descent_actors import DescentActors, NoProvider
from chimera.nodes.masters.gradient_actor import GradientActor, ParameterFormat, Sample
from chimera.nodes.masters.gradient_server import Progress
from chimera.nodes.masters.labels import kind_of, union
from chimera.nodes.masters.learning_rate import LearningRate
from chimera.nodes.masters.outcome import report
from chimera.nodes.table import match_columns
from chimera.strategies.parameter_server import ParameterServer
from chimera.strategies.strategy import Round
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.cluster.sharding import Sharding
from chimera.training.fault_tolerance.recovery import Recovery
from chimera.training.fault_tolerance.settings import FaultTolerance
from chimera.training.messages.rejection import Rejections
from chimera.web.errors import AllWorkersFailed
from chimera.web.logs import status

_WHOLE_STEP = LearningRate(kind="constant", eta0=1.0)  # for workers that return steps instead of gradients
_AHEAD = 4  # rounds in flight


@dataclass(frozen=True)
class FitResult:
    """The result of a fit.

    Attributes
    ----------
    columns : names of the inputs.
    classes : the labels; None for a regression.
    flat : the parameters, weights row by row and then biases; or all parameters of a neural network.
    network : whether the model is a neural network.
    steps : number of steps.
    exact_gradient : whether the workers returned gradients, so that the master's learning rate applied.
    failures : reason for each worker that was dropped, by name.
    left_out : number of non-finite answers that were left out, by name of the worker.
    """

    columns: tuple[str, ...]
    classes: tuple[Any, ...] | None
    flat: Flat
    network: bool
    steps: int
    exact_gradient: bool
    failures: Mapping[str, str]
    left_out: Mapping[str, int]


class Descent:
    """Gradient descent with the mean of the workers' answers.

    A worker returns either the step of one pass over its rows or a gradient. Steps are subtracted as they are, in float64.
    Gradients are multiplied by the master's learning rate, in float32.

    Parameters
    ----------
    engine : an engine with one node for each worker.
    names : names of the workers, in the order of the nodes.
    classifies : whether targets are labels.
    exact_gradient : whether workers that do not state what they return are assumed to return gradients.
    rate : learning rate for gradients.
    epsilon : stop when all elements of the mean are at most this in absolute value.
    max_iter : maximum number of rounds.
    max_bytes : maximum size of the parameters, in bytes.
    """

    def __init__(
        self,
        engine: HttpEngine,
        names: Sequence[str],
        *,
        classifies: bool,
        exact_gradient: bool,
        rate: LearningRate,
        epsilon: float,
        max_iter: int,
        max_bytes: int,
    ) -> None:
        self._engine, self._classifies, self._exact = engine, classifies, exact_gradient
        self._rate, self._epsilon, self._max_iter, self._max_bytes = rate, epsilon, max_iter, max_bytes
        self._failures: dict[str, str] = {}
        self._left_out = Counter[str]()
        self._all = [engine.spawn(GradientActor, rank, name=name) for rank, name in enumerate(names)]

    def run(self) -> FitResult:
        """Fit the model, and return the result.

        Raises
        ------
        AllWorkersFailed : no worker is left; the message states the reason for each.
        DataError : the workers' data do not match.
        NonFiniteError : the steps were too long, so that no gradient is finite.
        """
        samples = self._samples()
        classes = self._classes(samples)
        columns = next(iter(samples.values())).columns
        first = next(iter(samples.values())).weights
        outputs = 1 if classes is None or len(classes) == 2 else len(classes)
        shape = (outputs, len(columns)) if first is None else (first.size,)
        biases = outputs if first is None else 0
        self._exact = self._exact or bool(next(iter(samples.values())).exact_gradient)
        workers = []
        for worker, sample in samples.items():
            try:
                format_ = self._format(sample, columns, classes, shape, biases)
            except DataError as error:
                self._drop(worker, f"its data or model do not match those of {next(iter(samples)).name}: {error}")
            else:
                worker.set_format(format_)
                workers.append(worker)
        layout = Layout(("coef_", "intercept_"), (shape, (biases,)))
        self._check_size(layout.size, len(columns), outputs)
        begin: NDArray[Any] = np.zeros(layout.size, np.float32 if self._exact else np.float64)
        begin = begin if first is None else first
        rate = self._rate if self._exact else _WHOLE_STEP
        flat, steps = self._descend(DescentActors(self._engine, workers, layout, begin, rate, self._epsilon))
        failures, left_out = dict(self._failures), dict(self._left_out)
        return FitResult(columns, classes, flat, first is not None, steps, self._exact, failures, left_out)

    def _samples(self) -> dict[Any, Sample]:
        """Return the data samples of the workers that answer, in order."""
        workers = {worker.sample(): worker for worker in self._all}
        samples = {}
        pending = list(workers)
        while pending:
            done, pending = self._engine.wait(pending)
            for ref in done:
                worker = workers[ref]
                try:
                    samples[worker] = self._engine.get(ref)
                except ActorLost:
                    self._note_failure(worker.name, f"no data sample: {self._engine.death_cause(worker)}")
        if not samples:
            raise self._all_failed()
        return {worker: samples[worker] for worker in self._all if worker in samples}

    def _classes(self, samples: dict[Any, Sample]) -> tuple[Any, ...] | None:
        if not self._classifies:
            return None
        labelled = {worker: sample.labels for worker, sample in samples.items() if sample.labels}
        if not labelled:
            raise DataError("no worker reports a label: a classifier needs two classes")
        first, kind = next((worker.name, kind_of(labels)) for worker, labels in labelled.items())
        for worker, labels in labelled.items():
            if kind_of(labels) != kind:
                self._drop(worker, f"its labels are {kind_of(labels)}, but those of {first} are {kind}")
                del samples[worker]
        classes = union(sample.labels for sample in samples.values())
        if len(classes) < 2:
            raise DataError(f"all workers have the same single class {classes[0]!r}: a classifier needs two classes")
        return tuple(classes)

    def _format(
        self,
        sample: Sample,
        columns: tuple[str, ...],
        classes: tuple[Any, ...] | None,
        shape: tuple[int, ...],
        biases: int,
    ) -> ParameterFormat:
        order = tuple(match_columns(sample.columns, columns))
        if (sample.weights is None) == (biases == 0) or (sample.weights is not None and sample.weights.shape != shape):
            raise DataError("its model has another kind or shape")
        if sample.exact_gradient not in (None, self._exact):
            kinds = ["the step of one pass (exact_gradient=False)", "the exact gradient (exact_gradient=True)"]
            raise DataError(f"it returns {kinds[sample.exact_gradient]}, but this fit needs {kinds[self._exact]}")
        knows_all = classes is None or set(sample.labels) >= set(classes)
        network = sample.weights is not None
        if network and order != tuple(range(len(columns))):
            raise DataError("for a neural network, the columns must have the same order on all workers")
        return ParameterFormat(
            shape,
            biases,
            None if network or order == tuple(range(len(columns))) else order,
            None if knows_all else classes,
            np.float32 if self._exact else np.float64,
        )

    def _check_size(self, size: int, columns: int, outputs: int) -> None:
        """Check that the parameters fit into a request before memory for them is allocated."""
        if size * (4 if self._exact else 8) > self._max_bytes:
            raise DataError(
                f"the model of {columns} columns and {outputs} outputs has {size} parameters: a request with them is longer "
                f"than the {self._max_bytes} bytes that CHIMERA_MAX_BODY_BYTES allows"
            )

    def _drop(self, worker: Any, reason: str) -> None:
        self._note_failure(worker.name, reason)
        self._engine.kill(worker)

    def _note_failure(self, name: str, reason: str) -> None:
        """Record and report the failure of a worker at once: other workers may need a long time to answer."""
        self._failures[name] = reason
        report(f"{name}: fit failed: {reason}", ok=False)

    def _descend(self, actors: DescentActors) -> tuple[Flat, int]:
        """Run the strategy's rounds until the descent is over. Lost workers are dropped."""
        engine = self._engine
        monitor, tolerance = HeartbeatMonitor(engine), FaultTolerance(on_worker_loss="drop")
        sharding = Sharding(NoProvider(), len(actors.workers), lambda _: 0)
        cluster = TrainingCluster(engine, actors, sharding, monitor)
        recovery = Recovery(engine, cluster, monitor, tolerance)
        strategy, rejections = ParameterServer(), Rejections()
        rounds, window = strategy.rounds(cluster), deque[Round]()
        steps, over = 0, False
        while not over and cluster.round < self._max_iter:
            try:
                while len(window) < min(_AHEAD, self._max_iter - cluster.round):
                    window.append(next(rounds))
                (progress,) = cluster.get(window[0].done)
            except ActorLost as error:
                window.clear()
                self._recover_from(recovery, error)
                rounds = strategy.rounds(cluster)
                continue
            assert isinstance(progress, Progress)
            window.popleft()
            cluster.round += 1
            steps, over = progress.step, progress.over
            for each in rejections.of([progress], cluster.workers):
                status().warning("a gradient is left out: %s", each)
                if each.rank is not None:
                    self._left_out[self._all[each.rank].name] += 1
        window.clear()
        status().info(
            "%d steps with %d workers; the descent %s",
            steps,
            len(cluster.workers),
            "is over" if over else "stopped at max_iter",
        )
        (weights,) = cluster.get(strategy.model(cluster))
        return weights.arrays[0].copy(), steps

    def _recover_from(self, recovery: Recovery, error: ActorLost) -> None:
        """Drop lost workers, and record the reasons."""
        try:
            for what, actor, _ in recovery.recover(error):
                if actor:
                    death_cause = next(
                        (self._engine.death_cause(one) for one in self._engine.lost() if one.name == actor), actor
                    )
                    self._note_failure(actor, death_cause)
                    status().warning("%s", what)
        except ActorLost as another:
            if another is error:
                raise
            self._recover_from(recovery, another)  # another worker was lost meanwhile
        except TooFewWorkersError as none_left:
            raise self._all_failed() from none_left

    def _all_failed(self) -> AllWorkersFailed:
        causes = {
            worker.name: self._failures.get(worker.name) or self._engine.death_cause(worker) for worker in self._all
        }
        named = [reason if reason.startswith(f"{name} ") else f"{name}: {reason}" for name, reason in causes.items()]
        return AllWorkersFailed(f"no worker is left: {'; '.join(named)}")
