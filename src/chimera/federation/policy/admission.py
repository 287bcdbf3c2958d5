"""The comparison of runs and calls with a policy. It reads no data and keeps no state."""

from __future__ import annotations

import math
from typing import Any

from chimera.data.order import OwnOrder
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.options import why_not
from chimera.federation.policy.policy import Policy
from chimera.federation.policy.requests import Call, Requester
from chimera.federation.policy.rules import ARGUMENTS, DESCRIBER, LEARNER, MASKS, PRIVATE, START, STRATEGIES
from chimera.training.privacy.settings import Privacy

_MAX_NUMBER = (1 << 63) - 1
_MAX_NAME_CHARACTERS = 200
_MAX_EPOCHS = 1e6
_WORKER_ARGUMENTS, _FOLLOW_ARGUMENTS = 4, 2  # rank, schema, no data, reading order; reading order, step


def is_well_formed(requester: Requester, call: Call) -> bool:
    """Return whether the names in a call, its number and its size have the right types and sizes."""
    texts = (requester.name, requester.fingerprint, call.run, call.kind, call.method, call.actor)
    numbers = (call.number, call.size)
    return (
        all(
            type(text) is str and len(text) <= _MAX_NAME_CHARACTERS and text.isascii() and text.isprintable()
            for text in texts
        )
        and all(type(number) is int and 0 <= number <= _MAX_NUMBER for number in numbers)
        and bool(requester.name and call.run)
    )


def run_refusal(policy: Policy, declared: Declared) -> str | None:
    """Return why a policy does not allow a run; None if it does. The reason follows from policy and settings only."""
    strategy, model = str(declared.strategy["name"]), declared.model_name
    in_folder = declared.model["name"] == "folder"
    if model in policy.models and (policy.models[model].folder is not None) != in_folder:
        return "the model is not allowed here"
    return (
        why_not("strategy", strategy, declared.options(declared.strategy), policy.strategies)
        or why_not("model", model, declared.options(declared.model), policy.models)
        or _protection_refusal(policy, declared, private=policy.strategies[strategy].private)
        or _metrics_refusal(policy, declared)
    )


def _protection_refusal(policy: Policy, declared: Declared, *, private: bool) -> str | None:
    bounds, masks, protection = policy.privacy, policy.secure_aggregation, declared.protection
    if protection is None:
        bare = bounds.unlimited and bounds.min_noise == 0 and masks != "required"
        return None if bare else "updates leave this node with noise or masks only: set [train.privacy]"
    for wrong, reason in (
        (not private, "updates of this strategy cannot leave with noise or masks"),
        (protection.noise < bounds.min_noise, f"noise must be at least {bounds.min_noise:g}"),
        (protection.clip > bounds.max_clip, f"clip must be at most {bounds.max_clip:g}"),
        (protection.on != "clients", "noise of the server is not credited: set on = 'clients'"),
        (protection.noise_seed != "system", "noise of a seed is not credited: set noise_seed = 'system'"),
        (masks == "required" and not protection.secure_aggregation, "secure_aggregation must be true"),
        (masks == "refused" and protection.secure_aggregation, "secure_aggregation must be false"),
        (
            protection.secure_aggregation and protection.needed(declared.nodes) < (policy.min_nodes_in_sum or 1),
            f"raise threshold, or use more nodes: sums must have at least {policy.min_nodes_in_sum} nodes",
        ),
    ):
        if wrong:
            return f"[train.privacy]: {reason}"
    return None


def _metrics_refusal(policy: Policy, declared: Declared) -> str | None:
    refused = [name for name in declared.metrics if name not in policy.release.metrics]
    return f"the metric {refused[0]!r:.60} does not leave this node" if refused else None


def arguments_agree(call: Call, declared: Declared, policy: Policy, rows: int) -> bool:
    """Return whether the arguments of a call are those of the declared run.

    Parameters
    ----------
    policy : a policy that allows the run.
    rows : number of rows of the node.
    """
    protection, method = declared.protection, call.method
    if call.kind == DESCRIBER:
        return not call.given and not call.named
    if call.kind != (LEARNER if protection is None else PRIVATE):
        return False
    if not call.named.keys() <= ARGUMENTS.get(method, frozenset()):
        return False
    masked = protection is not None and protection.secure_aggregation
    if method == START:
        return (
            bool(call.named.get("privacy") == protection) and _names_model(call, declared) and _reads_all(call.given[3])
        )
    if method == "follow":
        return len(call.given) == _FOLLOW_ARGUMENTS and not call.named and _reads_all(call.given[0])
    if method in MASKS:
        return masked
    if method == "take_part":
        clients = call.given[0] if call.given else None
        return not masked and type(clients) is int and 1 <= clients <= declared.nodes and not call.named
    strategy = str(declared.strategy["name"])
    if method in STRATEGIES.values():
        return STRATEGIES[strategy] == method and (method != "delta" or _steps_agree(call, declared, policy, rows))
    return True


def _names_model(call: Call, declared: Declared) -> bool:
    """Return whether an actor begins with the declared model. A schema without a model means the node's only model."""
    if len(call.given) != _WORKER_ARGUMENTS:
        return False
    request = getattr(call.given[1], "request", None)
    return request is None or request.model == dict(declared.model)


def _reads_all(order: Any) -> bool:
    """Return whether an order reads all training rows. A requester must not choose a few rows for an update."""
    return (
        type(order) is OwnOrder and order.test_share is None and type(order.batch_size) is int and order.batch_size >= 1
    )


def _steps_agree(call: Call, declared: Declared, policy: Policy, rows: int) -> bool:
    """Return whether an update has at most the declared number of local steps, and a finite weight."""
    defaults = policy.strategies[str(declared.strategy["name"])].defaults
    options, named = {**defaults, **declared.options(declared.strategy)}, call.named
    steps, weight, epochs = named.get("steps"), named.get("weight", 1.0), options.get("local_epochs")
    most: Any = options.get("local_steps")
    if epochs is not None:
        most = math.ceil(epochs * rows) if type(epochs) in (int, float) and 0 < epochs < _MAX_EPOCHS else 0
    right = type(steps) is int and type(most) is int and 1 <= steps <= most
    finite = type(weight) in (int, float) and abs(weight) < math.inf
    return right and finite and not (named.get("reached") and declared.privacy is not None)


def multiplier(protection: Privacy | None, share: float, protects: str) -> float:
    """Return the noise multiplier of one update as the node counts it; 0 without noise.

    Parameters
    ----------
    share : the noise in the released value, as a fraction of the variance of a whole round: 1 / n for one update of n,
        and m / n for a sum of m masked updates of n.
    protects : see `PrivacyBounds`.
    """
    if protection is None:
        return 0.0
    return protection.noise * math.sqrt(share) / (2.0 if protects == "rows" else 1.0)


def planned_share(declared: Declared) -> float:
    """Return the smallest ``share`` of `multiplier` that the settings of a run permit."""
    protection = declared.protection
    if protection is not None and protection.secure_aggregation:
        return max(protection.threshold, 0.5)
    return 1.0 / declared.nodes
