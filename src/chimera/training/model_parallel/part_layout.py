"""Positions of the parts of a model in the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.parameters import Flat
from chimera.models.module_buffers import buffer_names
from chimera.training.model_parallel.partitioning import Part, layers_of

if TYPE_CHECKING:
    from chimera.models.slices.layers import Placement


class JoinedLayout:
    """Joins the vectors of parts to vectors of the whole model.

    Parameters
    ----------
    whole : the model that was partitioned.
    parts : all its parts; several parts may hold the same layer.
    """

    def __init__(self, whole: Any, parts: Sequence[Part]) -> None:
        module = whole.module
        layers = layers_of(whole)
        self._parameters = _Places([p for p in module.parameters() if p.requires_grad])
        self._buffers = _Places([module.get_buffer(name) for name in buffer_names(module)])
        for part in parts:
            held = [layers[number] for number in part.layers]
            own = [p for p in part.model.module.parameters() if p.requires_grad]
            self._parameters.add((p for layer in held for p in layer.parameters() if p.requires_grad), own)
            self._buffers.add(layer.get_buffer(name) for layer in held for name in buffer_names(layer))

    def parameters(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Return the parameters of the whole model, shape (P,), from those of the parts in order."""
        return self._parameters.joined(pieces, out)

    def buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Return the buffers of the whole model."""
        return self._buffers.joined(pieces)


class _Places:
    """Positions of tensors in the vector of the whole model, and the tensors of each part."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        ends = np.cumsum([tensor.numel() for tensor in tensors], dtype=np.int64).tolist()
        self._slices = [slice(end - tensor.numel(), end) for tensor, end in zip(tensors, ends, strict=True)]
        self._of = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._size = ends[-1] if ends else 0
        self._parts: list[list[tuple[slice, Placement | None]]] = []

    def add(self, tensors: Iterable[Any], own: Sequence[Any] = ()) -> None:
        """Add a part with these tensors, as ``own`` if they are slices; a repeated tensor is in its vector once."""
        places = dict.fromkeys(self._of[id(tensor)] for tensor in tensors)
        cuts = [getattr(each, "placement", None) for each in own] or [None] * len(places)
        self._parts.append([(self._slices[place], cut) for place, cut in zip(places, cuts, strict=True)])

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        whole = np.empty(self._size, np.float32) if out is None else out
        for piece, places in zip(pieces, self._parts, strict=True):
            begin = 0
            for place, cut in places:
                target = whole[place] if cut is None else whole[place].reshape(cut.shape)[cut.selector]
                end = begin + target.size
                target[...] = piece[begin:end].reshape(target.shape)
                begin = end
        return whole
