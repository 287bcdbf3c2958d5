"""`predict`: time, bytes and time to a target of an experiment, with intervals from the uncertainty of a calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chimera.calibration.calibration import Calibration
from chimera.calibration.engine_file import engine_table
from chimera.calibration.estimates import PARAMETERS
from chimera.calibration.measured_run import Floats
from chimera.calibration.simulation import complete, time_only
from chimera.calibration.stragglers import moments
from chimera.core.errors import ConfigurationError
from chimera.training.comparison.grid import Cell, check, grid_of
from chimera.training.comparison.variation import Vary, read_variations
from chimera.training.experiment.experiment import Experiment
from chimera.training.plugin import label

DRAWS, ROUNDS = 20, 100
_MAX_DRAWS, _MAX_ROUNDS = 1000, 100_000
_FREE = frozenset({"identity"})
_FACTORS = "straggler_spread", "straggler_factors", "straggler_correlation"
_GROUPED = ("local", "ray", "mpi")
"""Engines on which servers and workers exchange messages without the driver (decisions/0066)."""


@dataclass(frozen=True)
class Interval:
    """The median, and the 5th and 95th percentile over the draws."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> Interval:
        """Return the interval of values, one for each draw."""
        low, median, high = (float(value) for value in np.percentile(values, [5, 50, 95]))
        return cls(median, low, high)


@dataclass(frozen=True)
class Predicted:
    """The prediction for one cell of a grid.

    Attributes
    ----------
    cell : its settings as text.
    settings : the settings that vary, by key.
    workers : number of workers.
    round_s, round_p95_s, round_mean_s : the median, the 95th percentile and the mean of the seconds of rounds.
    rounds : rounds of the whole run; None if its limits do not determine them.
    seconds : seconds of the whole run, with evaluations; None without ``rounds``.
    bytes_up, bytes_down : bytes of the whole run; of one round if ``rounds`` is None.
    target_rounds, target_s : rounds and seconds to the target; None if there is no target, or it was not reached.
    notes : remarks for a reader of this cell.
    """

    cell: str
    settings: Mapping[str, str]
    workers: int
    round_s: Interval
    round_p95_s: Interval
    round_mean_s: float
    rounds: int | None
    seconds: Interval | None
    bytes_up: float
    bytes_down: float
    target_rounds: int | None = None
    target_s: Interval | None = None
    notes: tuple[str, ...] = ()


def predict(
    experiment: Experiment,
    calibration: Calibration,
    vary: Vary = (),
    *,
    settings: Sequence[str] = (),
    processors: int | None = None,
    draws: int = DRAWS,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Predicted]:
    """Predict each cell of a grid.

    Parameters
    ----------
    vary : see `chimera.training.comparison.execution.compare`.
    settings : overrides ``KEY=VALUE``. A parameter that an override or a variation of ``engine`` sets has no uncertainty.
    processors : processors that all workers share; 0 if each has its own. Default: as in the runs of the calibration.
    draws : parameter sets that are drawn from the uncertainty of the calibration.
    rounds : rounds that are simulated with each set.
    progress : called with a cell, its number from 0, and the number of cells.

    Raises
    ------
    ConfigurationError : a setting cannot be used.
    """
    for name, value, most in (("draws", draws, _MAX_DRAWS), ("rounds", rounds, _MAX_ROUNDS)):
        if not 1 <= value <= most:
            raise ConfigurationError(f"{name} must be 1 to {most}, not {value}")
    if processors is not None and processors < 0:
        raise ConfigurationError(f"processors must be 0 or more, not {processors}")
    varied = experiment.with_table("engine", engine_table(calibration)).with_settings(settings)
    cells = grid_of(varied, read_variations(vary))
    check(cells)
    shared = calibration.processors if processors is None else processors
    predictor = _Predictor(calibration, shared, draws, rounds, seed)
    found = []
    for number, cell in enumerate(cells):
        if progress is not None:
            progress(cell.label, number, len(cells))
        found.append(predictor.cell(cell))
    return found


def drawn_values(calibration: Calibration, draws: int, seed: int) -> list[dict[str, float]]:
    """Draw sets of parameters from the estimates and their covariance; none is below 0."""
    mean = np.array([calibration.values[name] for name in PARAMETERS])
    errors = calibration.errors_in_order()
    scale = np.where(errors > 0, errors, 1.0)  # parameters of any size then have the same weight in the decomposition
    shape = calibration.covariance / np.outer(scale, scale)
    drawn = np.random.default_rng(seed).multivariate_normal(np.zeros(len(mean)), shape, draws, check_valid="ignore")
    # Rounding errors of the decomposition would give a parameter without uncertainty a deviation in seconds.
    values = np.maximum(mean + drawn * errors, 0.0)
    return [dict(zip(PARAMETERS, row.tolist(), strict=True)) for row in values]


