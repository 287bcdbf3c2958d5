"""Optimizers that torch lacks: Yogi, and the server optimizers of federated learning (Reddi et al. 2021, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Adaptive(torch.optim.Optimizer):
    """Takes steps of m / (sqrt(v) + tau), with m a moving mean of gradients, without bias correction; subclasses define v."""

    def __init__(self, params: Any, lr: float, beta1: float, beta2: float, tau: float, initial: float | None) -> None:
        if not lr >= 0 or not (0 <= beta1 < 1 and 0 <= beta2 < 1) or not tau > 0:
            raise ValueError(
                f"lr must be at least 0, betas from 0 to 1, tau above 0: they are {lr}, {beta1}, {beta2}, {tau}"
            )
        first = tau**2 if initial is None else initial
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau, "initial": first})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """Take one step with the current gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.full_like(parameter, group["initial"])
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(group["beta1"]).add_(gradient, alpha=1 - group["beta1"])
        self._follow(square, gradient.square(), group["beta2"])
        parameter.addcdiv_(mean, square.sqrt().add_(group["tau"]), value=-group["lr"])

    def _follow(self, square: Tensor, new: Tensor, beta: float) -> None:
        raise NotImplementedError


class FedAdagrad(_Adaptive):
    """v is the sum of the squares, from tau^2 on."""

    def __init__(self, params: Any, lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> None:
        _Adaptive.__init__(self, params, lr, beta1, 0.0, tau, None)

    def _follow(self, square: Tensor, new: Tensor, beta: float) -> None:  # noqa: ARG002
        square.add_(new)


class FedAdam(_Adaptive):
    """v is a moving mean of the squares, from tau^2 on."""

    def __init__(self, params: Any, lr: float = 0.03, betas: Sequence[float] = (0.9, 0.99), tau: float = 1e-3) -> None:
        _Adaptive.__init__(self, params, lr, *_pair(betas), tau, None)

    def _follow(self, square: Tensor, new: Tensor, beta: float) -> None:
        square.mul_(beta).add_(new, alpha=1 - beta)


class FedYogi(FedAdam):
    """v moves towards the square by a share of the square, whichever is larger."""

    def _follow(self, square: Tensor, new: Tensor, beta: float) -> None:
        square.addcmul_(torch.sign(square - new), new, value=beta - 1)


class Yogi(FedYogi):
    """`FedYogi` for any use (Zaheer et al. 2018, "Adaptive Methods for Nonconvex Optimization").

    Parameters
    ----------
    eps : number that is added to the root of v.
    initial : initial value of v.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-3,
        initial: float = 1e-6,
    ) -> None:
        _Adaptive.__init__(self, params, lr, *_pair(betas), eps, initial)


def _pair(betas: Sequence[float]) -> tuple[float, float]:
    if len(betas) != 2:
        raise ValueError(f"betas are two numbers, not {betas!r}")
    return betas[0], betas[1]


OPTIMIZERS = (FedAdagrad, FedAdam, FedYogi, Yogi)
