"""Random numbers of code that draws from global generators, such as the transforms of a data set."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded(key: tuple[int, ...]) -> Iterator[None]:
    """Seed the global generators of `random`, NumPy and torch inside the block, and restore their states after it.

    Parameters
    ----------
    key : integers of at least 0 that determine the random numbers, such as (seed, rank, step).
    """
    words = np.random.SeedSequence([*key, *b"samples"]).generate_state(4)
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    random.seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(words[2])
    if torch is not None:
        torch.default_generator.manual_seed(int(words[3]))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch is not None:
            torch.set_rng_state(before[2])
