"""Local rules: corrections of the gradients of local steps, against client drift on data that differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.device import copy_of, namespace, to_device_of, to_host
from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry


class LocalRule(ABC):
    """A correction of one worker's gradients. All vectors have shape (P,) and are on the model's device.

    Attributes
    ----------
    encloses : a vector comes with the weights, and another is sent with the change.
    """

    encloses: ClassVar[bool] = False

    @abstractmethod
    def begin(self, weights: Any, enclosed: Any) -> None:
        """Start a round at these weights, which do not change during the round; ``enclosed`` came with them, or is None."""

    @abstractmethod
    def correct(self, gradient: Any, weights: Any) -> None:
        """Change the gradient of a step at ``weights``, in place."""

    def end(self) -> Any:
        """Return the vector that is sent with the change after the last step, a new vector each time; or None."""
        return

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return the state that lasts from one round to the next."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027 - some rules have no state
        """Restore what `state` returned."""


LOCAL_RULES: Registry[LocalRule] = Registry("local rule", "chimera.training")


@LOCAL_RULES.register("proximal")
class Proximal(LocalRule):
    """Adds the gradient of mu/2 ||w - w_0||^2, where w_0 are the weights at the start of the round (FedProx: Li et al. 2020).

    Parameters
    ----------
    mu : strength of the proximal term, at least 0; 0 has no effect.
    """

    def __init__(self, *, mu: float) -> None:
        if not 0 <= mu < float("inf"):
            raise ConfigurationError(f"mu must be at least 0, not {mu}")
        self._mu = mu

    def begin(self, weights: Any, enclosed: Any) -> None:  # noqa: ARG002, D102
        self._begin = weights

    def correct(self, gradient: Any, weights: Any) -> None:  # noqa: D102
        change = weights - self._begin
        change *= np.float32(self._mu)
        gradient += change


@LOCAL_RULES.register("control-variates")
class ControlVariates(LocalRule):
    """Adds c - c_i: the servers' control variate minus the worker's own (SCAFFOLD: Karimireddy et al. 2020, equation 4).

    c_i is the worker's mean gradient in the last round in which it participated. Option II of the paper computes c_i from the
    change of the weights. This gives the same for SGD with a constant rate, but not for other optimizers. The change of c_i is
    sent to the servers.
    """

    encloses = True

    def __init__(self) -> None:
        self._own: Any = None

    def begin(self, weights: Any, enclosed: Any) -> None:  # noqa: D102
        if self._own is None:
            self._own = namespace(weights).zeros_like(weights)
        self._own = to_device_of(self._own, weights)
        self._shift, self._sum, self._steps = enclosed - self._own, namespace(weights).zeros_like(weights), 0

    def correct(self, gradient: Any, weights: Any) -> None:  # noqa: ARG002, D102
        self._sum += gradient
        self._steps += 1
        gradient += self._shift

    def end(self) -> Any:
        """Return the new c_i minus the old one."""
        before, self._own = self._own, self._sum / np.float32(self._steps)
        return self._own - before

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return c_i."""
        return {} if self._own is None else {"control": to_host(copy_of(self._own))}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore c_i; the state of a worker that has not participated yet is empty."""
        self._own = np.array(state["control"], np.float32) if state else None
