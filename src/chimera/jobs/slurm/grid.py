"""Cells of a comparison as an array of jobs on Slurm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from chimera.core.errors import ConfigurationError, UnavailableError
from chimera.core.private import make_folder, write
from chimera.core.safe_path import safe_path
from chimera.jobs.client.workers import workers_of
from chimera.jobs.files.bundle import bundle_loaded
from chimera.jobs.slurm import commands
from chimera.jobs.slurm.folder import SlurmJobFolder, copy_files, resolved, write_experiment
from chimera.jobs.slurm.options import SlurmOptions
from chimera.jobs.slurm.rows import PATIENCE_S, POLL_S, QUEUE_S, Queue, ask, found_state
from chimera.jobs.slurm.script import Launch, array_script, launch_of, options_in
from chimera.jobs.slurm.states import CONFIRM_S, has_ended
from chimera.jobs.slurm.updates import RunLimits, RunUpdates
from chimera.jobs.store.states import TERMINAL, State
from chimera.training.comparison.grid import Cell
from chimera.training.comparison.running import GridCallback, Outcomes
from chimera.training.progress.callback import Event
from chimera.training.progress.history import write_atomically
from chimera.training.run.interrupt import Interrupt

_FOLDER = "slurm"
_ARRAY = "array.json"


class Array(Struct, frozen=True):
    """A submitted array.

    Attributes
    ----------
    slurm : Slurm's number; empty until Slurm has confirmed the submission.
    cells : names of its cells by index.
    mark, at_s : mark and time of the submission.
    """

    slurm: str
    cells: tuple[str, ...]
    mark: str = ""
    at_s: float = 0.0

    def number(self, cell: str) -> str:
        """Return Slurm's number of a cell."""
        return f"{self.slurm}_{self.cells.index(cell)}"


class SlurmCells:
    """A `CellRunner` that submits the cells as one array, and waits for its end. Ctrl-C ends the wait, not the array.

    Parameters
    ----------
    options : requests of each cell to Slurm.
    folder : folder of the experiment file.
    """

    def __init__(self, options: SlurmOptions, folder: Path) -> None:
        self._options, self._folder = options, folder

    def __call__(
        self, cells: Sequence[Cell], folder: Path, *, resume: bool, callbacks: Sequence[GridCallback]
    ) -> tuple[Outcomes, int | None]:
        """Run the cells, each in its folder below ``folder``.

        With ``resume``, an array that has not ended is waited for, and nothing is submitted.

        Raises
        ------
        ConfigurationError : Slurm refuses the array, or a cell cannot run on it.
        UnavailableError : Slurm does not answer.
        """
        outcomes: Outcomes = {cell.name: ("waiting", "") for cell in cells}
        if not cells:
            return outcomes, None
        cells_folder = safe_path(folder.absolute(), _FOLDER)
        array = (_unfinished(cells_folder) if resume else None) or self._submit(cells, cells_folder)
        watched = [_Watched(cell, array, cells_folder) for cell in cells if cell.name in array.cells]
        return outcomes, _await(watched, outcomes, callbacks)

    def _submit(self, cells: Sequence[Cell], cells_folder: Path) -> Array:
        """Write the files of the cells and submit the array."""
        make_folder(cells_folder)
        launch = _common([self._prepare(cell, cells_folder) for cell in cells])
        names, script = tuple(cell.name for cell in cells), cells_folder / "array.sh"
        text = array_script(cells_folder, cells_folder.parent, names, cells_folder.parent.name, self._options, launch)
        write(script, text.encode())
        array = Array("", names, commands.new_mark(), time.time())
        _write(cells_folder, array)  # before, so that '--resume' finds the array if this process is killed
        try:
            number = commands.submit(script, options_in(text), array.mark)
        except commands.Unanswered as error:
            raise commands.Unanswered(
                f"Slurm has not confirmed the submission ({error}): the same command with --resume waits for the runs, or "
                "submits them if Slurm has not accepted them"
            ) from error
        except (ConfigurationError, UnavailableError):
            (cells_folder / _ARRAY).unlink()
            raise
        return _numbered(cells_folder, array, number)

    def _prepare(self, cell: Cell, cells_folder: Path) -> Launch:
        """Write the files of a cell, and return how it is started."""
        home = SlurmJobFolder(safe_path(cells_folder, cell.name))
        make_folder(home.path)
        home.allow_again()
        bundle = bundle_loaded(cell.experiment, self._folder)
        copy_files(cells_folder / "files", bundle.manifest, bundle.sources, bundle.experiment, home.code)
        experiment = resolved(home.code, bundle.settings)
        launch = launch_of(experiment.tables, workers_of(experiment), self._options)
        write_experiment(home.path, experiment.with_table("engine", "mpi") if launch.mpi else experiment)
        return launch


