"""Partitioning of a network into parts of equal cost."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.strategies.model_partition import ModelPartition, SplitPartition

if TYPE_CHECKING:
    from torch import nn

    from chimera.models.torch_model import TorchModel

_TIMES = 5


class Part:
    """One part of a model.

    Attributes
    ----------
    model : the model of its layers, with its own parameters.
    layers : numbers of its layers in the whole model.
    share : share of the cost of the whole model.
    """

    def __init__(self, model: TorchModel, layers: Sequence[int], share: float) -> None:
        self.model, self.layers, self.share = model, layers, share


def cut(model: Any, parts: ModelPartition, inputs: NDArray[Any], bounds: Sequence[int] | None = None) -> list[Part]:
    """Partition a model whose module is an ``nn.Sequential``, or any module if it is cut into slices only.

    Parts are ordered by stage, then by slice.

    Parameters
    ----------
    inputs : a few rows, to measure the time of layers.
    bounds : bounds of the parts, as `balanced` returns them, if they are known already.

    Raises
    ------
    ConfigurationError : the model has no such module, or cannot be partitioned in this way.
    """
    layers = _sequence_of(model) if parts.stages > 1 else layers_of(model)
    counts = _counts(layers)
    costs: Sequence[float] = counts
    if parts.cuts is None and bounds is None and parts.balance == "time":
        costs = _seconds(model, layers, inputs)
    bounds = _bounds(parts, counts, costs, bounds)
    _reject_shared(layers, bounds)
    stages = [range(begin, end) for begin, end in itertools.pairwise(bounds)]
    total = sum(costs)
    made = [
        (own, stage, sum(costs[i] for i in stage) / total * share)
        for stage in stages
        for own, share in _slices([layers[i] for i in stage], parts.slices)
    ]
    if parts.slices > 1 and not any(hasattr(p, "placement") for own, _, _ in made for p in own.parameters()):
        raise ConfigurationError(
            f"no layer of the model can be cut into {parts.slices} slices: linear, embedding and attention layers can, with as "
            "many columns, words or heads at least"
        )
    return [Part(model.part_of(own), stage, share) for own, stage, share in made]


def split_model(model: Any, halves: SplitPartition) -> list[Part]:
    """Split a model whose module is an ``nn.Sequential`` into the clients' part and the server's part.

    Raises
    ------
    ConfigurationError : the model has no such module, or has no such layers.
    """
    layers = _sequence_of(model)
    counts, n = _counts(layers), len(layers)
    head = n if halves.head is None else halves.head
    if halves.cut >= head or head > n - (halves.head is not None):
        raise ConfigurationError(
            f"the model has {n} layers: cut must be from 1 to {n - 1}, and head above it; not {halves.cut} and {halves.head}"
        )
    sides = [*range(halves.cut), *range(head, n)], list(range(halves.cut, head))
    for side, whose in zip(sides, ("the clients'", "the server's"), strict=True):
        if not any(counts[number] for number in side):
            raise ConfigurationError(f"with this cut {whose} part has no parameters to train")
    _reject_shared([layers[number] for side in sides for number in side], [0, len(sides[0]), n])
    return [
        Part(model.part_of(_copied([layers[i] for i in side])), side, sum(counts[i] for i in side) / sum(counts))
        for side in sides
    ]


def balanced(costs: Sequence[float], stages: int, counts: Sequence[int]) -> list[int]:
    """Return the bounds that minimize the cost of the most expensive part; each part has trainable parameters.

    Stage s has the layers from entry s to entry s + 1 of the ``stages + 1`` entries.
    """
    n = len(costs)
    cost, count = np.concatenate([[0.0], np.cumsum(costs)]), np.concatenate([[0], np.cumsum(counts)])
    best = np.full((stages + 1, n + 1), np.inf)
    begin = np.zeros((stages + 1, n + 1), np.int64)
    best[0, 0] = 0.0
    for parts, end in itertools.product(range(1, stages + 1), range(1, n + 1)):
        worst = np.maximum(best[parts - 1, :end], cost[end] - cost[:end])
        worst[count[:end] == count[end]] = np.inf
        begin[parts, end] = np.argmin(worst)
        best[parts, end] = worst[begin[parts, end]]
    if not np.isfinite(best[stages, n]):
        trained = sum(each > 0 for each in counts)
        raise ConfigurationError(
            f"{stages} stages need {stages} layers with parameters to train, but the model has {trained}: use fewer workers"
        )
    bounds = [n]
    for parts in range(stages, 0, -1):
        bounds.append(int(begin[parts, bounds[-1]]))
    return bounds[::-1]


def _counts(layers: Sequence[nn.Module]) -> list[int]:
    return [sum(p.numel() for p in layer.parameters() if p.requires_grad) for layer in layers]


def _bounds(
    parts: ModelPartition, counts: Sequence[int], costs: Sequence[float], saved: Sequence[int] | None
) -> Sequence[int]:
    if parts.cuts is not None:
        bounds = [0, *parts.cuts, len(counts)]
        if len(bounds) != parts.stages + 1 or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ConfigurationError(
                f"cuts must be {parts.stages - 1} ascending numbers from 1 to {len(counts) - 1}, not {list(parts.cuts)}"
            )
        if empty := [i for i, (a, b) in enumerate(itertools.pairwise(bounds)) if not sum(counts[a:b])]:
            raise ConfigurationError(f"with these cuts stage {empty[0]} has no parameters to train")
        return bounds
    if saved is None:
        return balanced(costs, parts.stages, counts)
    if len(saved) != parts.stages + 1 or saved[-1] != len(counts):
        raise ConfigurationError(
            f"the checkpoint has {len(saved) - 1} stages of {saved[-1]} layers, but this run has {parts.stages} of "
            f"{len(counts)}: resume with the number of workers and the model of the checkpoint"
        )
    return saved


def _slices(layers: Sequence[nn.Module], slices: int) -> Iterator[tuple[nn.Sequential, float]]:
    """Yield copies of the layers, in slices if there is more than one, and the share of each in the whole."""
    whole = sum(_counts(layers))
    for index in range(slices):
        own = _copied(layers)
        if slices > 1:
            from chimera.models.slices.layers import Slice
            from chimera.models.slices.slicing import slice_layers

            slice_layers(own, Slice(index, slices))
        yield own, sum(_counts([own])) / whole


def layers_of(model: Any) -> list[nn.Module]:
    """Return the layers of a model whose module is an ``nn.Sequential``, with nested ones flattened; else its module.

    Raises
    ------
    ConfigurationError : the model is not a torch module.
    """
    from torch import nn

    def flattened(layer: nn.Module) -> Iterator[nn.Module]:
        if type(layer) is nn.Sequential:
            for each in layer:
                yield from flattened(each)
        else:
            yield layer

    if not hasattr(model, "part_of"):
        raise ConfigurationError(f"this strategy splits torch modules, but the model is a {type(model).__name__}")
    return list(flattened(model.module))


def _sequence_of(model: Any) -> list[nn.Module]:
    """Return the layers of a model whose module must be an ``nn.Sequential``."""
    layers = layers_of(model)
    if layers == [model.module]:
        raise ConfigurationError(
            f"this strategy splits an nn.Sequential, but the module is a {type(model.module).__name__}"
        )
    return layers


def _copied(layers: Sequence[nn.Module]) -> nn.Sequential:
    """Return copies; of a parameter its own elements only, not the vector of which it is a view."""
    from torch import nn

    memo: dict[int, Any] = {}
    for layer in layers:
        for parameter in layer.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
    return nn.Sequential(*(deepcopy(layer, memo) for layer in layers))


def _reject_shared(layers: Sequence[nn.Module], bounds: Sequence[int]) -> None:
    seen: dict[int, int] = {}
    for stage, (begin, end) in enumerate(itertools.pairwise(bounds)):
        for layer in layers[begin:end]:
            for parameter in layer.parameters():
                if (first := seen.setdefault(id(parameter), stage)) != stage:
                    raise ConfigurationError(
                        f"stages {first} and {stage} share a parameter of {type(layer).__name__}: put both layers in one stage"
                    )


def _seconds(model: TorchModel, layers: Sequence[nn.Module], inputs: NDArray[Any]) -> list[float]:
    """Return the seconds of a forward and backward pass in each layer; the layers are unchanged afterwards."""
    found = []
    tensor = model.tensor_of(inputs)
    for layer in _copied(layers).train():
        times = []
        for _ in range(_TIMES):
            given = tensor.detach()
            if given.is_floating_point():
                given.requires_grad_()
            began_s = time.perf_counter()
            outputs = layer(given)
            if outputs.requires_grad:
                outputs.sum().backward()
            times.append(time.perf_counter() - began_s)
        found.append(statistics.median(times))
        tensor = outputs.detach()
    return found
