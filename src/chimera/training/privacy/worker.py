"""The boundary of a private worker: the list of values that may leave it, and the actor that enforces it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from chimera.core.errors import ActorLost, ConfigurationError, DataError, PrivacyError, TimeLimitError
from chimera.core.message import Encoded
from chimera.core.printable import printable_lines
from chimera.training.messages.rejection import Rejected
from chimera.training.messages.tally import Tally
from chimera.training.nodes_data.evaluation import Measured
from chimera.training.privacy.masking import MASKED
from chimera.training.privacy.settings import Privacy
from chimera.training.worker.learner import Learner

Reduce: TypeAlias = Callable[[Any, Privacy], Any]
"""Reduces a value that the worker returned to the part that may leave the worker."""

NOT_FINITE = "the update is not finite"
"""The only report about an update that a private worker does not send."""
_log = logging.getLogger(__name__)


def _nothing(_: Any, privacy: Privacy) -> None:
    """Release only the fact that the call ended."""


def _as_it_is(value: Any, privacy: Privacy) -> Any:  # noqa: ARG001 - one signature for all
    return value


def _update(answer: list[Any], privacy: Privacy) -> list[Any]:
    """Release messages of the agreed form, or the fact that there is none.

    Raises
    ------
    PrivacyError : a message has another form.
    """
    form = MASKED if privacy.secure_aggregation else "identity"
    for message in answer:
        if isinstance(message, Rejected):
            return [Rejected(message.rank, message.step, NOT_FINITE)] * len(answer)
        if not isinstance(message, Encoded) or message.codec != form:
            raise PrivacyError(f"a private worker sends updates in the form {form!r} only")
    return answer


def _sizes(tally: Tally, privacy: Privacy) -> Tally:  # noqa: ARG001 - one signature for all
    """Release sizes of messages, which the size of the model determines; no loss, memory or queue."""
    return Tally(
        elements_up=tally.elements_up,
        packed_up=tally.packed_up,
        elements_down=tally.elements_down,
        packed_down=tally.packed_down,
    )


def _merged_only(measured: Measured, privacy: Privacy) -> Measured:  # noqa: ARG001 - one signature for all
    """Release sums over test rows for the metrics of all nodes; the figures of one node are not shown."""
    return replace(measured, own=False)


LEAVES: Mapping[str, Reduce] = {
    # Covered by the guarantee: the update of a round.
    "delta": _update,
    # Secure aggregation: public keys, sealed shares, and shares of one secret of each client.
    "advertise_keys": _as_it_is,
    "share_secrets": _as_it_is,
    "reveal_shares": _as_it_is,
    # Determined by the driver's arguments, not by data.
    "step": _as_it_is,
    "tally": _sizes,
    # Not covered by the guarantee: see `OUTSIDE`.
    "samples": _as_it_is,
    "share": _as_it_is,
    "batches_per_pass": _as_it_is,
    "has_masked": _as_it_is,
    "measure": _merged_only,
    # Calls that only set state of the worker.
    "take_part": _nothing,
    "receive_secrets": _nothing,
    "go_to": _nothing,
    "reduce_rates": _nothing,
    "follow": _nothing,
    "attack": _nothing,
    "forget_answer": _nothing,
}
"""The calls of a private worker, and the part of each result that leaves it. All others are rejected (privacy.md)."""

OUTSIDE = (
    "the number of rows of a client that has its own data",
    "whether the update of a client was finite",
    "names of columns, categories and classes of a node that has its own data, and statistics that its owner gives",
    "sums of metrics over rows that a node never trains on, if its owner gives them",
    "which clients were called and answered, and when",
    "the class of an error in a worker",
)
"""Values that leave a private worker, or can be observed, and that epsilon does not cover."""


class PrivateWorker:
    """A `Learner` behind the list: calls outside `LEAVES` are rejected, and only the listed part of a result leaves.

    Losses, optimizer states, gradients, replicas, buffers, evaluations and the texts of errors do not leave the worker.

    Parameters
    ----------
    privacy : privacy settings of the run.
    learner : creates the worker itself; default `Learner`.
    given, options : its arguments.

    Raises
    ------
    PrivacyError : the worker would send more than updates: by a codec, or by buffers of its model.
    """

    hosted, brief = Learner.hosted, Learner.brief

    def __init__(
        self, *given: Any, privacy: Privacy, learner: Callable[..., Learner] = Learner, **options: Any
    ) -> None:
        name, table = options.get("codec", ("identity", {}))
        if name != "identity" or table or options.get("personal"):
            raise PrivacyError("a private worker accepts only the codec 'identity', and no personal parameters")
        self._privacy = privacy
        self._learner = _closed(learner, "constructor", *given, privacy=privacy, **options)
        if self._learner.buffers().size:
            raise PrivacyError("a private worker accepts no model with buffers, such as the means of BatchNorm")

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call.startswith("_"):
            raise AttributeError(call)
        reduce = LEAVES.get(call)
        if reduce is None:
            raise PrivacyError(
                f"a private worker does not answer {call!r}: the guarantee does not cover what it returns"
            )

        def answer(*given: Any, **named: Any) -> Any:
            if named.get("reached"):
                raise PrivacyError("a private worker sends a change of weights, and no weights")
            return reduce(_closed(getattr(self._learner, call), call, *given, **named), self._privacy)

        self.__dict__[call] = answer
        return answer


def _closed(ask: Callable[..., Any], call: str, *given: Any, **named: Any) -> Any:
    """Return the result of a call; of an error, which may quote data, release its class only.

    The texts of errors of the protocol, of lost actors, of limits and of the settings contain no data. They are released
    without causes and notes, which may contain data.
    """
    try:
        return ask(*given, **named)
    except Exception as error:
        released = error.with_traceback(None) if _has_no_data(error) else None
        if released is None or error.__context__ is not None:
            _log.error("a call of a private worker failed: %s\n%s", call, printable_lines(traceback.format_exc()))
        kind = type(error).__name__
    if released is None:
        raise PrivacyError(f"{kind} in {call} of a private worker; the text is only in the log of the worker")
    released.__cause__ = released.__context__ = None
    released.__dict__.pop("__notes__", None)
    raise released


def _has_no_data(error: Exception) -> bool:
    of_settings = isinstance(error, ConfigurationError) and not isinstance(error, DataError)
    return of_settings or isinstance(error, PrivacyError | ActorLost | TimeLimitError)
