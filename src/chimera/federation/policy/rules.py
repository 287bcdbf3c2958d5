"""The calls that the actors of a node answer for requesters, and the values that each releases. All other calls are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Leaves: TypeAlias = Literal[
    "nothing", "start", "schema", "update", "training state", "counts", "metrics", "statistics", "rows", "masks"
]
"""The kind of values that a call releases.

- ``nothing``: values that follow from the request or the size of the model.
- ``start``: the actor begins; the settings of the run and the arguments are compared with the policy.
- ``update``: one update of the model, which the node's data determine. Each spends the budget.
- ``training state``: other values that follow from gradients, such as buffers and momenta.
- ``counts``: numbers of rows.
- ``metrics``, ``statistics``, ``rows``: see `Release`.
- ``schema``: names and types of columns, and classes; the node adds figures only as `Release` permits.
- ``masks``: messages of secure aggregation.
"""

LEARNER = "chimera.training.worker.learner.Learner"
PRIVATE = "chimera.training.privacy.worker.PrivateWorker"
DESCRIBER = "chimera.training.nodes_data.description.DataDescriber"
START = "__init__"

_ALWAYS: Mapping[str, Leaves] = {
    START: "start",
    "delta": "update",
    "evaluate": "metrics",
    "measure": "metrics",
    "samples": "counts",
    "share": "counts",
    "batches_per_pass": "counts",
    "step": "nothing",
    "go_to": "nothing",
    "reduce_rates": "nothing",
    "follow": "nothing",
    "forget_answer": "nothing",
}
CALLS: Mapping[str, Mapping[str, Leaves]] = {
    PRIVATE: {
        **_ALWAYS,
        "tally": "nothing",  # sizes of messages, see `chimera.training.privacy.worker`
        "take_part": "nothing",
        "has_masked": "counts",
        "advertise_keys": "masks",
        "share_secrets": "masks",
        "receive_secrets": "nothing",
        "reveal_shares": "masks",
    },
    LEARNER: {
        **_ALWAYS,
        "gradient": "update",
        "tally": "training state",  # includes the loss of batches
        "buffers": "training state",
        "momenta": "training state",
        "local_state": "training state",
        "codec_states": "training state",
        "personal": "training state",  # the evaluation of a driver that has test data requests it
        "remembers": "nothing",
        "load_buffers": "nothing",
        "take_over": "nothing",
        "restore_local": "nothing",
        "restore_codecs": "nothing",
    },
    DESCRIBER: {START: "start", "describe": "schema"},
}
"""The kinds of values that the calls of each class of actors release."""

_LOCAL_STEPS = (
    "fed-avg", "fed-avg-m", "fed-adagrad", "fed-adam", "fed-bn", "fed-buff", "fed-nova", "fed-prox", "fed-yogi", "scaffold",
)  # fmt: skip
_GRADIENTS = ("async-parameter-server", "parameter-server", "stale-synchronous")
STRATEGIES: Mapping[str, str] = {
    **dict.fromkeys(_LOCAL_STEPS, "delta"),
    **dict.fromkeys(_GRADIENTS, "gradient"),
}
"""The call by which each strategy requests an update. A run gets updates by the call of its declared strategy only."""

ARGUMENTS: Mapping[str, frozenset[str]] = {
    START: frozenset(
        {"optimizer", "codec", "downlink", "seed", "privacy", "extensions", "loading", "device", "personal"}
    ),
    "delta": frozenset({"steps", "first", "keep_state", "weight", "reached", "clock", "rule", "round_", "shares"}),
}
"""Named arguments of calls that have any."""


MASKS = frozenset({"advertise_keys", "share_secrets", "receive_secrets", "reveal_shares", "has_masked"})
"""The calls of secure aggregation."""


def leaves(kind: str, method: str) -> Leaves | None:
    """Return the kind of values that a call releases; None if no actor answers it for a requester."""
    return CALLS.get(kind, {}).get(method)
