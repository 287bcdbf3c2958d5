"""What the OpenAPI pages of masters say about bodies and answers, with examples."""

from __future__ import annotations

from typing import Any

from chimera.nodes.workers import schemas

FIT = schemas.FIT
_REGRESSION = schemas.predict("regression")
_CLASSIFICATION = schemas.predict("classification")
PREDICT: dict[str, Any] = {
    "body": _REGRESSION["body"],
    "example": _REGRESSION["example"],
    "answer": {"anyOf": [_CLASSIFICATION["answer"], _REGRESSION["answer"]]},
    "answer_example": _CLASSIFICATION["answer_example"],
}
