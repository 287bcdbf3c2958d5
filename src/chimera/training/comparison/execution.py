"""`compare`: an experiment over a grid of settings, from its variations to its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.stop_signals import terminable
from chimera.training.comparison.comparison import Comparison
from chimera.training.comparison.figures import csv_of, rows_of, run_row, with_speed_ups
from chimera.training.comparison.folder import begin_folder, choose_folder
from chimera.training.comparison.grid import Cell, check, grid_of
from chimera.training.comparison.running import CellRunner, GridCallback, Outcomes, run_cells
from chimera.training.comparison.stored_grid import RESULT, StoredGrid
from chimera.training.comparison.variation import Variation, Vary, read_variations
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.history import write_atomically


def compare(
    experiment: Experiment | str | Path,
    vary: Vary,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    repeat: int | Sequence[int] | None = None,
    resume: bool = False,
    callbacks: Sequence[GridCallback] = (),
    runner: CellRunner | None = None,
) -> Comparison:
    """Run an experiment once for each combination of values, and compare the results.

    Parameters
    ----------
    experiment : an `Experiment`, or the path of its file.
    vary : lists of values by key: ``{"codec": ["identity", "top-k:ratio=0.01"], "train.batch_size": [16, 32]}``; or sentences
        as for ``--vary``.
    out : the folder, or its URL in an object store; by default a new one below ``runs/``.
    jobs : runs at a time; see `run_cells`.
    repeat : number of seeds of each cell, starting at the experiment's seed; or a list of seeds.
    resume : whether to skip finished cells of the folder and resume the other cells.
    runner : runs the cells; default: processes of this machine, see `run_cells`.

    Raises
    ------
    ConfigurationError : the variations, a cell or the folder are invalid; no run has started then.
    StoreError : the object store cannot be read, or does not accept the files.
    KeyboardInterrupt : a second Ctrl-C; after the first, the comparison reports the results so far. SIGTERM and SIGUSR1 have
        the same effect; the second one raises its subclass `Terminated`.
    """
    if not isinstance(experiment, Experiment):
        experiment = Experiment.load(experiment)
    if jobs is not None and jobs < 1:
        raise ConfigurationError(f"jobs must be at least 1, not {jobs}")
    variations = read_variations(vary)
    cells = grid_of(experiment, variations, _seeds(experiment, repeat))
    if len(cells) == 1 and not variations:
        raise ConfigurationError("no key varies: give values, such as --vary codec=identity,top-k:ratio=0.01")
    check(cells)
    place = choose_folder(out, experiment, resume=resume)
    stored = place if isinstance(place, StoredGrid) else None
    if stored is not None and runner is not None:
        raise ConfigurationError(f"cells on Slurm share a folder of the cluster: {stored.url} is none")
    folder = place if isinstance(place, Path) else place.folder
    runner = runner or partial(run_cells, jobs=jobs, url=None if stored is None else stored.url)
    with terminable():
        begin_folder(folder, cells)
        if stored is not None:
            stored.upload()
            stored.fetch(cell.name for cell in cells)
        ran, stopped_by = _run(folder, cells, resume=resume, callbacks=callbacks, runner=runner)
        if stored is not None:
            stored.fetch(cell.name for cell in cells)
        written = _written(folder, experiment, variations, cells, ran, jobs, stored)
        if stored is not None:
            stored.upload()
    return replace(written, signal=stopped_by)


def _run(
    folder: Path, cells: Sequence[Cell], *, resume: bool, callbacks: Sequence[GridCallback], runner: CellRunner
) -> tuple[Outcomes, int | None]:
    """Run the cells that have no result in the folder; return the states of all, and the signal that stopped them, if any."""
    for callback in callbacks:
        callback.on_cells(cells)
    ended = {cell.name for cell in cells if (folder / cell.name / "summary.json").exists()}
    for callback in callbacks:
        for cell in cells:
            if cell.name in ended:
                callback.on_end(cell, "finished", "")
    left = [cell for cell in cells if cell.name not in ended]
    outcomes: Outcomes = dict.fromkeys(ended, ("finished", ""))
    ran, stopped_by = runner(left, folder, resume=resume, callbacks=callbacks)
    return outcomes | ran, stopped_by


def _written(
    folder: Path,
    experiment: Experiment,
    variations: Sequence[Variation],
    cells: Sequence[Cell],
    outcomes: Outcomes,
    jobs: int | None,
    stored: StoredGrid | None,
) -> Comparison:
    """Write the comparison of all cells to the folder."""
    from chimera.report.comparison_page.page import write_comparison

    targets = [cell.experiment.tables["train"].get("target") for cell in cells]
    target = targets[0] if all(each == targets[0] for each in targets) else None
    runs = with_speed_ups([run_row(cell, folder, *outcomes[cell.name], target=target) for cell in cells])
    varied = {variation.key: [choice.text for choice in variation.choices] for variation in variations}
    comparison = Comparison(
        folder=folder,
        experiment=experiment.source,
        varied=varied,
        target=dict(target) if target else None,
        rows=rows_of(runs, list(varied)),
        runs=runs,
        notes=_notes(cells, jobs),
        stored=stored,
    )
    write_atomically(folder / RESULT, msgspec.json.format(msgspec.json.encode(comparison.plain())))
    write_atomically(folder / "comparison.csv", csv_of(runs).encode())
    write_comparison(folder)
    return comparison


def _notes(cells: Sequence[Cell], jobs: int | None) -> list[str]:
    virtual = [cell.is_virtual for cell in cells]
    notes = []
    if all(virtual):
        notes.append("Simulated: all seconds are virtual, computed by models of network and computers.")
    elif any(virtual):
        notes.append(
            "Seconds of cells on the engine simulated are virtual (and marked), others are real: do not compare them."
        )
    if jobs is not None and jobs > 1 and virtual.count(False) > 1:
        notes.append(f"Up to {jobs} runs in real time shared this machine: their seconds are not comparable.")
    return notes


def _seeds(experiment: Experiment, repeat: int | Sequence[int] | None) -> list[int]:
    if repeat is None:
        return []
    if isinstance(repeat, int):
        first = experiment.tables["train"].get("seed", 0)
        repeat = range(first, first + repeat)
    seeds = list(repeat)
    if not seeds or any(not isinstance(seed, int) or seed < 0 for seed in seeds):
        raise ConfigurationError(
            f"repeat = {repeat!r} cannot be used: give a number of seeds, at least 1, or a list of seeds"
        )
    return seeds
