"""Delay-compensated asynchronous SGD, DC-ASGD (Zheng et al. 2017, "Asynchronous SGD with Delay Compensation")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.async_parameter_server import AsyncParameterServer
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("delay-compensated")
class DelayCompensated(AsyncParameterServer):
    """Asynchronous; servers correct each gradient g for the change of the weights since its worker read them.

    Servers step by g + lambda * g * g * (w_now - w_then). This is a first-order Taylor correction, with g * g as an
    approximation of the diagonal of the Hessian.

    Parameters
    ----------
    lambda_ : strength of the correction; default 0.04, and 0 disables it.
    decay : decay factor per step of a moving mean of g * g; lambda is divided, element-wise, by the root of that mean (the
        paper's adaptive variant, with 0.95). Default: none, and lambda is constant.
    shards : number of servers over which the parameters are spread; default 1.
    """

    def __init__(self, *, lambda_: float = 0.04, decay: float | None = None, shards: int = 1) -> None:
        super().__init__(shards=shards)
        if not lambda_ >= 0:
            raise ConfigurationError(f"lambda_ must be at least 0, not {lambda_}")
        if decay is not None and not 0 <= decay < 1:
            raise ConfigurationError(f"decay must be at least 0 and below 1, not {decay}")
        self.lambda_, self.decay = lambda_, decay

    def update(self, server: Any, gradient: Any, old_weights: Any) -> Sequence[Any]:
        """Apply a corrected gradient on one server."""
        return server.compensate(gradient, old_weights, self.lambda_, self.decay, returns=2)  # type: ignore[no-any-return]
