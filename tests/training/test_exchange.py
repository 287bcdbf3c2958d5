"""What a worker sends its servers, and what its codecs remember of it."""

from __future__ import annotations

import itertools

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.core.parameters import Layout
from chimera.training.exchange import Exchange

LAYOUT = Layout(("weight", "bias"), ((4, 3), (4,)))
LOSSY = ("error-feedback", {"codec": {"name": "top-k", "ratio": 0.25}})


def weights(shards: int) -> list:
    bounds = LAYOUT.bounds(shards)
    pieces = [LAYOUT.cut(begin, end) for begin, end in itertools.pairwise(bounds)]
    codec = CODECS.create("identity", {})
    return [codec.pack(np.zeros(piece.size, np.float32), piece) for piece in pieces]


def test_what_was_restored_is_not_forgotten_before_anything_is_sent() -> None:
    sends = Exchange(LAYOUT, LOSSY, seed=1)
    sends.load(weights(2), np.zeros(LAYOUT.size, np.float32))
    sends.packed(np.arange(LAYOUT.size, dtype=np.float32))
    remembered = sends.states()
    assert len(remembered) == 2
    idle = Exchange(LAYOUT, LOSSY, seed=1)
    assert idle.states() == []
    idle.restore(remembered)
    for kept, held in zip(idle.states(), remembered, strict=True):
        assert kept.keys() == held.keys()
        assert all(np.array_equal(kept[key], held[key]) for key in held)
