"""What the driver measures of the model between rounds."""

from __future__ import annotations

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.engine import Engine
from chimera.core.errors import NonFiniteError
from chimera.core.parameters import Flat, all_finite
from chimera.data.dataset import Dataset
from chimera.models.buffers import merge_buffers
from chimera.models.model import Model
from chimera.strategies.strategy import Strategy
from chimera.training.cluster import TrainingCluster
from chimera.training.tally import Tally
from chimera.training.watch import Watch


class Probe:
    """Fetches the global model into the driver's copy, and the losses of the workers.

    Parameters
    ----------
    model : the driver's copy, in which the global model is looked at.
    test : the data it is evaluated on.
    buffers : the policy by which the workers' buffers are merged.
    """

    def __init__(
        self,
        engine: Engine,
        watch: Watch,
        strategy: Strategy,
        cluster: TrainingCluster,
        *,
        model: Model,
        test: Dataset,
        buffers: str,
    ) -> None:
        self._engine, self._watch, self._strategy, self._cluster = engine, watch, strategy, cluster
        self._test, self._buffers = test, buffers
        self.model = model

    def weights(self, out: Flat | None = None) -> Flat:
        """Return the parameters of the global model, shape (P,), in ``out`` if that is given.

        Raises
        ------
        NonFiniteError : some are NaN or infinite.
        """
        shards = self._watch.get(list(self._strategy.model(self._cluster)))
        pieces = [decode(shard, shard.size) for shard in shards]
        if not all(map(all_finite, pieces)):
            raise NonFiniteError(f"round {self._cluster.round}: parameters of the model are NaN or infinite")
        return np.concatenate(pieces, out=out)

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics of the global model on the test set, and what the strategy measures besides."""
        self.weights(out=self.model.parameters())
        self._merge_buffers()
        metrics = self.model.evaluate((self._test.inputs, self._test.targets))
        measures = self._strategy.measures(self._cluster)
        return {**metrics, **dict(zip(measures, self._watch.get(list(measures.values())), strict=True))}

    def tallies(self, of: set[str]) -> list[Tally]:
        """Return what workers have done since the last time, and take them out of these names; those of the late come later."""
        asked = [worker for worker in self._cluster.on_time() if worker.name in of]
        of.difference_update(worker.name for worker in asked)
        return list(self._watch.get([worker.tally() for worker in asked]))

    def _merge_buffers(self) -> None:
        """Bring the workers' buffers together in the driver's model and, unless they are to stay apart, in the workers."""
        if self.model.buffers().size == 0:
            return
        workers = self._cluster.on_time()
        held = self._watch.get([worker.buffers() for worker in workers])
        parts = self._strategy.parts(len(workers))
        stages = 1 if parts is None else parts.stages
        merged = [merge_buffers(held[stage::stages], self._buffers) for stage in range(stages)]
        there = [each for each in merged if each is not None]
        if there:
            self.model.load_buffers(np.concatenate(there))
            refs = [self._engine.put(each) for each in there]
            self._watch.get([worker.load_buffers(refs[place % stages]) for place, worker in enumerate(workers)])
