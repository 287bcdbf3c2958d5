"""The coordinator's link to a remote worker. It checks states and results, because that worker may send anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from chimera.core.errors import DataError, RunError, TimeLimitError
from chimera.engines.http import wire
from chimera.engines.http.failure import plain_text
from chimera.inference.pool.http import HttpLink, Requests
from chimera.inference.worker.protocol import BatchId, Collected, Finished, WorkerState

T = TypeVar("T")

TIMEOUT_S = 2.0
"""A remote worker counts as hung after this many seconds in which nothing arrives: networks are less regular."""
_MAX_TEXT = 1000
_MAX_MODELS = 1000
_KEY = re.compile("[0-9a-f]{16}")  # key of a model


class RemoteLink(HttpLink):
    """A link whose results have the form that readers of results expect, and whose texts may be logged."""

    def __init__(self, address: str, connection: Requests) -> None:
        super().__init__(address, connection, timeout_s=TIMEOUT_S)

    def adopt(self, epoch: int, owner: str) -> WorkerState:  # noqa: D102
        return _checked_state(super().adopt(epoch, owner))

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:  # noqa: D102
        found = super().collect(epoch, done, wait_s)
        return Collected(_checked_state(found.state), [_checked(each) for each in found.results], found.pieces)

    def _call(self, verb: str, body: dict[str, Any], kind: type[T]) -> T:
        """Send a request. A refusal is an error of this worker only: `StaleEpoch` would end the coordinator."""
        try:
            return super()._call(verb, body, kind)
        except TimeLimitError:
            raise
        except RunError as error:
            raise RunError(_line(str(error))) from error


def _checked_state(state: WorkerState) -> WorkerState:
    """Return the state of a worker, with texts of one line. Raise RunError if the keys of its models are invalid."""
    keys = [*state.loaded, *([] if state.loading is None else [state.loading])]
    if len(keys) > _MAX_MODELS or not all(map(_KEY.fullmatch, keys)):
        raise RunError("the state of the worker has no valid keys of models")
    return msgspec.structs.replace(state, without=_line(state.without)) if state.without else state


def _checked(result: Finished) -> Finished:
    """Return a result with the number of its answers, and with texts of one line.

    Raises
    ------
    RunError : the answers are not a list of ``{"result": value}`` and ``{"error": text}``, or their numbers are wrong.
    """
    if result.failure:
        return msgspec.structs.replace(result, failure=_line(result.failure))
    try:
        answers = wire.unpack(result.results)
    except DataError as error:
        raise RunError(f"the worker's results cannot be read: {error}") from error
    if not isinstance(answers, list) or not all(map(_is_answer, answers)):
        raise RunError("the worker's results have another form")
    if sum("error" in each for each in answers) != result.errors:
        raise RunError("the worker's results have another number of errors")
    if not (0 <= result.seconds < 1e9 and 0 <= result.tokens < 1 << 53):
        raise RunError("the worker's results have an impossible time or number of tokens")
    return msgspec.structs.replace(result, answers=len(answers), error=_line(result.error))


def _is_answer(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return set(value) == {"result"} or (set(value) == {"error"} and isinstance(value["error"], str))


def _line(text: str) -> str:
    return " ".join(plain_text(text, _MAX_TEXT).split())
