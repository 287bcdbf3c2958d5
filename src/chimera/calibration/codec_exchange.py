"""Workers that encode, send and reduce vectors of noise in place of gradients, to measure codecs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.core import call
from chimera.core.engine import Group
from chimera.core.parameters import Flat, Layout
from chimera.training.worker.exchange import Exchange

Coded: TypeAlias = tuple[str, Mapping[str, Any]]

_VECTORS, _SAMPLES = 2, 64
_PRODUCTS = 20
"""Products whose median time is measured."""
_WARM_UP = 3
"""Number of first reductions that do not count."""


class Sender:
    """A worker that computes products of matrices and sends vectors of noise in place of gradients."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def products(self, size: int, seconds: float) -> int:
        """Return the number of products that take so long, at least 1, for vectors of ``size`` elements."""
        multiply, weights = _multiplication(size, self._rank), np.ones(size, np.float32)
        took_s = []
        for _ in range(_PRODUCTS):
            began_s = call.now()
            multiply(weights)
            took_s.append(call.now() - began_s)
        return max(round(seconds / max(float(np.median(took_s)), 1e-9)), 1)

    def exchange(self, rounds: int, group: Group, layout: Layout, codec: Coded, products: int) -> None:
        """Receive weights, compute ``products``, write a vector, and send it encoded, ``rounds`` times."""
        multiply, weights = _multiplication(layout.size, self._rank), np.empty(layout.size, np.float32)
        exchange = Exchange(layout, codec, seed=self._rank)
        for vector in self._vectors(rounds, layout.size):
            began_s = call.now()
            exchange.load(list(group.receive([0]).values()), weights)
            for _ in range(products):
                multiply(weights)
            group.send({0: exchange.packed(vector())[0]})
            call.record("gradient", began_s)

    def reduce(self, rounds: int, group: Group, layout: Layout, codec: Coded, products: int) -> float:
        """Compute ``products``, write a vector, and reduce it, ``rounds`` times.

        Return the median seconds of a reduction, without those of its collectives.
        """
        multiply, weights = _multiplication(layout.size, self._rank), np.ones(layout.size, np.float32)
        reduction, took_s = CODECS.reduction(*codec, seed=0), []
        for vector in self._vectors(rounds, layout.size):
            for _ in range(products):
                multiply(weights)
            ready, collectives = vector(), _Collectives(group)
            began_s = call.now()
            reduction.all_reduce(ready, layout, collectives.mean)
            took_s.append(call.now() - began_s - collectives.seconds)
            reduction.commit()
        return float(np.median(took_s[min(_WARM_UP, len(took_s) - 1) :]))

    def _vectors(self, count: int, size: int) -> Iterator[Callable[[], Flat]]:
        """Yield functions that write the next vector."""
        noise = np.random.default_rng(self._rank).normal(size=(_VECTORS, size)).astype(np.float32)
        vector = call.empty(size)

        def written(number: int) -> Flat:
            np.copyto(vector, noise[number % _VECTORS])
            return vector

        for number in range(count):
            yield partial(written, number)


class _Collectives:
    """The means over a group, and their time."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.seconds = 0.0

    def mean(self, array: Flat) -> None:
        began_s = call.now()
        self._group.all_reduce(array)
        self.seconds += call.now() - began_s


def _multiplication(size: int, seed: int) -> Callable[[Any], None]:
    """Return a function that computes products with the first weights of a vector, as a layer and its gradient do."""
    side, rng = math.isqrt(size), np.random.default_rng(seed)
    inputs, product = rng.random((_SAMPLES, side), np.float32), np.empty((side, side), np.float32)

    def multiply(weights: Any) -> None:
        np.matmul(inputs.T, inputs @ weights[: side**2].reshape(side, side), out=product)

    return multiply
