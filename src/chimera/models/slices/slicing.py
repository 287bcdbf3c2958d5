"""Replacement of a network's layers by slices of them (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from chimera.models.slices.attention import SlicedAttention
from chimera.models.slices.layers import (
    ColumnLinear,
    ReplicatedInputLinear,
    RowLinear,
    Slice,
    SlicedDropout,
    SlicedEmbedding,
)

_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LogSigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
    nn.Identity, nn.Dropout,
)  # fmt: skip


def slice_layers(module: nn.Module, part: Slice) -> None:
    """Replace all layers of a module that can be split by a worker's slices, in place.

    - Two linear layers with only elementwise layers between them, in an ``nn.Sequential`` or a transformer layer, are split by
      columns and by rows.
    - Other linear layers are split by rows, embeddings by rows (words), attention by heads.
    - Layers with fewer columns, rows or heads than workers, and layers that share a parameter, stay whole.
    """
    _Slicing(module, part).walk(module)


class _Slicing:
    def __init__(self, module: nn.Module, part: Slice) -> None:
        self._part = part
        held = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
        self._tied = {number for number, count in held.items() if count > 1}

    def walk(self, module: Any) -> None:
        if isinstance(module, nn.Sequential):
            for first, second in list(self._pairs(module)):
                self._cut_pair(module, first, second)
        pair = isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
        if pair and all(
            self._can(*each) for each in ((module.linear1, "out_features"), (module.linear2, "in_features"))
        ):
            self._cut_pair(module, "linear1", "linear2", ("dropout",))
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and self._can(child, "in_features"):
                setattr(module, name, ReplicatedInputLinear(child, self._part))
            elif type(child) is nn.Embedding and self._can(child, "num_embeddings") and _plain_embedding(child):
                setattr(module, name, SlicedEmbedding(child, self._part))
            elif type(child) is nn.MultiheadAttention:
                if self._can(child, "num_heads") and _plain_attention(child):
                    setattr(module, name, SlicedAttention(child, self._part))
            else:
                self.walk(child)

    def _pairs(self, sequence: nn.Sequential) -> Iterator[tuple[str, str]]:
        """Yield the names of pairs of consecutive linear layers; a layer is in at most one pair."""
        first: str | None = None
        for name, layer in sequence.named_children():
            if type(layer) is nn.Linear:
                if first is not None and self._can(layer, "in_features"):
                    yield first, name
                    first = None
                else:
                    first = name if self._can(layer, "out_features") else None
            elif type(layer) not in _ELEMENTWISE:
                first = None

    def _cut_pair(self, module: nn.Module, first: str, second: str, between: tuple[str, ...] | None = None) -> None:
        names = [name for name, _ in module.named_children()]
        width = getattr(module, first).out_features
        for name in between or names[names.index(first) + 1 : names.index(second)]:
            layer = getattr(module, name)
            if type(layer) is nn.Dropout:
                setattr(module, name, SlicedDropout(layer.p, width, self._part.of(width)))
        setattr(module, first, ColumnLinear(getattr(module, first), self._part))
        setattr(module, second, RowLinear(getattr(module, second), self._part))

    def _can(self, layer: Any, sizes: str) -> bool:
        """Return whether a layer has at least one column, row or head for each worker, and shares no parameter."""
        return getattr(layer, sizes) >= self._part.world_size and self._tied.isdisjoint(map(id, layer.parameters()))


def _plain_embedding(layer: nn.Embedding) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def _plain_attention(layer: nn.MultiheadAttention) -> bool:
    return layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
