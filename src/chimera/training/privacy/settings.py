"""Privacy settings of a run: the table ``[train.privacy]``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.core.validation_message import validation_message
from chimera.models.model import Model
from chimera.privacy.fixed_point import FixedPoint
from chimera.privacy.noise import TAIL, NoiseSeed
from chimera.strategies.strategy import Strategy
from chimera.training.plugin import label


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Protection of the updates of clients (workers) against readers of the model, and optionally against servers.

    Parameters
    ----------
    clip : bound of the L2 norm of a client's update; longer updates are scaled down to it.
    noise : noise multiplier: the sum of a round has Gaussian noise with standard deviation ``noise * clip``. With 0 there is no
        noise and no guarantee.
    delta : delta of the reported epsilon; choose it far below 1 divided by the number of clients.
    on : ``clients``: each of n clients adds noise with standard deviation ``noise * clip / sqrt(n)``; ``server``: the server
        adds all noise.
    noise_seed : source of noise: the operating ``system``, or the seed of the ``run``, for tests that repeat a run. A reader of
        the experiment file can subtract seeded noise, so no epsilon is reported for it.
    secure_aggregation : mask updates, so that servers that follow the protocol read the sum of a round only.
    threshold : fraction of a round's clients, above a half, that must survive secure aggregation; otherwise the round is
        repeated.

    Raises
    ------
    ConfigurationError : a value is out of range.
    MissingExtraError : a package is not installed.
    """

    clip: float
    noise: float = 0.0
    delta: float = 1e-5
    on: Literal["clients", "server"] = "clients"
    noise_seed: NoiseSeed = "system"
    secure_aggregation: bool = False
    threshold: float = 0.6

    def __post_init__(self) -> None:
        for key, right, must in (
            ("clip", 0 < self.clip < math.inf, "a norm, above 0"),
            ("noise", 0 <= self.noise < math.inf, "a multiple of clip, at least 0"),
            ("delta", 0 < self.delta < 1, "a probability, above 0 and below 1"),
            ("threshold", 0.5 <= self.threshold <= 1, "a share of the clients, from 0.5 to 1"),
        ):
            if not right:
                raise ConfigurationError(f"privacy: {key} is {must}, not {getattr(self, key)}")
        if self.secure_aggregation:
            _need("secure aggregation", "cryptography")

    @classmethod
    def of(cls, given: Any) -> Privacy | None:
        """Return the settings of a user's table; None if it is not set.

        Raises
        ------
        ConfigurationError : a key is unknown or missing, or a value has the wrong type.
        """
        if given is None or isinstance(given, Privacy):
            return given
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"privacy is a table such as {{clip = 1.0, noise = 1.1}}, not {given!r}")
        keys = [field.name for field in fields(cls)]
        if unknown := [key for key in given if key not in keys]:
            raise ConfigurationError(f"privacy has no key {unknown[0]!r}; keys: {', '.join(keys)}")
        try:
            return msgspec.convert(dict(given), cls)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, ConfigurationError):
                raise error.__cause__ from None
            message = validation_message(error, cls).replace("Object missing required field", "there is no")
            raise ConfigurationError(f"privacy: {message}") from None

    def deviation(self, asked: int) -> float:
        """Return the standard deviation of the noise that each of ``asked`` clients adds to its update."""
        return self.noise * self.clip / math.sqrt(asked) if self.on == "clients" else 0.0

    def multiplier(self, contributors: int, asked: int) -> float:
        """Return the noise multiplier of the sum of ``contributors`` of ``asked`` updates. Missing clients add no noise."""
        return self.noise * (math.sqrt(contributors / asked) if self.on == "clients" else 1.0)

    def code(self, asked: int) -> FixedPoint:
        """Return the fixed-point code in which updates of ``asked`` clients are masked and added."""
        return FixedPoint(self.clip + TAIL * self.deviation(asked), asked)

    def needed(self, asked: int) -> int:
        """Return the number of ``asked`` clients that must survive a round."""
        return max(math.ceil(self.threshold * asked - 1e-9), asked // 2 + 1)

    def check(self, strategy: Strategy, name: str, codec: tuple[str, Mapping[str, Any]], workers: int) -> None:
        """Raise ConfigurationError if messages of this strategy's workers cannot be kept private, or a package is missing."""
        if self.noise:
            _need("the accountant of epsilon", "opacus")  # in the driver: nodes add noise without it
        asked = strategy.aggregated(workers)
        rule = "mean" if asked is None else label(asked.rule)
        for refused, reason in (
            (
                asked is None or not strategy.private,
                f"workers of strategy {name!r} send more than one change of weights a round: use 'fed-avg'",
            ),
            (
                asked is not None and asked.edges > 0,
                "edge servers would read the sums of few clients: remove hierarchical",
            ),
            (asked is not None and asked.reached, "clients cannot clip weights, only changes: set send to 'change'"),
            (rule != "mean", f"aggregation {rule!r} needs each update, but privacy reveals the sum only: use 'mean'"),
            (codec != ("identity", {}), f"codec {codec[0]!r} changes clipped updates: use 'identity'"),
            (
                self.noise > 0 and asked is not None and (asked.weighted or asked.by_samples),
                "epsilon does not cover weights by samples: with noise, remove weighted, and local_epochs of fed-nova",
            ),
            (
                self.secure_aggregation and asked is not None and asked.contributors < 2,
                "with one client in a round, the sum is its update: use more clients",
            ),
        ):
            if refused:
                raise ConfigurationError(f"privacy: {reason}")

    def check_model(self, model: Model, strategy: Strategy) -> None:
        """Raise ConfigurationError if workers would send other parts of this model than updates."""
        if model.buffers().size:
            raise ConfigurationError(
                "privacy: the model has buffers, such as the means of BatchNorm, which clients would send unprotected for "
                "evaluation and checkpoints: use a model without buffers, for example with GroupNorm or LayerNorm"
            )
        if strategy.keeps(model):
            raise ConfigurationError(
                "privacy: personal parameters would be sent for evaluation: use a strategy without personal parameters"
            )


def _need(what: str, module: str) -> None:
    """Raise MissingExtraError if a package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(what, module, "privacy")
