"""One prediction of those of several workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError


def averaged(predictions: Mapping[str, Mapping[str, Any]], rows: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body of the answer, and for each worker whose prediction does not fit the others', why.

    Parameters
    ----------
    predictions : of each worker, by its address: ``y_pred_rows``, shape (rows,) or (rows, k); or of a classifier ``classes``
        and ``y_proba_rows``, shape (rows, classes). The first worker decides which of the two.
    rows : how many there were.

    Raises
    ------
    DataError : none is left.
    """
    left_out: dict[str, str] = {}
    classifies = "classes" in next(iter(predictions.values()), {})
    fitting: list[Mapping[str, Any]] = []
    shape: tuple[int, ...] | None = None
    for worker, prediction in predictions.items():
        array = prediction["y_proba_rows" if "classes" in prediction else "y_pred_rows"]
        if ("classes" in prediction) != classifies:
            left_out[worker] = (
                f"it {'classifies' if not classifies else 'tells no classes'}, and the first worker does not"
            )
        elif len(array) != rows:
            left_out[worker] = f"it answered {len(array)} predictions for {rows} rows"
        elif not classifies and shape is not None and array.shape != shape:
            left_out[worker] = f"its predictions have the shape {array.shape}, and the first worker's {shape}"
        else:
            fitting.append(prediction)
            shape = array.shape
    if not fitting:
        raise DataError(f"no prediction can be used: {'; '.join(left_out.values())}")
    if classifies:
        return _mean_of_classes(fitting), left_out
    return {"y_pred_rows": _mean([prediction["y_pred_rows"] for prediction in fitting])}, left_out


def _mean(arrays: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    total /= len(arrays)
    return total


def _mean_of_classes(predictions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average probabilities over all classes that anybody knows; who does not know a class gives it the probability 0.

    With two classes ``y_pred_rows`` is the mean probability of the second, with more it is the class of the highest.
    """
    classes = union([prediction["classes"] for prediction in predictions])
    places = {label: place for place, label in enumerate(classes)}
    mean: NDArray[np.float64] = np.zeros((len(predictions[0]["y_proba_rows"]), len(classes)))
    for prediction in predictions:
        mean[:, [places[label] for label in prediction["classes"]]] += prediction["y_proba_rows"]
    mean /= len(predictions)
    if len(classes) == 2:
        return {"y_pred_rows": mean[:, 1].copy(), "classes": classes, "y_proba_rows": mean}
    best = [classes[place] for place in mean.argmax(1)]
    return {"y_pred_rows": best, "classes": classes, "y_proba_rows": mean}


def union(labels: Sequence[Sequence[Any]]) -> list[Any]:
    """Return all labels, sorted, each once.

    Raises
    ------
    DataError : some are texts and some numbers.
    """
    every = {label for known in labels for label in known}
    if len({isinstance(label, str) for label in every}) > 1:
        raise DataError(
            "the workers' classes are partly texts and partly numbers: write the same labels in all y_train.csv"
        )
    return sorted(every)
