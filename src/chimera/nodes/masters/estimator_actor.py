"""A worker with a whole estimator, as the master calls it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.parameters import Flat
from chimera.engines.http import Route


def _rows(_: Any, columns: list[str], rows: NDArray[np.float64]) -> dict[str, Any]:
    return {"X_pred_columns": columns, "X_pred_rows": rows}


def _nothing(_: Any) -> None:
    return None


def _fit_answer(_: Any, document: dict[str, Any]) -> None:
    if document.get("fit") != "ok":
        raise ValueError(f"the answer to fit is {str(document)[:100]}")


def _prediction(_: Any, document: dict[str, Any]) -> dict[str, Any]:
    """Check an answer, and make arrays of what is numeric in it."""
    predicted = document["y_pred_rows"]
    if document.get("classes") is None:
        return {"y_pred_rows": _finite("y_pred_rows", predicted)}
    classes, rows = document["classes"], len(predicted)
    labels = classes.tolist() if isinstance(classes, np.ndarray) else list(classes)
    if not labels or not all(isinstance(label, str | bool | int | float) for label in labels):
        raise ValueError("classes are texts, numbers or truth values")
    probabilities = _finite("y_proba_rows", document["y_proba_rows"]).reshape(rows, len(labels))
    return {"classes": labels, "y_proba_rows": probabilities}


def _finite(name: str, values: Any) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds what is not finite")
    return array


class EstimatorActor:
    """Stands for a worker that fits and predicts by itself; one that does not answer now may do so later."""

    comes_back = True
    routes: ClassVar[dict[str, Route]] = {
        "fit": Route(verb="POST", path="/v1/chimera/model/fit", encode=_nothing, decode=_fit_answer),
        "predict": Route(
            verb="POST", path="/v1/chimera/model/predict", encode=_rows, decode=_prediction, idempotent=True
        ),
    }


class NetworkActor(EstimatorActor):
    """Stands for a worker that predicts with the network it is sent.

    Parameters
    ----------
    weights, classes : all parameters, shape (P,), and of a classifier all labels.
    """

    def __init__(self, weights: Flat, classes: tuple[Any, ...] | None) -> None:
        self._weights, self._classes = weights, classes

    def _question(self, columns: list[str], rows: NDArray[np.float64]) -> dict[str, Any]:
        document = _rows(self, columns, rows) | {"weights": self._weights}
        return document if self._classes is None else document | {"classes": list(self._classes)}

    def _answer(self, document: dict[str, Any]) -> dict[str, Any]:
        return {"y_pred_rows": document["y_pred_rows"]} | _prediction(self, document)

    routes: ClassVar[dict[str, Route]] = {
        "predict": Route(
            verb="POST", path="/v1/chimera/model/predict", encode=_question, decode=_answer, idempotent=True
        ),
    }
