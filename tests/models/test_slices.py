"""Sliced layers, computed by actors of a group, equal the whole layers: outputs, gradients of inputs and of parameters."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chimera.engines.simulated import Simulated
from chimera.models.slices.collectives import slice_group
from chimera.models.slices.layers import Slice
from chimera.models.slices.slicing import slice_layers

TORCH = torch.Generator().manual_seed(0)


class Attention(nn.Module):
    """A module that calls an attention layer, as in a user's code."""

    def __init__(self, masks: dict[str, Tensor], **options: Any) -> None:
        super().__init__()
        self.attention, self.masks = nn.MultiheadAttention(12, 3, **options), masks

    def forward(self, inputs: Tensor) -> Tensor:
        memory = inputs.flip(0) * 0.5
        return self.attention(inputs, memory, memory, need_weights=False, **self.masks)[0]


class Holder:
    """An actor with a worker's slices that runs forward and backward passes."""

    def __init__(self, module: nn.Module, part: Slice | None) -> None:
        self.module = nn.Sequential(deepcopy(module)).train()
        if part is not None:
            slice_layers(self.module, part)

    def run(self, inputs: Tensor, group: Any = None) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        given = inputs.clone()
        if given.is_floating_point():
            given.requires_grad_()
        torch.manual_seed(7)
        if group is None:
            return self._passed(given)
        with slice_group(group, lambda _: None):
            return self._passed(given)

    def _passed(self, given: Tensor) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        outputs = self.module(given)
        (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum().backward()
        gradients = [(parameter.grad, getattr(parameter, "placement", None)) for parameter in self.module.parameters()]
        return outputs.detach(), given.grad, gradients


FLOATS = torch.randn(5, 6, 12, generator=TORCH)
WORDS = torch.randint(0, 7, (5, 6), generator=TORCH)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
PADDING = torch.arange(6) >= torch.tensor([[6], [4], [6], [2], [5]])
MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "pair": (lambda: nn.Sequential(nn.Linear(12, 7), nn.GELU(), nn.Linear(7, 4, bias=False)), FLOATS),
    "dropout between": (lambda: nn.Sequential(nn.Linear(12, 7), nn.Dropout(0.5), nn.ReLU(), nn.Linear(7, 4)), FLOATS),
    "three": (lambda: nn.Sequential(*(nn.Linear(12, 12) for _ in range(3))), FLOATS),
    "normalised between": (lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 4)), FLOATS),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 12)), nn.Linear(12, 3)), FLOATS),
    "words": (lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=3), nn.Linear(4, 5)), WORDS),
    "attention": (lambda: Attention({}, batch_first=True), FLOATS),
    "attention, dropout": (lambda: Attention({}, batch_first=True, dropout=0.3), FLOATS),
    "attention, causal": (lambda: Attention({"attn_mask": CAUSAL}, batch_first=True, bias=False), FLOATS),
    "attention, padding": (lambda: Attention({"key_padding_mask": PADDING}, batch_first=True), FLOATS),
    "attention, a mask a head": (
        lambda: Attention({"attn_mask": torch.randn(15, 6, 6, generator=torch.Generator().manual_seed(1))}, batch_first=True),
        FLOATS,
    ),
    "attention, steps first": (lambda: Attention({}), FLOATS),
    "attention, no batch": (lambda: Attention({}), FLOATS[0]),
    "transformer": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(12, 3, 10, dropout=0.2, batch_first=True), 2, enable_nested_tensor=False
        ),
        FLOATS,
    ),
    "transformer, norm first": (
        lambda: nn.TransformerEncoderLayer(12, 3, 10, dropout=0.0, activation="gelu", norm_first=True), FLOATS
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("workers", [2, 3])
def test_slices_equal_the_whole(name: str, workers: int) -> None:
    make, inputs = MODULES[name]
    torch.manual_seed(3)
    module = make()
    outputs, back, gradients = Holder(module, None).run(inputs)
    with Simulated() as engine:
        holders = [engine.spawn(Holder, module, Slice(rank, workers)) for rank in range(workers)]
        group = engine.group(holders)
        found = engine.get([holder.run(inputs, group) for holder in holders])
    cut = 0
    for own_outputs, own_back, own_gradients in found:
        torch.testing.assert_close(own_outputs, outputs, atol=2e-6, rtol=1e-5)
        if back is not None:
            torch.testing.assert_close(own_back, back, atol=2e-6, rtol=1e-5)
        for (own, place), (whole, _) in zip(own_gradients, gradients, strict=True):
            expected = whole if place is None else whole.view(place.shape)[place.selector]
            torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
            cut += place is not None and own.numel() < whole.numel()
    assert cut >= workers
    covered = [[own.numel() for own, place in own_gradients if place is not None] for _, _, own_gradients in found]
    whole_sizes = [whole.numel() for (whole, _), (_, place) in zip(gradients, found[0][2], strict=True) if place]
    assert np.sum(covered, axis=0).tolist() == whole_sizes


class Tied(nn.Module):
    """A module whose input embedding and output layer share weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, numbers: Tensor) -> Tensor:
        return self.out(self.words(numbers))


@pytest.mark.parametrize(
    "module",
    [
        Tied(),
        nn.Linear(3, 8),
        nn.Embedding(3, 8),
        nn.Embedding(9, 8, max_norm=1.0),
        nn.MultiheadAttention(12, 3),
        nn.MultiheadAttention(12, 4, add_bias_kv=True),
        nn.MultiheadAttention(12, 4, kdim=5),
        nn.Conv1d(8, 8, 3),
    ],
    ids=str,
)
def test_layers_that_cannot_be_split_stay_whole(module: nn.Module) -> None:
    within = nn.Sequential(module)
    before = str(within)
    slice_layers(within, Slice(0, 4))
    assert str(within) == before
