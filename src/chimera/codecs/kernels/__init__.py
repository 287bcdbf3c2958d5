"""The loops under the codecs: for arrays compiled by numba, or in NumPy where that does not work; for tensors in torch."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from chimera.core.device import on_host
from chimera.core.kernels import choose


def kernels(vector: Any) -> ModuleType:
    """Return the module of the kernels for a vector where it lies."""
    if on_host(vector):
        return on_cpu()
    return importlib.import_module("chimera.codecs.kernels.device")


@functools.cache
def on_cpu() -> ModuleType:
    """Return the kernels for arrays, chosen once a process; compiling is left to the first use of each."""
    return choose(_compiled, "chimera.codecs.kernels.plain", "codecs")


def _compiled() -> ModuleType:
    """Import the compiled kernels and see whether one works."""
    import numpy as np

    module = importlib.import_module("chimera.codecs.kernels.compiled")
    if module.abs_max(np.array([1, -2], np.float32)) != 2:
        raise RuntimeError("a compiled kernel gave a wrong result")
    return module
