"""Evaluation of the global model between rounds."""

from __future__ import annotations

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.engine import Engine
from chimera.core.errors import NonFiniteError
from chimera.core.parameters import Flat, all_finite
from chimera.data.dataset import TrainingData
from chimera.models.buffers import average, merge_buffers
from chimera.models.model import Model
from chimera.strategies.strategy import Strategy
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.nodes_data.evaluation import NodesEvaluation
from chimera.training.run.client_fairness import client_fairness
from chimera.training.worker.shared_parameters import SharedParameters


class Evaluator:
    """Evaluates the global model, in the driver or on rows of nodes.

    Parameters
    ----------
    model : the driver's copy, into which the global model is loaded.
    test : the test set; or what the nodes agreed on, if they have the test rows.
    buffers : the policy by which the workers' buffers are merged.
    part : the parameters that are shared with servers, if not all are. Of the personal parameters and of buffers, the model
        that is evaluated has the mean over the workers.
    clients : whether to evaluate each worker on its own data too.

    Attributes
    ----------
    of_clients : the metrics of each worker in the last evaluation, by name; without workers that have no rows for evaluation.
        If nodes have the test rows: those of each node that gives its own, by its name.
    """

    def __init__(
        self,
        engine: Engine,
        monitor: HeartbeatMonitor,
        strategy: Strategy,
        cluster: TrainingCluster,
        *,
        model: Model,
        test: TrainingData | AgreedData,
        buffers: str,
        part: SharedParameters | None = None,
        clients: bool = False,
    ) -> None:
        self._part, self._clients = part, clients
        self.of_clients: dict[str, dict[str, float]] = {}
        self._engine, self._monitor, self._strategy, self._cluster = engine, monitor, strategy, cluster
        self._test, self._buffers = None if isinstance(test, AgreedData) else test, buffers
        self._nodes = NodesEvaluation(engine, model, test) if isinstance(test, AgreedData) else None
        self.model = model

    def weights(self, out: Flat | None = None) -> Flat:
        """Return the parameters of the global model, shape (P,), in ``out`` if that is given.

        Raises
        ------
        NonFiniteError : some are NaN or infinite.
        """
        shards = self._monitor.get(list(self._strategy.model(self._cluster)))
        pieces = [decode(shard, shard.size) for shard in shards]
        if not all(map(all_finite, pieces)):
            raise NonFiniteError(f"round {self._cluster.round}: parameters of the model are NaN or infinite")
        if self._part is None:
            return self._cluster.joined(pieces, out)
        flat = np.empty(self.model.layout.size, np.float32) if out is None else out
        self._part.put(np.concatenate(pieces), flat)
        self._part.put_rest(average(self._monitor.get([worker.personal() for worker in self._cluster.on_time()])), flat)
        return flat

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics of the global model on the test set, and the measures of the strategy."""
        self.weights(out=self.model.parameters())
        self._merge_buffers()
        metrics = self._evaluate_test_rows()
        measures = self._strategy.measures(self._cluster)
        metrics |= dict(zip(measures, self._monitor.get(list(measures.values())), strict=True))
        if self._clients:
            if self._nodes is None:
                self._evaluate_clients()
            metrics |= client_fairness(self.of_clients.values())
        return metrics

    def _evaluate_test_rows(self) -> dict[str, float]:
        """Evaluate the global model on the driver's test set, or on the test rows of nodes."""
        if self._test is not None:
            return self.model.evaluate(self._test.whole())
        assert self._nodes is not None
        flat = self.model.parameters()
        shared = flat.copy() if self._part is None else self._part.of(flat)
        metrics, self.of_clients = self._nodes.evaluate(self._cluster.on_time(), shared, self._monitor.get)
        return metrics

    def _evaluate_clients(self) -> None:
        """Evaluate the global model (without servers, each worker's own model) on each worker's own rows."""
        weights = self._strategy.model(self._cluster) if self._cluster.shards else []
        workers = self._cluster.on_time()
        found = self._monitor.get([worker.evaluate(*weights) for worker in workers])
        self.of_clients = {worker.name: own for worker, own in zip(workers, found, strict=True) if own}

    def _merge_buffers(self) -> None:
        """Merge the workers' buffers into the driver's model. Unless workers keep their buffers, send them the result."""
        if self.model.buffers().size == 0:
            return
        parts = self._strategy.holders(self._cluster) or [self._cluster.on_time()]
        held = [self._monitor.get([holder.buffers() for holder in holders]) for holders in parts]
        if self._part is not None:
            self.model.load_buffers(average(held[0]))
            return
        merged = [merge_buffers(each, self._buffers) for each in held]
        there = [each for each in merged if each is not None]
        if there:
            self.model.load_buffers(self._cluster.joined_buffers(there))
            refs = [self._engine.put(each) for each in there]
            loaded = zip(parts, refs, strict=True)
            self._monitor.get([holder.load_buffers(ref) for holders, ref in loaded for holder in holders])
