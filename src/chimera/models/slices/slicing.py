"""Which layers of a network are cut over workers, and how (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from chimera.models.slices.attention import SlicedAttention
from chimera.models.slices.layers import (
    ColumnLinear,
    LoneLinear,
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
    """Put a worker's slices in the places of the layers that can be cut, anywhere in a module.

    Two linear layers of an ``nn.Sequential`` with nothing but elementwise layers between them, as those of a transformer's
    layer, are cut by columns and by rows; a linear layer alone by rows; embeddings by the rows of the vocabulary; attention by
    heads. What has fewer columns, rows or heads than there are workers stays whole, and so does what shares a parameter.
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
                setattr(module, name, LoneLinear(child, self._part))
            elif type(child) is nn.Embedding and self._can(child, "num_embeddings") and _plain_embedding(child):
                setattr(module, name, SlicedEmbedding(child, self._part))
            elif type(child) is nn.MultiheadAttention:
                if self._can(child, "num_heads") and _plain_attention(child):
                    setattr(module, name, SlicedAttention(child, self._part))
            else:
                self.walk(child)

    def _pairs(self, sequence: nn.Sequential) -> Iterator[tuple[str, str]]:
        """Yield the names of linear layers that follow one another, each in one pair at most."""
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
        """Return whether a layer has enough of what is cut, and its parameters for itself."""
        return getattr(layer, sizes) >= self._part.among and self._tied.isdisjoint(map(id, layer.parameters()))


def _plain_embedding(layer: nn.Embedding) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def _plain_attention(layer: nn.MultiheadAttention) -> bool:
    return layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
