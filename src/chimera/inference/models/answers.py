"""Answers of a model: a result or an error for each query, independent of the other queries of its batch."""

from __future__ import annotations

import base64
import io
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.errors import ChimeraError, DataError
from chimera.inference.models.table import Emit, Predictor
from chimera.models.instantiation import first_line

MAX_ERROR_CHARACTERS = 500
"""Maximum length of an error text; the rest is cut off."""
_COUNTS = ("prompt_tokens", "generated_tokens")
_MAX_TOKENS = 1 << 31  # a larger number in a result is not used


def answers(predictor: Predictor, queries: list[Any], emit: Emit | None = None) -> list[dict[str, Any]]:
    """Return ``{"result": value}`` or ``{"error": text}`` for each query; the values can be written as JSON.

    If the model raises an exception, or returns a wrong number of results, each query of the batch is computed alone. So only
    the queries that cause errors get errors.

    Parameters
    ----------
    emit : receives texts of a model that can emit them, see `StreamingPredictor`. A text may be emitted twice.
    """
    if not queries:
        return []
    found = _predicted(predictor, queries, emit)
    if isinstance(found, Exception):
        if len(queries) == 1:
            return [_error(found)]
        return [
            answer
            for index, query in enumerate(queries)
            for answer in answers(predictor, [query], emit and _shifted(emit, index))
        ]
    return [_answer(value) for value in found]


def tokens_of(answer: Mapping[str, Any]) -> int:
    """Return the tokens of a query and its result, ``prompt_tokens`` + ``generated_tokens``; 1 if they are not reported."""
    result = answer.get("result")
    counts = [result.get(key) for key in _COUNTS] if isinstance(result, Mapping) else []
    tokens = [count for count in counts if type(count) is int and 0 <= count <= _MAX_TOKENS]
    return max(sum(tokens), 1) if len(tokens) == len(_COUNTS) else 1


def _shifted(emit: Emit, by: int) -> Emit:
    return lambda index, at, text: emit(index + by, at, text)


def _predicted(predictor: Predictor, queries: list[Any], emit: Emit | None) -> Sequence[Any] | Exception:
    streams = emit is not None and any(isinstance(query, Mapping) and query.get("stream") is True for query in queries)
    stream = getattr(predictor, "stream", None) if streams else None
    try:
        found: Any = predictor.predict(list(queries)) if stream is None else stream(list(queries), emit)
    except Exception as error:  # user code may raise anything, and one query must not fail the others
        return error
    if hasattr(found, "tolist"):  # an array or a tensor
        found = found.tolist()
    if not isinstance(found, list | tuple):
        return DataError(f"predict returned a {type(found).__name__}, not a list with a result for each query")
    if len(found) != len(queries):
        return DataError(f"predict returned {len(found)} results for {len(queries)} queries")
    return found


def _answer(value: Any) -> dict[str, Any]:
    if isinstance(value, Exception):
        return _error(value)
    try:
        return {"result": plain(value)}
    except DataError as error:
        return _error(error)
    except RecursionError:
        return {"error": "the result contains itself, or is nested too deeply"}


def _error(error: Exception) -> dict[str, Any]:
    text = str(error).partition("\n")[0] if isinstance(error, ChimeraError) else first_line(error)
    return {"error": text[:MAX_ERROR_CHARACTERS]}


def plain(value: Any) -> Any:
    """Return a value that JSON can represent: arrays become lists, images become ``data:`` URLs.

    Raises
    ------
    DataError : the value contains a number that is not finite, or a type that JSON cannot represent.
    """
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, np.str_) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DataError(f"the result contains {float(value)}, which is not a finite number")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if _is_image(value):
        return _data_url(value)
    if hasattr(value, "tolist") and not getattr(getattr(value, "dtype", None), "hasobject", False):
        return plain(value.tolist())
    raise DataError(f"the result contains a {type(value).__name__}, which JSON cannot represent")


def _key(key: Any) -> str:
    key = key.item() if isinstance(key, np.generic) else key
    if not isinstance(key, str | int):
        raise DataError(f"the result has a key of type {type(key).__name__}: keys must be texts or whole numbers")
    return str(key)


def _is_image(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _data_url(image: Any) -> str:
    content = io.BytesIO()
    image.save(content, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
