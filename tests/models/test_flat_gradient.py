"""Gradients of small and large parameters in one vector."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from chimera.models.flat_module import FlatModule

WIDTH = 260  # a matrix of this width has a large gradient, and a bias a small one


def chain() -> nn.Module:
    """Return layers whose gradients are large, small, large, small."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


class Words(nn.Module):
    """A large table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH, sparse=True)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(words).mean(1))


def of_autograd(module: nn.Module, *losses: Callable[[nn.Module], torch.Tensor]) -> np.ndarray:
    """Return the sum of gradients as torch computes it for a module of its own."""
    plain = copy.deepcopy(module)
    for parameter in plain.parameters():
        parameter.grad = None
    for loss in losses:
        loss(plain).backward()
    pieces = [
        np.zeros(parameter.numel(), np.float32)
        if parameter.grad is None
        else parameter.grad.to_dense().flatten().numpy()
        for parameter in plain.parameters()
    ]
    return np.concatenate(pieces)


def whole(module: nn.Module) -> torch.Tensor:
    return module(torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)).square().sum()


def half(module: nn.Module) -> torch.Tensor:
    """Use the first layer only."""
    return module[0](torch.linspace(0, 1, WIDTH)).square().sum()  # type: ignore[index]


def words(module: nn.Module) -> torch.Tensor:
    return module(torch.tensor([[1, 2, 2], [7, 7, 259]])).square().sum()


def computed(flat: FlatModule, *losses: Callable[[nn.Module], torch.Tensor]) -> np.ndarray:
    flat.clear_gradient()
    for loss in losses:
        loss(flat.module).backward()
    return flat.collect_gradient()


@pytest.mark.parametrize(
    ("make", "losses"),
    [(chain, (whole,)), (chain, (whole, half)), (chain, (half,)), (Words, (words,)), (Words, (words, words))],
)
def test_the_vector_holds_what_autograd_computes(
    make: Callable[[], nn.Module], losses: tuple[Callable[[nn.Module], torch.Tensor], ...]
) -> None:
    flat = FlatModule(make(), lambda size: np.full(size, np.nan, np.float32))
    for _ in range(3):  # nothing is left of an earlier pass
        assert np.array_equal(computed(flat, *losses), of_autograd(flat.module, *losses))


def test_a_parameter_without_a_gradient_has_zeros_after_a_pass_that_used_it() -> None:
    flat = FlatModule(chain(), lambda size: np.empty(size, np.float32))
    computed(flat, whole)
    found = computed(flat, half)
    assert np.array_equal(found, of_autograd(flat.module, half))
    assert not found[WIDTH * (WIDTH + 1) :].any()


def test_every_gradient_is_a_view_of_the_vector_after_a_pass() -> None:
    flat = FlatModule(chain(), lambda size: np.empty(size, np.float32))
    vector = computed(flat, half)
    vector.fill(7)
    assert all((parameter.grad == 7).all() for parameter in flat.module.parameters())


def test_a_new_parameter_is_watched_and_the_old_one_no_longer() -> None:
    flat = FlatModule(chain(), lambda size: np.empty(size, np.float32))
    computed(flat, whole)
    old = next(flat.module.parameters())
    flat.module.load_state_dict(copy.deepcopy(flat.module.state_dict()), assign=True)
    kept = computed(flat, whole).copy()
    assert np.array_equal(kept, of_autograd(flat.module, whole))
    old.grad = None
    old.square().sum().backward()
    assert np.array_equal(flat.gradient, kept)


def test_gradients_that_the_module_clears_during_a_pass_do_not_count() -> None:
    flat = FlatModule(chain(), lambda size: np.empty(size, np.float32))
    flat.clear_gradient()
    half(flat.module).backward()
    flat.module.zero_grad()
    whole(flat.module).backward()
    assert np.array_equal(flat.collect_gradient(), of_autograd(flat.module, whole))
