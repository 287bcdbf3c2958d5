"""Attention split by heads (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from chimera.models.slices.collectives import copy_to_group, reduce_from_group
from chimera.models.slices.layers import Slice, SlicedDropout, sliced


class SlicedAttention(nn.Module):
    """A worker's heads of an ``nn.MultiheadAttention``: one all-reduce in the forward pass and one in the backward pass.

    It returns no attention weights, as with ``need_weights=False``.
    """

    def __init__(self, whole: nn.MultiheadAttention, part: Slice) -> None:
        super().__init__()
        heads, width = whole.num_heads, whole.head_dim
        own = part.of(heads)
        self.width, self.batch_first = width, whole.batch_first
        self.in_proj_weight = sliced(whole.in_proj_weight, 1, part, (3, heads, width, heads * width))
        self.in_proj_bias = None
        if whole.in_proj_bias is not None:
            self.in_proj_bias = sliced(whole.in_proj_bias, 1, part, (3, heads, width))
        self.out_proj = _Projection(whole, part)
        self.dropout = SlicedDropout(whole.dropout, heads, own, 1)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: ARG002 - callers may pass it
        attn_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Return the outputs of the whole layer, and None as weights. Masks are boolean, or are added to the scores."""
        given = [query, key, value]
        once = {id(each): copy_to_group(each) for each in given}  # in self-attention, all three are the same tensor
        inputs = [once[id(each)] for each in given]
        if query.dim() == 2:
            inputs = [each.unsqueeze(0) for each in inputs]
        elif not self.batch_first:
            inputs = [each.transpose(0, 1) for each in inputs]
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.view(3, -1)
        weights = self.in_proj_weight.flatten(1, 2)
        q, k, v = (
            self._heads(functional.linear(each, weight, bias))
            for each, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.width)  # shape (n, own heads, queries, keys)
        if attn_mask is not None:
            mask = _added(attn_mask, scores)
            if mask.dim() == 3:  # one for each head
                mask = mask.view(scores.shape[0], -1, *mask.shape[1:])[:, self.dropout.own]
            scores = scores + mask
        if key_padding_mask is not None:
            scores = scores + _added(key_padding_mask, scores)[..., None, None, :]
        mixed = self.dropout(scores.softmax(-1)) @ v
        # The steps are the first dimension in memory, as in the whole layer: a later dropout draws its mask in this order.
        outputs: Tensor = self.out_proj(mixed.permute(2, 0, 1, 3).flatten(2))
        if query.dim() == 2:
            return outputs[:, 0], None
        return (outputs.transpose(0, 1) if self.batch_first else outputs), None

    def _heads(self, tensor: Tensor) -> Tensor:
        return tensor.view(*tensor.shape[:2], -1, self.width).transpose(1, 2)


class _Projection(nn.Module):
    """A row-parallel linear layer over the worker's heads, see `RowLinear`."""

    def __init__(self, whole: nn.MultiheadAttention, part: Slice) -> None:
        super().__init__()
        shape = whole.embed_dim, whole.num_heads, whole.head_dim
        self.weight = sliced(whole.out_proj.weight, 1, part, shape)
        self.bias = whole.out_proj.bias

    def forward(self, heads: Tensor) -> Tensor:
        outputs = reduce_from_group(functional.linear(heads, self.weight.flatten(1)))
        return outputs if self.bias is None else outputs + self.bias


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask to add to the scores: a boolean mask, True where attention is not allowed, becomes 0 and -inf."""
    if mask.dtype == torch.bool:
        return like.new_zeros(mask.shape).masked_fill(mask, -math.inf)
    return mask
