"""The bubble of a pipeline: the share of time in which its stages wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from chimera.core.trace import TraceRow


class PipelineBubble:
    """Sums, over steps, of the stages' computing time and of the duration from a step's first pass to its last.

    Parameters
    ----------
    passes : forward and backward passes of each stage in a step.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._rows: dict[str, deque[TraceRow]] = {}
        self._busy_s = self._lasted_s = 0.0

    @property
    def share(self) -> float | None:
        """The share of the time spent waiting; None before the first step is complete."""
        return 1 - self._busy_s / self._lasted_s if self._lasted_s else None

    def add(self, rows: Iterable[TraceRow], stages: Iterable[str]) -> None:
        """Add the trace rows of ended calls of these stages."""
        for name in stages:
            self._rows.setdefault(name, deque())
        for row in rows:
            if row.call in ("forward", "backward") and row.actor in self._rows:
                self._rows[row.actor].append(row)
        while self._rows and all(len(held) >= self._passes for held in self._rows.values()):
            step = [held.popleft() for held in self._rows.values() for _ in range(self._passes)]
            self._busy_s += sum(row.end_s - row.start_s for row in step)
            lasted_s = max(row.end_s for row in step) - min(row.start_s for row in step)
            self._lasted_s += len(self._rows) * lasted_s

    def state(self) -> dict[str, float]:
        """Return the sums, in seconds."""
        return {"busy_s": self._busy_s, "lasted_s": self._lasted_s}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the sums that `state` returned."""
        self._busy_s, self._lasted_s = state["busy_s"], state["lasted_s"]

    def forget(self) -> None:
        """Drop the rows of a step that was interrupted."""
        for held in self._rows.values():
            held.clear()
