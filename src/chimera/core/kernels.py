"""Choosing between kernels that numba compiles and the same ones in NumPy.

Compiled code is kept on disk beside its module, and made anew when that module changes: whoever edits one that others
call removes what is kept (``make clean``).
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
"""Environment variable that chooses them: ``compiled``, ``plain``, or ``auto``, the former if it works."""


def choose(compiled: Callable[[], ModuleType], plain: str, users: str) -> ModuleType:
    """Return the kernels to use: what ``compiled`` imports and tries out, or the module ``plain``.

    ``users`` says in a warning who runs slower now.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "compiled", "plain"):
        raise ConfigurationError(f"{VARIABLE} = {wanted!r} is not 'auto', 'compiled' or 'plain'")
    if wanted != "plain":
        try:
            return compiled()
        except Exception as error:  # numba fails in ways of its own: whatever it is, NumPy can do the work
            if wanted == "compiled":
                raise
            reason = f"{type(error).__name__}: {error}"
            _LOG.warning("numba does not work here (%s): %s run on NumPy, slower", reason, users)
    return importlib.import_module(plain)
