"""Slices of linear layers, embeddings and dropout (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from chimera.core.parameters import shard_bounds
from chimera.models.slices.collectives import copy_to_group, reduce_from_group


class Slice(NamedTuple):
    """The part of a dimension that belongs to a worker.

    Attributes
    ----------
    rank, world_size : the worker's number in the group, and the number of workers in it.
    """

    rank: int
    world_size: int

    def of(self, size: int) -> slice:
        """Return the worker's range of a dimension of ``size`` elements."""
        bounds = shard_bounds(size, self.world_size)
        return slice(bounds[self.rank], bounds[self.rank + 1])


class Placement(NamedTuple):
    """The position of a slice in the whole parameter.

    Attributes
    ----------
    shape : shape to which the whole parameter is reshaped before it is sliced.
    dim : the dimension that is split.
    own : the range of this dimension that the slice holds.
    """

    shape: tuple[int, ...]
    dim: int
    own: slice

    @property
    def selector(self) -> tuple[slice, ...]:
        """The index that selects the slice from an array of this shape."""
        return (slice(None),) * self.dim + (self.own,)


def sliced(parameter: Tensor, dim: int, part: Slice, shape: tuple[int, ...] | None = None) -> nn.Parameter:
    """Return a worker's slice of a parameter, reshaped to ``shape`` first if given. Its ``placement`` is a `Placement`."""
    whole = parameter.detach().view(shape or parameter.shape)
    placement = Placement(tuple(whole.shape), dim, part.of(whole.shape[dim]))
    made = nn.Parameter(whole[placement.selector].clone(), requires_grad=parameter.requires_grad)
    made.placement = placement  # type: ignore[attr-defined]
    return made


class ColumnLinear(nn.Module):
    """A worker's outputs of a linear layer (column-parallel): one all-reduce in the backward pass."""

    def __init__(self, whole: nn.Linear, part: Slice) -> None:
        super().__init__()
        self.weight = sliced(whole.weight, 0, part)
        self.bias = None if whole.bias is None else sliced(whole.bias, 0, part)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the worker's outputs, shape (..., own)."""
        return functional.linear(copy_to_group(inputs), self.weight, self.bias)


class RowLinear(nn.Module):
    """A row-parallel linear layer, whose inputs are the outputs of a `ColumnLinear`: one all-reduce in the forward pass."""

    def __init__(self, whole: nn.Linear, part: Slice) -> None:
        super().__init__()
        self.weight = sliced(whole.weight, 1, part)
        self.bias = whole.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs, summed over the inputs of all workers."""
        outputs = reduce_from_group(functional.linear(inputs, self.weight))
        return outputs if self.bias is None else outputs + self.bias


class ReplicatedInputLinear(RowLinear):
    """A row-parallel linear layer whose inputs are replicated: one all-reduce in the forward pass and one in the backward pass.

    It replaces a linear layer that does not follow a `ColumnLinear`.
    """

    def __init__(self, whole: nn.Linear, part: Slice) -> None:
        super().__init__(whole, part)
        self.own = part.of(whole.in_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs; every worker passes all inputs."""
        return super().forward(copy_to_group(inputs)[..., self.own])


class SlicedEmbedding(nn.Module):
    """A worker's rows of an embedding: one all-reduce in the forward pass."""

    def __init__(self, whole: nn.Embedding, part: Slice) -> None:
        super().__init__()
        self.weight = sliced(whole.weight, 0, part)
        self.own = part.of(whole.num_embeddings)
        here = whole.padding_idx is not None and self.own.start <= whole.padding_idx < self.own.stop
        self.padding = whole.padding_idx - self.own.start if here else None

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the vectors of these row numbers, from whichever workers hold them."""
        others = (numbers < self.own.start) | (numbers >= self.own.stop)
        places = (numbers - self.own.start).masked_fill(others, 0)
        found = functional.embedding(places, self.weight, self.padding)
        return reduce_from_group(found.masked_fill(others[..., None], 0.0))


class SlicedDropout(nn.Module):
    """Dropout on a worker's slice: all workers draw the mask of the whole tensor, from the same seed."""

    def __init__(self, p: float, whole: int, own: slice, dim: int = -1) -> None:
        super().__init__()
        self.p, self.whole, self.own, self.dim = p, whole, own, dim

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs after dropout; along dimension ``dim`` they hold the worker's range only."""
        if not self.training or not self.p:
            return inputs
        shape = list(inputs.shape)
        shape[self.dim] = self.whole
        mask = functional.dropout(inputs.new_ones(shape), self.p)
        return inputs * mask.narrow(self.dim, self.own.start, self.own.stop - self.own.start)
