"""The common part of engines that run in real time with processes as actors."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any

from chimera.core.closing import Closing
from chimera.core.errors import EngineClosedError


class RealTime(Closing):
    """A base class with a real clock, no state to restore, and a `close` that acts once. The engine sets ``_end``."""

    nodes_own_data = False
    one_process = False
    servers_in_groups = True
    virtual_time = False
    _end: weakref.finalize[..., Any]

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def now(self) -> float:
        """Return the seconds since the engine started."""
        return time.monotonic() - self._began_s

    def state(self) -> dict[str, Any]:
        """Return an empty state: real time cannot be restored."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Stop everything that the engine has started."""
        self._end()

    def _check_open(self) -> None:
        if not self._end.alive:
            raise EngineClosedError(f"the {type(self).__name__.lower()} engine is closed")
