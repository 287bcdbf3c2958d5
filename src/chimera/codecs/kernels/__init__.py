"""The loops under the codecs: for arrays compiled by numba, or in NumPy where that does not work; for tensors in torch.

Compiled code is kept on disk beside its module, and made anew when that module changes: whoever edits one that others
call removes what is kept (``make clean``).
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from types import ModuleType
from typing import Any

from chimera.core.device import on_host
from chimera.core.errors import ConfigurationError

_LOG = logging.getLogger(__name__)
VARIABLE = "CHIMERA_KERNELS"
"""Environment variable that chooses them: ``compiled``, ``plain``, or ``auto``, the former if it works."""


def kernels(vector: Any) -> ModuleType:
    """Return the module of the kernels for a vector where it lies."""
    if on_host(vector):
        return on_cpu()
    return importlib.import_module("chimera.codecs.kernels.device")


@functools.cache
def on_cpu() -> ModuleType:
    """Return the kernels for arrays, chosen once a process; compiling is left to the first use of each."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "compiled", "plain"):
        raise ConfigurationError(f"{VARIABLE} = {wanted!r} is not 'auto', 'compiled' or 'plain'")
    if wanted != "plain":
        try:
            return _compiled()
        except Exception as error:  # numba fails in ways of its own: whatever it is, NumPy can do the work
            if wanted == "compiled":
                raise
            _LOG.warning("numba does not work here (%s: %s): codecs run on NumPy, slower", type(error).__name__, error)
    return importlib.import_module("chimera.codecs.kernels.plain")


def _compiled() -> ModuleType:
    """Import the compiled kernels and see whether one works."""
    import numpy as np

    module = importlib.import_module("chimera.codecs.kernels.compiled")
    if module.abs_max(np.array([1, -2], np.float32)) != 2:
        raise RuntimeError("a compiled kernel gave a wrong result")
    return module
