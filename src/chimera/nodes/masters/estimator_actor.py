"""The routes of a worker with an estimator, as actor classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.engines.http import Route
from chimera.engines.http.wire import Packed, pack
from chimera.nodes.table import Table


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
        return {"y_pred_rows": _finite("y_pred_rows", predicted)}
    classes, rows = document["classes"], len(predicted)
    labels = classes.tolist() if isinstance(classes, np.ndarray) else list(classes)
    if not labels or not all(isinstance(label, str | bool | int | float) for label in labels):
        raise ValueError("classes must be texts, numbers or booleans")
    probabilities = _finite("y_proba_rows", document["y_proba_rows"]).reshape(rows, len(labels))
    return {"classes": labels, "y_proba_rows": probabilities}


def _finite(name: str, values: Any) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains values that are not finite")
    return array


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
        return {"y_pred_rows": document["y_pred_rows"]} | _prediction(self, document)

    routes: ClassVar[dict[str, Route]] = {
        "predict": Route(
            verb="POST", path="/v1/chimera/model/predict", encode=_packed, decode=_answer, idempotent=True
        ),
    }
