"""The loops under the word models: compiled by numba, or in NumPy where that does not work.

A batch of windows is ``inputs``, int32 (n, w), the context words, -1 where there is none, and for each window the rows of the
output table that it meets: ``rows[begin[i]:begin[i + 1]]`` with ``labels``, 1 where the row is to answer yes. A row of -1 is
passed over. ``roots[c]`` is what the sum of c context vectors is multiplied by.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from chimera.core.kernels import choose


@functools.cache
def kernels() -> ModuleType:
    """Return the kernels, chosen once a process; compiling is left to the first use of each."""
    return choose(_compiled, "chimera.models.word2vec.kernels.plain", "word embeddings")


def _compiled() -> ModuleType:
    import numpy as np

    module = importlib.import_module("chimera.models.word2vec.kernels.compiled")
    table = np.ones((1, 2), np.float32)
    module.clear_rows(table, np.array([-1, 0], np.int32))
    if table.any():
        raise RuntimeError("a compiled kernel gave a wrong result")
    return module
