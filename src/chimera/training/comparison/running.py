"""Execution of the cells of a grid, several at a time."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from chimera.core.processes import cores
from chimera.training.artifacts.location import path_in_run
from chimera.training.comparison.cell_process import CellProcess, State
from chimera.training.comparison.grid import Cell
from chimera.training.progress.callback import Event, Progress
from chimera.training.run.interrupt import Interrupt

_POLL_INTERVAL_S = 0.1  # interval of checks for interrupts and ended processes

Outcomes = dict[str, tuple[State, str]]
"""The final state of each cell by name, and the reason of a failure."""


class GridCallback:
    """Hooks of a running comparison; override the ones that you need."""

    def on_cells(self, cells: Sequence[Cell]) -> None:
        """Called after all cells were validated, before they run."""

    def on_start(self, cell: Cell) -> None:
        """Called after the cell's process was started."""

    def on_progress(self, cell: Cell, progress: Progress) -> None:
        """Called when the cell has made progress."""

    def on_event(self, cell: Cell, event: Event) -> None:
        """Called at an event of the cell."""

    def on_end(self, cell: Cell, state: State, reason: str) -> None:
        """Called when the cell has ended; at the start for ended cells of a resumed comparison."""

    def on_interrupt(self) -> None:
        """Called at Ctrl-C or a preemption, when running cells write their checkpoints."""

    def on_poll(self) -> None:
        """Called about ten times a second."""


class CellRunner(Protocol):
    """A function that runs cells, each in its folder below ``folder``.

    It returns their final states, and the number of the signal that stopped it, if there was one.
    """

    def __call__(
        self, cells: Sequence[Cell], folder: Path, *, resume: bool, callbacks: Sequence[GridCallback]
    ) -> tuple[Outcomes, int | None]:
        """Run the cells until all have ended, or until a signal."""


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int | None,
    resume: bool,
    callbacks: Sequence[GridCallback],
    url: str | None = None,
) -> tuple[Outcomes, int | None]:
    """Run the cells, each in its folder below ``folder``; return their final states, and the signal that stopped them, if any.

    Parameters
    ----------
    jobs : number of cells at a time. By default, virtual-time cells run first, one a core; the others run one by one, because
        they would slow each other down.
    url : run each cell below this URL of an object store instead, with only its log in ``folder``.

    On Ctrl-C, SIGTERM or SIGUSR1, the running cells write a checkpoint and end; the others do not start. A second signal raises
    KeyboardInterrupt or `Terminated`, and all cells are killed. No process is left in any case.
    """
    together = [cell for cell in cells if jobs is not None or cell.is_virtual]
    alone = [cell for cell in cells if jobs is None and not cell.is_virtual]
    outcomes: Outcomes = {cell.name: ("waiting", "") for cell in cells}
    with Interrupt() as interrupt:
        for batch, at_once in ((together, jobs or cores()), (alone, 1)):
            if not interrupt.requested:
                _Batch(folder, url or folder, resume, callbacks, interrupt, outcomes).run(batch, at_once)
    return outcomes, interrupt.requested


class _Batch:
    """Several cells, of which a limited number runs at a time."""

    def __init__(
        self,
        folder: Path,
        location: Path | str,
        resume: bool,
        callbacks: Sequence[GridCallback],
        interrupt: Interrupt,
        outcomes: Outcomes,
    ) -> None:
        self._folder, self._location, self._resume, self._callbacks = folder, location, resume, callbacks
        self._interrupt, self._outcomes = interrupt, outcomes
        self._running: list[CellProcess] = []
        self._selector = selectors.DefaultSelector()

    def run(self, cells: Sequence[Cell], at_once: int) -> None:
        """Run all cells, or until a signal."""
        waiting = deque(cells)
        interrupted = False
        try:
            while self._running or (waiting and not self._interrupt.requested):
                self._interrupt.check_second()
                while waiting and len(self._running) < at_once and not self._interrupt.requested:
                    self._start(waiting.popleft())
                if self._interrupt.requested and not interrupted:
                    interrupted = True
                    for process in self._running:
                        process.interrupt()
                    for callback in self._callbacks:
                        callback.on_interrupt()
                self._poll()
        finally:
            for process in list(self._running):
                self._end(process)
            self._selector.close()

    def _start(self, cell: Cell) -> None:
        log = self._folder / f"{cell.name}.log"
        process = CellProcess(cell, path_in_run(self._location, cell.name), log, resume=self._resume)
        self._running.append(process)
        self._selector.register(process, selectors.EVENT_READ)
        self._outcomes[cell.name] = "running", ""
        for callback in self._callbacks:
            callback.on_start(cell)

    def _poll(self) -> None:
        ready = [key.fileobj for key, _ in self._selector.select(_POLL_INTERVAL_S)]
        for process in list(self._running):
            ended = process.ended  # read first: messages sent before the end are read below
            if process in ready or ended:
                self._notify(process)
            if ended:
                self._end(process)
        for callback in self._callbacks:
            callback.on_poll()

    def _notify(self, process: CellProcess) -> None:
        for message in process.messages():
            for callback in self._callbacks:
                if message.progress is not None:
                    callback.on_progress(process.cell, message.progress)
                if message.event is not None:
                    callback.on_event(process.cell, message.event)

    def _end(self, process: CellProcess) -> None:
        self._running.remove(process)
        self._selector.unregister(process)
        state, reason = self._outcomes[process.cell.name] = process.end()
        for callback in self._callbacks:
            callback.on_end(process.cell, state, reason)
