"""Delay-compensated asynchronous SGD, DC-ASGD (Zheng et al. 2017, "Asynchronous SGD with Delay Compensation")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.async_parameter_server import AsyncParameterServer
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("delay-compensated")
class DelayCompensated(AsyncParameterServer):
    """Asynchronous, and the servers correct each gradient g for how far the weights have moved since its worker read them.

    They step with g + lambda * g * g * (w_now - w_then): a Taylor step with g * g for the diagonal of the Hessian.

    Parameters
    ----------
    lambda_ : the strength; 0 is no correction.
    decay : with it, lambda is divided element-wise by the root of a moving mean of g * g that decays so much a step (the
        paper's adaptive variant, 0.95 there); without it, lambda is constant.
    shards : over how many servers the parameters are spread.
    """

    def __init__(self, *, lambda_: float = 0.04, decay: float | None = None, shards: int = 1) -> None:
        super().__init__(shards=shards)
        if not lambda_ >= 0:
            raise ConfigurationError(f"lambda_ must be at least 0, not {lambda_}")
        if decay is not None and not 0 <= decay < 1:
            raise ConfigurationError(f"decay must be at least 0 and below 1, not {decay}")
        self.lambda_, self.decay = lambda_, decay

    def update(self, server: Any, gradient: Any, old_weights: Any) -> Sequence[Any]:
        """Let a server correct the gradient and step."""
        return server.compensate(gradient, old_weights, self.lambda_, self.decay, returns=2)  # type: ignore[no-any-return]
