"""Kernels of the codecs: compiled by numba for arrays, or NumPy where numba does not work; torch for tensors."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from chimera.core.device import on_host
from chimera.core.kernels import choose


def kernels(vector: Any) -> ModuleType:
    """Return the module of kernels for the device of a vector."""
    if on_host(vector):
        return on_cpu()
    return importlib.import_module("chimera.codecs.kernels.device")


@functools.cache
def on_cpu() -> ModuleType:
    """Return the kernels for arrays, chosen once a process; each kernel is compiled at its first use."""
    return choose(_compiled, "chimera.codecs.kernels.plain", "codecs")


def _compiled() -> ModuleType:
    """Import the compiled kernels, and test that one works."""
    import numpy as np

    module = importlib.import_module("chimera.codecs.kernels.compiled")
    if module.abs_max(np.array([1, -2], np.float32)) != 2:
        raise RuntimeError("a compiled kernel gave a wrong result")
    return module
