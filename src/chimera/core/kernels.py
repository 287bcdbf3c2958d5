"""The choice between kernels that numba compiles and the same kernels in NumPy.

Compiled code is stored on disk beside its module, and compiled again when that module changes. After a change of a function
that other modules call, remove the stored code (``make clean``).
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from types import ModuleType

from chimera.core.errors import ConfigurationError

_LOG = logging.getLogger(__name__)
VARIABLE = "CHIMERA_KERNELS"
"""Environment variable that chooses the kernels: ``compiled``, ``plain``, or ``auto``: compiled ones if they work."""


def choose(compiled: Callable[[], ModuleType], plain: str, users: str) -> ModuleType:
    """Return the kernels to use: those that ``compiled`` imports and tests, or the module ``plain``.

    ``users`` names, in a warning, the parts that are slower without compiled kernels.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "compiled", "plain"):
        raise ConfigurationError(f"{VARIABLE} = {wanted!r} is not 'auto', 'compiled' or 'plain'")
    if wanted != "plain":
        try:
            return compiled()
        except Exception as error:  # numba raises many types of errors; NumPy can do the work in any case
            if wanted == "compiled":
                raise
            reason = f"{type(error).__name__}: {error}"
            _LOG.warning("numba does not work here (%s): %s run on NumPy, slower", reason, users)
    return importlib.import_module(plain)
