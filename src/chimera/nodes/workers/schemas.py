"""The OpenAPI schemas of workers' bodies and answers, with examples."""

from __future__ import annotations

from typing import Any

from chimera.models.model import Task


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_NAMES = {"type": "array", "items": {"type": "string"}}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_ROWS = {"type": "array", "items": _NUMBERS}
_LABELS = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}}
_ONE_OR_ROWS = {"anyOf": [_ROWS, _NUMBERS]}
_WEIGHTS = {
    **_ONE_OR_ROWS,
    "description": "One row for each output, or that row itself if there is one output; for a neural network one flat list.",
}
_BIAS = {**_NUMBERS, "description": "One number for each output; empty for a neural network."}
_CLASSES = {
    "anyOf": [{"type": "array", "items": {"type": "string"}}, _NUMBERS, {"type": "null"}],
    "description": "All classes, sorted, if this worker's data lack some of them. Only for classification.",
}
_STEP = {
    "anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**40}, {"type": "null"}],
    "description": "Number of steps that the fit has taken before; default: one more than in the last request.",
}
_EXACT = {
    "type": "boolean",
    "description": "Whether a step returns the gradient at the weights, or the weights before one pass minus those after it.",
}

_COLUMNS = ["mean radius", "mean texture"]
_PREDICT = {"X_pred_columns": _COLUMNS, "X_pred_rows": [[17.99, 10.38], [11.42, 20.38]]}

FIT: dict[str, Any] = {"answer": _object(fit={"const": "ok"}), "answer_example": {"fit": "ok"}}


def predict(task: Task, *, weights: bool = False) -> dict[str, Any]:
    """Return the schemas of a ``predict`` route; ``weights``: whether the body may contain weights."""
    body = _object(X_pred_columns=_NAMES, X_pred_rows=_ROWS)
    if weights:
        body["properties"] |= {
            "weights": {**_NUMBERS, "description": "All parameters; default: those of the last request."},
            "classes": _CLASSES,
        }
    if task == "regression":
        answer = _object(y_pred_rows={"anyOf": [_NUMBERS, _ROWS]})
        return {"body": body, "example": _PREDICT, "answer": answer, "answer_example": {"y_pred_rows": [152.1, 80.4]}}
    example = {"y_pred_rows": [0, 1], "classes": [0, 1], "y_proba_rows": [[0.9, 0.1], [0.2, 0.8]]}
    answer = _object(y_pred_rows=_LABELS, classes=_LABELS, y_proba_rows=_ROWS)
    return {"body": body, "example": _PREDICT, "answer": answer, "answer_example": example}


def sample(*, weights: bool = False) -> dict[str, Any]:
    """Return the schemas of the data sample; ``weights``: whether it contains initial weights."""
    answer = _object(
        X_train_sample_columns=_NAMES,
        X_train_sample_rows=_ROWS,
        y_train_sample_columns=_NAMES,
        y_train_sample_rows={"type": "array", "items": _LABELS},
        exact_gradient=_EXACT,
        **({"weights": _NUMBERS, "bias": _NUMBERS} if weights else {}),
    )
    example = {
        "X_train_sample_columns": _COLUMNS,
        "X_train_sample_rows": [[17.99, 10.38], [11.42, 20.38]],
        "y_train_sample_columns": ["target"],
        "y_train_sample_rows": [[0], [1]],
        "exact_gradient": weights,
        **({"weights": [0.1, -0.2, 0.0], "bias": []} if weights else {}),
    }
    return {"answer": answer, "answer_example": example}


FIT_STEP: dict[str, Any] = {
    "body": {
        **_object(weights=_WEIGHTS, bias=_BIAS),
        "properties": {"weights": _WEIGHTS, "bias": _BIAS, "classes": _CLASSES, "step": _STEP},
    },
    "example": {"weights": [[0.1, -0.2]], "bias": [0.0]},
    "answer": _object(weights_gradients=_ONE_OR_ROWS, bias_gradient=_NUMBERS),
    "answer_example": {"weights_gradients": [[0.31, -0.05]], "bias_gradient": [0.02]},
}
