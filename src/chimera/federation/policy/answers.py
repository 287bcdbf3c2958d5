"""Answers of actors before they leave: their cost, and errors without texts that could quote data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from chimera.core import errors
from chimera.core.errors import DataError, PrivacyError
from chimera.core.printable import printable_lines
from chimera.engines.http import wire
from chimera.engines.http.hosting.hosted_actor import Reply, error_reply
from chimera.federation.policy.requests import Spending

_OPEN = frozenset(
    {"ActorLost", "CodeRefusedError", "ConfigurationError", "MissingExtraError", "PrivacyError", "TimeLimitError",
     "UnknownNameError"}
)  # fmt: skip
"""Errors of Chimera about the protocol and the settings. Their texts contain no data, as in `PrivateWorker`."""
_WITH_METRICS, _WITH_STATISTICS = ("evaluate", "measure"), "describe"
_WITH_FIGURES = frozenset({*_WITH_METRICS, _WITH_STATISTICS})
"""Calls whose answers contain figures that a gate decides about."""
_MAX_METRICS = 1000
_INTERNAL = 500
_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """An answer that a gate can decide about.

    Attributes
    ----------
    body : the body that may leave if the gate allows it.
    spent : cost of the call.
    """

    body: bytes
    spent: Spending


def leaving(method: str, reply: Reply) -> tuple[Reply, Spending]:
    """Return the reply that may leave if the gate allows it, and the cost of the call.

    Parameters
    ----------
    method : the method that was called.
    reply : the reply of `Host`.
    """
    if reply.content_type != wire.CONTENT_TYPE and reply.status != _INTERNAL:  # of the host: no code of an actor ran
        return reply, Spending(failed=True)
    if reply.samples is not None and method not in _WITH_FIGURES:
        return reply, Spending(rows=reply.samples)
    try:
        body, spent = read_answer(method, reply.body)
    except DataError as error:
        _log.warning("the answer of a call of a requester is withheld: %s: %s", method, error)
        closed = PrivacyError(f"an error in {method}; the text is only in the log of the node")
        return error_reply(_INTERNAL, closed), Spending(failed=True)
    return reply._replace(body=body), spent


def read_answer(method: str, body: bytes, stored: str = "") -> Answer:
    """Return an answer of `HostedActor` without the texts of errors, which go to the log of the node.

    Parameters
    ----------
    method : the method that was called.
    stored : name of the file with the answer in the node's store of results.

    Raises
    ------
    DataError : it is no answer of an actor.
    """
    answer = wire.unpack(body, open_inner=False)
    if not isinstance(answer, dict) or not isinstance(cost := answer.get("cost"), dict):
        raise DataError("an actor of this node gave an answer that cannot be read")
    rows = cost.get("samples", 0)
    if "failure" in answer:
        closed = _closed(method, answer["failure"])
        return Answer(wire.pack({**answer, "failure": closed}), Spending(rows=rows, stored=stored, failed=True))
    metrics: tuple[str, ...] = ()
    statistics = False
    if method in _WITH_METRICS:
        measured, metrics = _metrics(_first(answer))
        rows = max(rows, measured)
    elif method == _WITH_STATISTICS:
        given = getattr(_first(answer), "statistics", None)
        statistics, rows = given is not None, max(rows, getattr(given, "rows", 0))
    return Answer(body, Spending(rows, metrics, stored, statistics=statistics))


def _closed(method: str, failure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failure without the text and arguments of the exception, and without its traceback."""
    kind, module = str(failure.get("kind"))[:200], failure.get("module")
    # A requester wrote parts of the text, and a terminal shows it.
    _log.warning("a call of a requester failed: %s\n%s", method, printable_lines(str(failure.get("traceback"))))
    if module == errors.__name__ and kind in _OPEN:
        content = failure.get("content")
        if content is not None:  # notes and attributes can be of any origin
            content = {"args": content["args"], "state": {}}
        return {**failure, "traceback": "", "content": content}
    text = f"{kind} in {method}; the text is only in the log of the node"
    return {
        "kind": "PrivacyError",
        "module": errors.__name__,
        "summary": text,
        "traceback": "",
        "content": {"args": [text], "state": {}},
    }


def _first(answer: Mapping[str, Any]) -> Any:
    """Return the value of an answer."""
    value = (answer.get("values") or [None])[0]
    return value.open() if isinstance(value, wire.Packed) else value


def _metrics(found: Any) -> tuple[int, tuple[str, ...]]:
    """Return the number of rows behind metrics, as far as the answer states it, and their names."""
    named = getattr(found, "sums", found)
    if not isinstance(named, Mapping) or len(named) > _MAX_METRICS:
        raise DataError("an actor of this node gave metrics that cannot be read")
    return getattr(found, "rows", 0), tuple(map(str, named))
