"""Slices of linear layers, embeddings and dropout (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from chimera.core.parameters import shard_bounds
from chimera.models.slices.together import shared, summed


class Slice(NamedTuple):
    """Which part of a dimension a worker has.

    Attributes
    ----------
    number, among : the worker's number, and how many there are.
    """

    number: int
    among: int

    def of(self, size: int) -> slice:
        """Return its share of so many."""
        bounds = shard_bounds(size, self.among)
        return slice(bounds[self.number], bounds[self.number + 1])


class Place(NamedTuple):
    """Where the slice of a parameter lies in the whole one.

    Attributes
    ----------
    shape : in which the whole one is looked at.
    dim : the dimension that is cut.
    own : what of it the slice has.
    """

    shape: tuple[int, ...]
    dim: int
    own: slice

    @property
    def picked(self) -> tuple[slice, ...]:
        """What picks the slice out of an array of this shape."""
        return (slice(None),) * self.dim + (self.own,)


def sliced(parameter: Tensor, dim: int, part: Slice, shape: tuple[int, ...] | None = None) -> nn.Parameter:
    """Return a worker's slice of a parameter, in ``shape`` if that is given, with its `Place` as an attribute."""
    whole = parameter.detach().view(shape or parameter.shape)
    place = Place(tuple(whole.shape), dim, part.of(whole.shape[dim]))
    made = nn.Parameter(whole[place.picked].clone(), requires_grad=parameter.requires_grad)
    made.place = place  # type: ignore[attr-defined]
    return made


class ColumnLinear(nn.Module):
    """Some of the outputs of a linear layer. An all-reduce on the way back."""

    def __init__(self, whole: nn.Linear, part: Slice) -> None:
        super().__init__()
        self.weight = sliced(whole.weight, 0, part)
        self.bias = None if whole.bias is None else sliced(whole.bias, 0, part)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the worker's outputs, shape (..., own)."""
        return functional.linear(shared(inputs), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer of some of the inputs, those that a `ColumnLinear` made. An all-reduce on the way there."""

    def __init__(self, whole: nn.Linear, part: Slice) -> None:
        super().__init__()
        self.weight = sliced(whole.weight, 1, part)
        self.bias = whole.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs, of the worker's inputs and everybody else's."""
        outputs = summed(functional.linear(inputs, self.weight))
        return outputs if self.bias is None else outputs + self.bias


class LoneLinear(RowLinear):
    """The same where all have all inputs, since no layer before it is cut alike. An all-reduce there, and one back."""

    def __init__(self, whole: nn.Linear, part: Slice) -> None:
        super().__init__(whole, part)
        self.own = part.of(whole.in_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs of all inputs."""
        return super().forward(shared(inputs)[..., self.own])


class SlicedEmbedding(nn.Module):
    """Some of the rows of an embedding. An all-reduce on the way there."""

    def __init__(self, whole: nn.Embedding, part: Slice) -> None:
        super().__init__()
        self.weight = sliced(whole.weight, 0, part)
        self.own = part.of(whole.num_embeddings)
        here = whole.padding_idx is not None and self.own.start <= whole.padding_idx < self.own.stop
        self.padding = whole.padding_idx - self.own.start if here else None

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the vectors of these words, whoever has them."""
        others = (numbers < self.own.start) | (numbers >= self.own.stop)
        places = (numbers - self.own.start).masked_fill(others, 0)
        found = functional.embedding(places, self.weight, self.padding)
        return summed(found.masked_fill(others[..., None], 0.0))


class SlicedDropout(nn.Module):
    """A worker's slice of what dropout does with the whole: all draw the whole mask, from the same seed."""

    def __init__(self, p: float, whole: int, own: slice, dim: int = -1) -> None:
        super().__init__()
        self.p, self.whole, self.own, self.dim = p, whole, own, dim

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs as dropout leaves them; the worker has its share of dimension ``dim`` of them."""
        if not self.training or not self.p:
            return inputs
        shape = list(inputs.shape)
        shape[self.dim] = self.whole
        mask = functional.dropout(inputs.new_ones(shape), self.p)
        return inputs * mask.narrow(self.dim, self.own.start, self.own.stop - self.own.start)