class _Predictor:
    def __init__(self, calibration: Calibration, processors: int, draws: int, rounds: int, seed: int) -> None:
        self._calibration, self._processors, self._rounds = calibration, processors, rounds
        self._table = engine_table(calibration)
        self._draws = drawn_values(calibration, draws, seed)
        self._seed = seed

    def cell(self, cell: Cell) -> Predicted:
        experiment, notes = cell.experiment, []
        train = experiment.tables["train"]
        workers = _workers(experiment)
        slowdown = max(1.0, workers / self._processors) if self._processors else 1.0
        if slowdown > 1:
            notes.append(f"{workers} workers share {self._processors} processors: each is {slowdown:.3g} times slower")
        codec = label(experiment.tables.get("codec", "identity"))
        if codec not in _FREE | self._calibration.codecs.keys():
            notes.append(f"the time of the codec {codec!r} counts as 0: calibrate with --codec {codec}")
        medians, tails, means = [], [], []
        for number, values in enumerate(self._draws):
            engine = self._engine(experiment, values, slowdown, self._seed + number)
            simulated = time_only(experiment, engine, self._rounds)
            medians.append(float(np.median(simulated.rounds_s)))
            tails.append(float(np.percentile(simulated.rounds_s, 95)))
            means.append(float(np.mean(simulated.rounds_s)))
        evaluation_s = np.array([values["seconds_per_evaluation"] for values in self._draws])
        per_round_s = np.array(means) + evaluation_s / _rounds_per_evaluation(train, simulated.epochs)
        serve_s = 0.0 if simulated.has_servers else np.array([values["seconds_to_serve"] for values in self._draws])
        start_s = np.array([values["seconds_to_start"] for values in self._draws]) - serve_s
        start_s = np.maximum(start_s, 0.0) + self._calibration.codec_starts.get(codec, 0.0)
        total = _rounds_of(train, simulated.epochs)
        target_rounds = None
        if train.get("target"):
            engine = self._engine(experiment, dict(self._calibration.values), slowdown, self._seed)
            ended_after, stopped_by = complete(experiment, engine)
            if stopped_by == "target":
                target_rounds = total = ended_after
            else:
                notes.append(f"the target was not reached: the run was stopped by {stopped_by}")
        return Predicted(
            cell=cell.label if cell.settings else "",
            settings=cell.settings,
            workers=workers,
            round_s=Interval.of(medians),
            round_p95_s=Interval.of(tails),
            round_mean_s=float(np.median(means)),
            rounds=total,
            seconds=None if total is None else Interval.of(start_s + per_round_s * total),
            bytes_up=simulated.bytes_up * (total or 1),
            bytes_down=simulated.bytes_down * (total or 1),
            target_rounds=target_rounds,
            target_s=None if target_rounds is None else Interval.of(start_s + per_round_s * target_rounds),
            notes=tuple(notes),
        )

    def _engine(self, experiment: Experiment, values: dict[str, float], slowdown: float, seed: int) -> dict[str, Any]:
        table = engine_table(self._calibration, values, seed)
        given = experiment.tables["engine"]
        for part in ("network", "compute"):
            table[part] = {**table[part], **_changed(self._table[part], given.get(part, {}))}
        table |= {part: given[part] for part in given.keys() - table.keys()}
        if slowdown > 1:
            table["compute"] = _shared(table["compute"], _workers(experiment), slowdown)
        in_groups = all(source.engine in _GROUPED for source in self._calibration.sources)
        return {"servers_in_groups": in_groups, **table}


def _shared(compute: Mapping[str, Any], workers: int, slowdown: float) -> dict[str, Any]:
    """Return the compute table of workers that share processors.

    The processors work until the sum of the work is done, so a straggler delays all workers by its share only.
    """
    mean, deviation = moments(tuple(compute.get("straggler_factors", ())), compute.get("straggler_spread", 0.0))
    shared = compute.get("straggler_correlation", 0.0)
    spread = math.sqrt(math.log1p((deviation / mean) ** 2 * (1 + (workers - 1) * shared) / workers))
    slow, usual = compute.get("slow", {}), slowdown * mean * math.exp(-(spread**2) / 2)
    kept = {key: value for key, value in compute.items() if key not in _FACTORS}
    names = (f"worker {rank}" for rank in range(workers))
    kept["straggler_correlation"] = shared
    return {**kept, "straggler_spread": spread, "slow": {name: usual * slow.get(name, 1.0) for name in names}}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a user has set or changed."""
    return {key: value for key, value in after.items() if key not in before or before[key] != value}


def _workers(experiment: Experiment) -> int:
    return int(experiment.tables["train"].get("workers", 2))


def _rounds_of(train: Mapping[str, Any], epochs: float) -> int | None:
    """Return the rounds that the limits of an experiment allow; None if no limit determines them."""
    limits = [int(train["rounds"])] if train.get("rounds") else []
    given = train.get("epochs")
    if given is None and not any(train.get(key) for key in ("rounds", "max_seconds", "max_bytes")):
        given = 1.0
    if given and epochs:
        limits.append(math.ceil(given / epochs - 1e-9))
    return min(limits, default=None)


def _rounds_per_evaluation(train: Mapping[str, Any], epochs: float) -> float:
    return float(train.get("evaluate_every") or max(1.0, 1 / epochs if epochs else 1.0))
