"""The OpenAPI schemas of masters' bodies and answers, with examples."""

from __future__ import annotations

from typing import Any

from chimera.nodes.workers import schemas


def _workers(what: str, **more: Any) -> dict[str, Any]:
    one = {"type": "object", "properties": {what: {"enum": ["ok", "failed"]}, "why": {"type": "string"}, **more}}
    return {
        "type": "object",
        "additionalProperties": one | {"required": [what]},
        "description": "The outcome of each worker by name: ok, or failed with the reason.",
    }


_OUTCOME = {
    "tree1": {"fit": "ok"},
    "tree2": {"fit": "failed", "why": "tree2 at http://localhost:5002: connection refused"},
}
FIT: dict[str, Any] = {
    "answer": {
        "type": "object",
        "properties": {
            "fit": {"const": "ok"},
            "workers": _workers("fit", steps_left_out={"type": "integer"}),
            "without_effect": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Options of the master that had no effect on this fit.",
            },
        },
        "required": ["fit", "workers"],
    },
    "answer_example": {"fit": "ok", "workers": _OUTCOME},
}


def _with_workers(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "properties": {**answer["properties"], "workers": _workers("predict")}}


_REGRESSION = schemas.predict("regression")
_CLASSIFICATION = schemas.predict("classification")
PREDICT: dict[str, Any] = {
    "body": _REGRESSION["body"],
    "example": _REGRESSION["example"],
    "answer": {"anyOf": [_with_workers(_CLASSIFICATION["answer"]), _with_workers(_REGRESSION["answer"])]},
    "answer_example": _CLASSIFICATION["answer_example"],
}
