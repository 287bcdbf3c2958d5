"""What engines have in common whose time is real and whose actors are processes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from chimera.core.errors import EngineClosedError


class RealTime:
    """Counts the seconds, has no state to go back to, and ends once; the engine sets ``_end``, which does that."""

    nodes_own_data = False
    one_process = False
    virtual_time = False
    _end: weakref.finalize[..., Any]

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def now(self) -> float:
        """Seconds since the engine began."""
        return time.monotonic() - self._began_s

    def state(self) -> dict[str, Any]:
        """Return nothing: time is real here."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End everything that the engine has started."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._end.alive:
            raise EngineClosedError(f"the {type(self).__name__.lower()} engine is closed")
