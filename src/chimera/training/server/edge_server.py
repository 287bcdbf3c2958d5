"""The edge server: a parameter server between clients and the cloud."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.call import empty, work
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard

_MEAN: Mapping[str, Any] = {"name": "sgd", "lr": 1.0}  # the new weights are the mean of the clients' weights


class EdgeServer(ParameterShard):
    """A server of all parameters. It receives weights from the cloud, and returns their change.

    Parameters
    ----------
    weights : initial parameters, shape (P,).
    layout : layout of the parameters.
    codec, uplink, seed : see `ParameterShard`.
    """

    def __init__(
        self,
        weights: Flat,
        layout: Layout,
        *,
        codec: tuple[str, Mapping[str, Any]],
        uplink: tuple[str, Mapping[str, Any]],
        seed: int,
    ) -> None:
        mean = OptimizerSettings.of(_MEAN["name"], {"lr": _MEAN["lr"]})
        super().__init__(weights, layout, optimizer=mean, codec=codec, uplink=uplink, seed=seed)
        self._layout, self._start = layout, self._weights.copy()

    def adopt(self, *pieces: Encoded) -> Encoded:
        """Start a round of the cloud from its weights, one piece from each of its servers; return the message for clients."""
        for (begin, end), piece in zip(itertools.pairwise(self._layout.bounds(len(pieces))), pieces, strict=True):
            np.copyto(self._weights[begin:end], decode(piece, end - begin))
        np.copyto(self._start, self._weights)
        work(elements=self._weights.size)
        return self._downlink.broadcast()

    def change(self, share: float, shards: int) -> list[Encoded]:
        """Return the weights of `adopt` minus the current ones, times ``share``, as float32; a piece for each server."""
        change = empty(self._weights.size)
        np.subtract(self._start, self._weights, out=change)
        change *= np.float32(share)
        work(elements=change.size)
        bounds = itertools.pairwise(self._layout.bounds(shards))
        return [Encoded("identity", end - begin, (change[begin:end],)) for begin, end in bounds]