class _Watched:
    """A cell of a submitted array, with the readers of its files."""

    def __init__(self, cell: Cell, array: Array, cells_folder: Path) -> None:
        self.cell, self.number = cell, array.number(cell.name)
        self._home = SlurmJobFolder(cells_folder / cell.name)
        self._updates = RunUpdates(cells_folder.parent / cell.name, RunLimits.of(cell.experiment.tables))
        self._attempts = 0
        self.found = found_state(self._home, self.number, self._home.attempts, "")

    @property
    def started(self) -> bool:
        """Whether the cell has begun."""
        return self._attempts > 0

    def poll(self, queue: Queue, callbacks: Sequence[GridCallback]) -> None:
        """Read the state and the new rows, and report them."""
        attempts = self._home.attempts
        own = attempts.last is not None and attempts.last.job == self.number
        self.found = found_state(self._home, self.number, attempts, queue)
        for callback in callbacks:
            if own and not self._attempts:
                callback.on_start(self.cell)
        self._attempts = attempts.count if own else 0
        for each in self._updates.new():
            for callback in callbacks:
                if isinstance(each, Event):
                    callback.on_event(self.cell, each)
                else:
                    callback.on_progress(self.cell, each)

    def failure(self) -> str:
        """Return the reason of a failure, with the path of the log."""
        reason = self.found.reason or f"Slurm job {self.number} was cancelled"
        return f"{reason} (its output: {self._home.log})"


def _await(watched: list[_Watched], outcomes: Outcomes, callbacks: Sequence[GridCallback]) -> int | None:
    """Wait until all cells have ended, or until a signal, and return it; record their states."""
    left, asked_s, answered_s = list(watched), -QUEUE_S, time.monotonic()
    queue: Queue = {}
    with Interrupt() as interrupt:
        while left and not interrupt.requested:
            now_s = time.monotonic()
            if now_s >= asked_s + QUEUE_S:
                queue, asked_s = ask(), now_s
                answered_s = answered_s if isinstance(queue, str) else now_s
            if isinstance(queue, str) and now_s > answered_s + PATIENCE_S:
                raise UnavailableError(queue)
            for each in list(left):
                each.poll(queue, callbacks)
                if each.found.state in TERMINAL:
                    left.remove(each)
                    done = each.found.state == State.DONE
                    outcomes[each.cell.name] = ("finished", "") if done else ("failed", each.failure())
                    for callback in callbacks:
                        callback.on_end(each.cell, *outcomes[each.cell.name])
            for callback in callbacks:
                callback.on_poll()
            time.sleep(POLL_S)
    for each in left:
        outcomes[each.cell.name] = ("running" if each.started else "waiting"), ""
    return interrupt.requested


def _unfinished(cells_folder: Path) -> Array | None:
    """Return the last array if a cell of it has not ended; None otherwise."""
    try:
        array = msgspec.json.decode((cells_folder / _ARRAY).read_bytes(), type=Array)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{cells_folder / _ARRAY} cannot be read: {error}; choose another folder") from error
    queue = commands.queue()
    if not array.slurm:
        number, left_s = commands.number_of(array.mark, queue), array.at_s + CONFIRM_S - time.time()
        if not number and left_s > 0:
            raise UnavailableError(
                f"Slurm may still accept the runs in {cells_folder}: repeat this command in {left_s:.0f} s"
            )
        if not number:
            return None
        array = _numbered(cells_folder, array, number)
    rows = [queue[number] for cell in array.cells if (number := array.number(cell)) in queue]
    return array if any(not has_ended(row) for row in rows) else None


def _numbered(cells_folder: Path, array: Array, number: str) -> Array:
    """Write and return an array with the number that Slurm gave it."""
    array = msgspec.structs.replace(array, slurm=number)
    _write(cells_folder, array)
    return array


def _write(cells_folder: Path, array: Array) -> None:
    write_atomically(cells_folder / _ARRAY, msgspec.json.encode(array))


def _common(launches: Sequence[Launch]) -> Launch:
    """Return how all cells of an array are started."""
    if len({launch.mpi for launch in launches}) > 1:
        raise ConfigurationError("cells with and without the engine mpi cannot be one array: compare them separately")
    return Launch(launches[0].mpi, max(launch.ranks for launch in launches), max(launch.cpus for launch in launches))
