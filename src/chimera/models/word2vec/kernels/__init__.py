"""The inner loops of the word models: compiled by numba, or in NumPy if numba does not work.

A batch of windows has ``inputs``, int32 (n, w): the context words, -1 where there is none. Window i also has rows of
the output table, ``rows[begin[i]:begin[i + 1]]``, with ``labels``, 1 for positive and 0 for negative rows. A row of -1
is skipped. ``pool_scales[c]`` is the factor of the sum of c context vectors.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from chimera.core.kernels import choose


@functools.cache
def kernels() -> ModuleType:
    """Return the kernels, chosen once per process. Each is compiled at its first use."""
    return choose(_compiled, "chimera.models.word2vec.kernels.plain", "word embeddings")


def _compiled() -> ModuleType:
    import numpy as np

    module = importlib.import_module("chimera.models.word2vec.kernels.compiled")
    table = np.ones((1, 2), np.float32)
    module.clear_rows(table, np.array([-1, 0], np.int32))
    if table.any():
        raise RuntimeError("a compiled kernel gave a wrong result")
    return module
