"""Linear scikit-learn estimators as models: the exact gradient of their loss, or the change by one ``partial_fit``."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chimera.core import call
from chimera.core.batch import Batch, check_lengths, pair_of, pieces_of
from chimera.core.errors import ConfigurationError, DataError
from chimera.core.parameters import Flat, Layout
from chimera.models.flat_module import Memory
from chimera.models.instantiation import count_parameters
from chimera.models.linear_estimator import (
    class_weights_of,
    estimator_task,
    has_exact_gradient,
    loss_of,
    penalty_of,
    start_at_zero,
)
from chimera.models.metrics import Metrics, metrics_of_targets
from chimera.models.model import Task
from chimera.models.sums import MergedEvaluation, Sums, accumulators

_ROWS = 8192  # rows that an evaluation reads at a time


class SklearnModel(MergedEvaluation):
    """A `Model` around a linear estimator with ``partial_fit``, ``coef_`` and ``intercept_``.

    For `SGDClassifier` and `SGDRegressor`, ``gradient`` is the exact gradient of the objective that they minimise: the
    mean over the batch of their ``loss``, plus their ``penalty`` on the coefficients, not on the intercept. For several
    classes, the loss is summed over the one-versus-rest problems. ``loss`` in all results is this objective. The mean
    of gradients over workers' batches of equal size is the gradient of all their rows. The strategy's learning rate
    applies, not the estimator's. An l1 penalty contributes ``alpha * sign(w)``: weights approach zero, but are not set
    to zero.

    Any other estimator gives a pseudo-gradient: its weights before minus those after one ``partial_fit`` on the batch. A step
    with learning rate 1 repeats the estimator's own step. The estimator's own learning rate applies.

    ``coef_`` and ``intercept_`` are float32 views of the flat vector, so that ``model.estimator`` can predict. An estimator
    that is not fitted starts from zero weights.

    Parameters
    ----------
    estimator : the estimator, trained in place. If its ``random_state`` is None, it is set to ``seed``.
    classes : all labels, sorted; required for a classifier that is not fitted. Targets and predictions are these labels.
    labels : labels of the estimator, sorted, where targets and predictions of the model are indices of classes. The estimator
        learns and predicts these labels, unless it is fitted with others.
    n_features : required for an estimator that is not fitted.
    metrics : as in `TorchModel`; by default ``accuracy``, or ``mse`` and ``r2``.
    memory : allocates the two vectors.
    seed : see ``estimator``.

    Raises
    ------
    ConfigurationError : the estimator cannot be trained by gradients or pseudo-gradients, or it is not fitted and
        ``classes`` or ``n_features`` is missing.
    """

    buffer_policy = "none"

    def __init__(
        self,
        estimator: Any,
        *,
        classes: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        n_features: int | None = None,
        metrics: Metrics | None = None,
        memory: Memory = call.empty,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.task: Task = estimator_task(estimator)
        parameters = estimator.get_params(deep=False)
        if "random_state" in parameters and parameters["random_state"] is None:
            estimator.set_params(random_state=seed)
        if getattr(estimator, "coef_", None) is None:
            classes = classes if labels is None else labels
            rows = 1 if classes is None or np.size(classes) == 2 else np.size(classes)  # two classes share one row
            count_parameters(rows * (n_features or 0))
            start_at_zero(estimator, self.task, classes, n_features)
        self._labels = np.asarray(estimator.classes_) if self.task == "classification" else None
        known = None if self._labels is None or labels is None else self._labels.tolist()
        self._indexed = known is not None and known == np.asarray(labels).tolist()
        self._classes = np.arange(len(known or ())) if self._indexed else self._labels
        shapes = (np.shape(estimator.coef_), np.shape(np.atleast_1d(estimator.intercept_)))
        self.layout = Layout(("coef_", "intercept_"), shapes)
        self.exact = has_exact_gradient(estimator)
        self._own_dtype = np.asarray(estimator.coef_).dtype
        self._loss = loss_of(estimator, self.task)
        self._penalty = penalty_of(parameters)
        self._fit_intercept = bool(parameters.get("fit_intercept", True))
        self._sample_weights = class_weights_of(parameters.get("class_weight"), self._labels)
        default = ("accuracy",) if self.task == "classification" else ("mse", "r2")
        self._metrics = metrics_of_targets(default if metrics is None else metrics)
        self._memory = memory
        self._allocate(estimator.coef_, estimator.intercept_)

    def _allocate(self, coef: ArrayLike, intercept: ArrayLike) -> None:
        self._weights, self._gradient = self._memory(self.layout.size), self._memory(self.layout.size)
        self._gradient.fill(0)
        self._coef, self._intercept = self.layout.split(self._weights).values()
        pieces = self.layout.split(self._gradient).values()
        outputs = self._intercept.size
        self._coef_rows = self._coef.reshape(outputs, -1)
        self._coef_gradient, self._intercept_gradient = (piece.reshape(outputs, -1) for piece in pieces)
        self._coef[...], self._intercept[...] = coef, intercept
        self._signs = None
        if self._classes is not None:
            self._consecutive = bool(np.array_equal(self._classes, np.arange(len(self._classes))))
            self._signs = np.array([[-1], [1]]) if len(self._classes) == 2 else 2 * np.eye(len(self._classes)) - 1
            self._signs = self._signs.astype(np.float32)
        self._bind()

    def _bind(self) -> None:
        self.estimator.coef_, self.estimator.intercept_ = self._coef, self._intercept

    def _rebind(self) -> None:
        """Copy weights that other code, such as its ``partial_fit``, set on the estimator to the flat vector."""
        estimator = self.estimator
        if estimator.coef_ is not self._coef or estimator.intercept_ is not self._intercept:
            self._coef[...], self._intercept[...] = estimator.coef_, estimator.intercept_
            self._bind()

    def parameters(self) -> Flat:
        """Return the live vector that ``coef_`` and ``intercept_`` are views of."""
        self._rebind()
        return self._weights

    def load(self, flat: Flat) -> None:
        """Set coefficients and intercept."""
        self._rebind()
        np.copyto(self._weights, flat)

    def reseed(self, seed: int) -> None:
        """Do nothing: only the estimator draws random numbers, from its own ``random_state``."""

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the gradient, or the pseudo-gradient, of the objective on a batch, and the objective.

        Raises
        ------
        DataError : an empty batch, a wrong number of features, or targets that are not classes of this model.
        """
        self._rebind()
        inputs, targets = pair_of(batch, type(self.estimator).__name__)
        rows = self._rows(inputs)
        wanted, weights = self._wanted(targets, len(rows))
        losses, slopes = self._loss(self._scores(rows), wanted)
        if weights is not None:
            losses, slopes = losses * weights, slopes * weights
        loss = float(losses.sum(dtype=np.float64)) / len(rows) + self._penalty.value(self._coef)
        if not self.exact:
            return self._partial_fit(rows, targets), loss
        slopes = slopes * np.float32(1 / len(rows))
        np.matmul(slopes.T, rows, out=self._coef_gradient)
        if self._fit_intercept:
            np.add.reduce(slopes, 0, out=self._intercept_gradient[:, 0])
        self._penalty.add_gradient(self._coef_rows, self._coef_gradient)
        return self._gradient, loss

    def _partial_fit(self, rows: NDArray[Any], targets: NDArray[Any]) -> Flat:
        estimator, before = self.estimator, self._weights
        if self._indexed and self._labels is not None:
            targets = self._labels[targets]
        estimator.coef_ = self._coef.astype(self._own_dtype)
        estimator.intercept_ = self._intercept.astype(self._own_dtype)
        try:
            estimator.partial_fit(rows.astype(self._own_dtype, copy=False), targets)
            after = np.concatenate([np.ravel(estimator.coef_), np.ravel(estimator.intercept_)])
        finally:
            self._bind()
        np.subtract(before, after, out=self._gradient, casting="same_kind")
        return self._gradient

    def _rows(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        if not len(inputs):
            raise DataError("a batch without rows has no loss")
        rows = inputs if inputs.ndim == 2 else inputs.reshape(len(inputs), -1)
        if rows.shape[1] != self._coef_rows.shape[1]:
            raise DataError(f"the model has {self._coef_rows.shape[1]} features, the inputs have {rows.shape[1]}")
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def _scores(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = rows @ self._coef_rows.T
        scores += self._intercept
        return scores

    def _wanted(self, targets: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the targets in the form of the loss, shape (n, k), and the weights of the samples, if any."""
        if targets.size != count:
            raise DataError(f"{count} rows of inputs need as many targets, these have shape {targets.shape}")
        if self._signs is None:
            return targets.reshape(count, 1).astype(np.float32, copy=False), None
        indices = self._indices(targets.reshape(count))
        return self._signs[indices], None if self._sample_weights is None else self._sample_weights[indices]

    def _indices(self, targets: NDArray[Any]) -> NDArray[Any]:
        classes: Any = self._classes
        if self._consecutive and targets.dtype.kind in "iu":
            if targets.min() >= 0 and targets.max() < len(classes):
                return targets
        else:
            indices = np.minimum(np.searchsorted(classes, targets), len(classes) - 1)
            if np.array_equal(classes[indices], targets):
                return indices
        unknown = np.setdiff1d(targets, classes)[0]
        raise DataError(f"the targets contain {unknown!r}, but the classes are {', '.join(map(str, classes))}")

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the objective as ``loss``, and the metrics, over a whole data set.

        Raises
        ------
        DataError : no rows, or as for `gradient`.
        """
        return self.figures_of(self.sums_of(batch))

    def new_sums(self) -> Sums:
        """Return sums of no rows."""
        return Sums(accumulators(self._metrics), by_default=False)

    def sums_of(self, batch: Batch) -> Sums:
        """Return the sums over a data set; the loss is without the penalty."""
        self._rebind()
        sums = self.new_sums()
        for piece in pieces_of(batch, _ROWS):
            inputs, targets = pair_of(piece, type(self.estimator).__name__)
            check_lengths(inputs, targets)
            scores = self._scores(self._rows(inputs))
            wanted, weights = self._wanted(targets, len(scores))
            losses, _ = self._loss(scores, wanted)
            sums.total += float((losses if weights is None else losses * weights).sum(dtype=np.float64))
            sums.rows += len(inputs)
            for metric in sums.metrics.values():
                metric.add(scores, self._predictions(scores), targets)
        return sums

    def figures_of(self, sums: Sums) -> dict[str, float]:
        """Return the objective, which contains the penalty of the current weights, as ``loss``, and the metrics."""
        penalty = self._penalty.value(self._coef)
        return {name: value + penalty * (name == "loss") for name, value in sums.figures().items()}

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return one label or value for each row; with ``labels``, the index of the label."""
        self._rebind()
        if not len(inputs):
            return self._predictions(np.empty((0, self._intercept.size), np.float32))
        return self._predictions(self._scores(self._rows(inputs)))

    def _predictions(self, scores: NDArray[Any]) -> NDArray[Any]:
        if self._classes is None:
            return scores[:, 0]
        indices = (scores[:, 0] > 0).astype(np.intp) if scores.shape[1] == 1 else scores.argmax(1)
        return np.asarray(self._classes[indices])

    def buffers(self) -> Flat:
        """Return an empty vector: a linear model has no state besides its weights."""
        return np.empty(0, np.float32)

    def load_buffers(self, flat: Flat) -> None:
        """Check that the vector is empty.

        Raises
        ------
        ConfigurationError : the vector is not empty.
        """
        if len(flat):
            raise ConfigurationError(f"a linear model has no buffers, the vector has {len(flat)} elements")

    def __getstate__(self) -> dict[str, Any]:
        self._rebind()
        bare = copy.copy(self.estimator)
        del bare.coef_, bare.intercept_
        views = ("_coef", "_intercept", "_coef_rows", "_coef_gradient", "_intercept_gradient", "_gradient")
        return {k: v for k, v in vars(self).items() if k not in views} | {"estimator": bare}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        pieces = self.layout.split(state["_weights"])
        self._allocate(pieces["coef_"], pieces["intercept_"])
