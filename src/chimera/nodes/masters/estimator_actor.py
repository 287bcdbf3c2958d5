"""The routes of a worker with an estimator, as actor classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from chimera.engines.http import Route
from chimera.engines.http.wire import Packed, pack
from chimera.nodes.masters.labels import read_labels
from chimera.nodes.table import Table, numeric_array


def predict_body(table: Table, **more: Any) -> bytes:
    """Return the packed body of a predict request. It is packed once for all workers."""
    return pack({"X_pred_columns": list(table.columns), "X_pred_rows": table.rows, **more})


def _packed(_: Any, body: bytes) -> Packed:
    return Packed(body)


def _nothing(_: Any) -> None:
    return None


def _fit_answer(_: Any, document: dict[str, Any]) -> None:
    if document.get("fit") != "ok":
        raise ValueError(f"the answer to fit is {str(document)[:100]}")


def _prediction(_: Any, document: dict[str, Any]) -> dict[str, Any]:
    """Validate an answer, and convert its numbers to arrays."""
    predicted = document["y_pred_rows"]
    if document.get("classes") is None:
        values = numeric_array(predicted, "y_pred_rows")
        if values.ndim > 2:
            raise ValueError(f"y_pred_rows has the shape {values.shape}")
        return {"y_pred_rows": values}
    labels = read_labels("classes", document["classes"])
    if not labels or len(set(labels)) < len(labels):
        raise ValueError("classes must be labels without repetition, at least one")
    if not isinstance(predicted, list | tuple | np.ndarray):
        raise ValueError("y_pred_rows must be a list")
    rows = len(predicted)
    probabilities = numeric_array(document["y_proba_rows"], "y_proba_rows").reshape(rows, len(labels))
    return {"classes": labels, "y_proba_rows": probabilities}


class EstimatorActor:
    """A worker that fits and predicts with its own estimator. It is not lost if it does not answer: it may answer later."""

    comes_back = True
    routes: ClassVar[dict[str, Route]] = {
        "fit": Route(verb="POST", path="/v1/chimera/model/fit", encode=_nothing, decode=_fit_answer),
        "predict": Route(
            verb="POST", path="/v1/chimera/model/predict", encode=_packed, decode=_prediction, idempotent=True
        ),
    }


class NetworkActor(EstimatorActor):
    """A worker that predicts with the network weights in the request."""

    def _answer(self, document: dict[str, Any]) -> dict[str, Any]:
        predicted = _prediction(self, document)
        if "classes" not in predicted:
            return predicted
        labels = read_labels("y_pred_rows", document["y_pred_rows"])
        if not set(labels) <= set(predicted["classes"]):
            raise ValueError("y_pred_rows contains labels that are not in classes")
        return {"y_pred_rows": labels} | predicted

    routes: ClassVar[dict[str, Route]] = {
        "predict": Route(
            verb="POST", path="/v1/chimera/model/predict", encode=_packed, decode=_answer, idempotent=True
        ),
    }
