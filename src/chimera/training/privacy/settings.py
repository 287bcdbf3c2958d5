"""What a run promises to its clients: the table ``[train.privacy]``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.core.refusal import why
from chimera.models.model import Model
from chimera.privacy.fixed_point import FixedPoint
from chimera.privacy.noise import TAIL, NoiseSeed
from chimera.strategies.strategy import Strategy
from chimera.training.plugin import label


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """How the updates of clients (workers) are kept from whoever sees the model, or the servers.

    Parameters
    ----------
    clip : the L2 norm that what a client sends in a round is scaled down to, if it is longer.
    noise : the noise multiplier: the sum of a round has Gaussian noise with a standard deviation of so many times ``clip``.
        With 0 there is none, and nothing is guaranteed.
    delta : for which epsilon is told; far below one divided by the number of clients.
    on : whether each of n ``clients`` adds its part, of standard deviation noise * clip / sqrt(n), or the ``server`` adds all.
    noise_seed : where noise comes from: the operating ``system``; or the seed of the ``run``, for tests that repeat a run. A
        reader of the experiment file can subtract seeded noise, so that no epsilon is told of it.
    secure_aggregation : whether updates are masked, so that servers that follow the protocol read the sum of a round only.
    threshold : of this, the share of a round's clients that must survive it, above a half: else the round is repeated.

    Raises
    ------
    ConfigurationError : a value out of its range.
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
        for needed, what, module in (
            (self.secure_aggregation, "secure aggregation", "cryptography"),
            (self.noise > 0, "the accountant of epsilon", "opacus"),
        ):
            if needed and importlib.util.find_spec(module) is None:
                raise MissingExtraError(what, module, "privacy")

    @classmethod
    def of(cls, given: Any) -> Privacy | None:
        """Return what a user's table says; nothing if there is none.

        Raises
        ------
        ConfigurationError : a key that there is not, one that is missing, or a value of the wrong type.
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
            said = why(error, cls).replace("Object missing required field", "there is no")
            raise ConfigurationError(f"privacy: {said}") from None

    def deviation(self, asked: int) -> float:
        """Return the standard deviation of the noise that each of ``asked`` clients adds to its update."""
        return self.noise * self.clip / math.sqrt(asked) if self.on == "clients" else 0.0

    def multiplier(self, givers: int, asked: int) -> float:
        """Return the noise multiplier of the sum of ``givers`` of ``asked`` updates: the others took their part with them."""
        return self.noise * (math.sqrt(givers / asked) if self.on == "clients" else 1.0)

    def code(self, asked: int) -> FixedPoint:
        """Return how the updates of ``asked`` clients become words that are masked and added."""
        return FixedPoint(self.clip + TAIL * self.deviation(asked), asked)

    def needed(self, asked: int) -> int:
        """Return how many of ``asked`` clients must survive a round."""
        return max(math.ceil(self.threshold * asked - 1e-9), asked // 2 + 1)

    def check(self, strategy: Strategy, name: str, codec: tuple[str, Mapping[str, Any]], workers: int) -> None:
        """Raise ConfigurationError if what this strategy's workers send cannot be kept private."""
        asked = strategy.aggregated(workers)
        rule = "mean" if asked is None else label(asked.rule)
        for refused, reason in (
            (
                asked is None or not strategy.private,
                f"workers of strategy {name!r} do not send one change of weights a round, and that alone: use 'fed-avg'",
            ),
            (asked is not None and asked.reached, "clients that send weights cannot clip them: set send to 'change'"),
            (rule != "mean", f"aggregation {rule!r} has to see each update, and privacy leaves a sum only: use 'mean'"),
            (codec != ("identity", {}), f"codec {codec[0]!r} makes other vectors of clipped ones: use 'identity'"),
            (
                self.noise > 0 and asked is not None and (asked.weighted or asked.by_samples),
                "epsilon does not cover weights by samples: with noise leave out weighted, and local_epochs of fed-nova",
            ),
            (
                self.secure_aggregation and asked is not None and asked.givers < 2,
                "with one client in a round its update is the sum: let more take part",
            ),
        ):
            if refused:
                raise ConfigurationError(f"privacy: {reason}")

    def check_model(self, model: Model, strategy: Strategy) -> None:
        """Raise ConfigurationError if workers would send more of this model than updates."""
        if model.buffers().size:
            raise ConfigurationError(
                "privacy: the model's buffers, such as BatchNorm's means, would leave the clients as they are, for "
                "evaluation and checkpoints: take a model without, such as one with GroupNorm or LayerNorm"
            )
        if strategy.keeps(model):
            raise ConfigurationError(
                "privacy: parameters that stay with each worker would leave it for evaluation: use a strategy that keeps none"
            )
