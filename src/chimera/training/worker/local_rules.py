"""What changes the gradients of local steps, so that workers with data of their own do not drift apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.device import beside, copy_of, namespace, to_host
from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry


class LocalRule(ABC):
    """One worker's. All vectors have shape (P,) and lie where the model computes.

    Attributes
    ----------
    encloses : whether a vector comes with the weights, and another goes with the change.
    """

    encloses: ClassVar[bool] = False

    @abstractmethod
    def begin(self, weights: Any, enclosed: Any) -> None:
        """Begin a round at these weights, which stay as they are until it ends, with what came with them or None."""

    @abstractmethod
    def correct(self, gradient: Any, weights: Any) -> None:
        """Change the gradient of a step, in place, before it is taken at ``weights``."""

    def end(self) -> Any:
        """Return what goes with the change, when all steps were taken; a new vector each time, or None."""
        return

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return what it remembers from one round to the next."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027 - not all remember something
        """Take back what `state` returned."""


LOCAL_RULES: Registry[LocalRule] = Registry("local rule", "chimera.training")


@LOCAL_RULES.register("proximal")
class Proximal(LocalRule):
    """Pulls back to where the round began: adds the gradient of mu/2 ||w - w_0||^2 (FedProx: Li et al. 2020, algorithm 2).

    Parameters
    ----------
    mu : the strength; 0 changes nothing.
    """

    def __init__(self, *, mu: float) -> None:
        if not 0 <= mu < float("inf"):
            raise ConfigurationError(f"mu must be at least 0, not {mu}")
        self._mu = mu

    def begin(self, weights: Any, enclosed: Any) -> None:  # noqa: ARG002, D102
        self._begin = weights

    def correct(self, gradient: Any, weights: Any) -> None:  # noqa: D102
        way = weights - self._begin
        way *= np.float32(self._mu)
        gradient += way


@LOCAL_RULES.register("control-variates")
class ControlVariates(LocalRule):
    """Adds c - c_i, the servers' control variate less its own, which is its mean gradient of the last round it was in.

    This is option II of SCAFFOLD (Karimireddy et al. 2020, equation 4): there c_i is computed from the way, which for SGD with
    a constant rate is the same, and is so for no other optimizer. By how much c_i has changed goes to the servers.
    """

    encloses = True

    def __init__(self) -> None:
        self._own: Any = None

    def begin(self, weights: Any, enclosed: Any) -> None:  # noqa: D102
        if self._own is None:
            self._own = namespace(weights).zeros_like(weights)
        self._own = beside(self._own, weights)
        self._shift, self._sum, self._steps = enclosed - self._own, namespace(weights).zeros_like(weights), 0

    def correct(self, gradient: Any, weights: Any) -> None:  # noqa: ARG002, D102
        self._sum += gradient
        self._steps += 1
        gradient += self._shift

    def end(self) -> Any:
        """Return the new c_i less the old one."""
        before, self._own = self._own, self._sum / np.float32(self._steps)
        return self._own - before

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return c_i."""
        return {} if self._own is None else {"control": to_host(copy_of(self._own))}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take it back; a worker that was never asked has none."""
        self._own = np.array(state["control"], np.float32) if state else None
