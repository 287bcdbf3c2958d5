"""Evaluation and predictions of a torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, check_lengths, inputs_of, pieces_of, targets_of
from chimera.models.evaluation import Evaluation, evaluating, threads_for
from chimera.models.flat_module import FlatModule
from chimera.models.forward import ForwardPass
from chimera.models.predictions import as_array, predictions_of
from chimera.models.sums import MergedEvaluation, Sums, accumulators

if TYPE_CHECKING:
    from torch import Tensor


class TorchEvaluation(MergedEvaluation):
    """The part of a `TorchModel` that evaluates and predicts, in evaluation mode."""

    _flat: FlatModule
    _pass: ForwardPass
    _metrics: Mapping[str, Any]
    _by_default: bool
    _predict_transform: Callable[[Tensor], Any] | None
    _evaluate_rows: int

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the mean loss and the metrics over a whole data set, in evaluation mode.

        Raises
        ------
        DataError : no rows, inputs and targets of different lengths, or targets that do not fit the loss.
        """
        sums, logged = self._evaluated(batch)
        return sums.figures() | {name: value for name, value in logged.items() if name != "loss"}

    def new_sums(self) -> Sums:
        """Return sums of no rows."""
        return Sums(accumulators(self._metrics), by_default=self._by_default)

    def sums_of(self, batch: Batch) -> Sums:
        """Return the sums over a data set, without metrics that the steps of a module log, which are means."""
        return self._evaluated(batch)[0]

    def _evaluated(self, batch: Batch) -> tuple[Sums, dict[str, float]]:
        if isinstance(batch, tuple | list):
            check_lengths(inputs_of(batch), targets_of(batch))
        evaluation = Evaluation(self.new_sums(), self._predictions, own_step=self._pass.step is not None)
        with threads_for(batch, self._flat), evaluating(self._flat), self._pass.evaluating() as logged:
            for piece in pieces_of(batch, self._evaluate_rows):
                evaluation.add(self._pass(piece), piece)
        return evaluation.sums, dict(logged)

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return classes, shape (n,), or values, shape (n,) or (n, k), in evaluation mode.

        ``inputs`` is an array, or the arguments of the module as in `DefaultStep`: a tuple, or a mapping of keywords.
        """
        with evaluating(self._flat):
            pieces = [self._predicted(piece) for piece in pieces_of(inputs, self._evaluate_rows)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _predicted(self, inputs: Any) -> NDArray[Any]:
        own = self._pass.own_predictions(inputs)
        return self._predictions(self._pass.outputs(inputs)) if own is None else as_array(own)

    def _predictions(self, outputs: Tensor) -> NDArray[Any]:
        if self._predict_transform is not None:
            return as_array(self._predict_transform(outputs))
        return predictions_of(outputs, self._pass.loss.task, self._pass.loss.name)
