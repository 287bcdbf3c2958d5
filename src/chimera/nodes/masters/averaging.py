"""The mean of the predictions of several workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.nodes.masters.labels import kind_of, union

_ROUNDING = 1e-3


def average(predictions: Mapping[str, Mapping[str, Any]], rows: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body of the answer, and the reason for each worker whose prediction is left out.

    Parameters
    ----------
    predictions : prediction of each worker, by its name: ``y_pred_rows``, shape (rows,) or (rows, k); or of a classifier
        ``classes`` and ``y_proba_rows``, shape (rows, classes). All must have the kind, shape and kind of labels of the first.
    rows : number of rows in the request.

    Raises
    ------
    DataError : all predictions are left out.
    """
    left_out: dict[str, str] = {}
    classifies = "classes" in next(iter(predictions.values()), {})
    fitting: list[Mapping[str, Any]] = []
    shape: tuple[int, ...] | None = None
    for worker, prediction in predictions.items():
        array = prediction["y_proba_rows" if "classes" in prediction else "y_pred_rows"]
        if ("classes" in prediction) != classifies:
            own, other = ("no classes", "classes") if classifies else ("classes", "no classes")
            left_out[worker] = f"it has {own}, but the first worker has {other}"
        elif len(array) != rows:
            left_out[worker] = f"it returned {len(array)} predictions for {rows} rows"
        elif not classifies and shape is not None and array.shape != shape:
            left_out[worker] = f"its predictions have the shape {array.shape}, but those of the first worker {shape}"
        elif classifies and array.size and not (array.min() >= -_ROUNDING and array.max() <= 1 + _ROUNDING):
            left_out[worker] = "its probabilities are not between 0 and 1"
        elif classifies and fitting and kind_of(prediction["classes"]) != kind_of(fitting[0]["classes"]):
            own, other = kind_of(prediction["classes"]), kind_of(fitting[0]["classes"])
            left_out[worker] = f"its classes are {own}, but those of the first worker {other}"
        else:
            fitting.append(prediction)
            shape = array.shape
    if not fitting:
        raise DataError(f"no prediction can be used: {'; '.join(left_out.values())}")
    if classifies:
        return _mean_of_classes(fitting), left_out
    return {"y_pred_rows": _mean([prediction["y_pred_rows"] for prediction in fitting])}, left_out


def _mean(arrays: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        total /= len(arrays)
    return total if np.isfinite(total).all() else np.sum([array / len(arrays) for array in arrays], 0)


def _mean_of_classes(predictions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average probabilities over the classes of all workers; a worker gives probability 0 to a class that it does not have.

    With two classes, ``y_pred_rows`` is the mean probability of the second; with more, it is the most probable class.
    """
    classes = union([prediction["classes"] for prediction in predictions])
    indices = {label: index for index, label in enumerate(classes)}
    mean: NDArray[np.float64] = np.zeros((len(predictions[0]["y_proba_rows"]), len(classes)))
    for prediction in predictions:
        mean[:, [indices[label] for label in prediction["classes"]]] += prediction["y_proba_rows"]
    mean /= len(predictions)
    if len(classes) == 2:
        return {"y_pred_rows": mean[:, 1].copy(), "classes": classes, "y_proba_rows": mean}
    best = [classes[index] for index in mean.argmax(1)]
    return {"y_pred_rows": best, "classes": classes, "y_proba_rows": mean}
