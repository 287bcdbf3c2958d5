"""The figures of cells, from the files of their runs, and their ratios to baselines."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import MAX_DOCUMENT_BYTES, read_regular, safe_path
from chimera.report.csv_cells import csv_cell
from chimera.report.run_files import read_metrics
from chimera.training.comparison.cell_process import State
from chimera.training.comparison.grid import Cell
from chimera.training.progress.budget import Budget, Counters

SUMMARY_KEYS = ("rounds", "epochs", "samples", "seconds", "samples_per_second", "bytes_up", "bytes_down")
MEASURED = ("bits_per_element_up", "bits_per_element_down", "compression_ratio")  # about sent messages
TARGET_KEYS = ("seconds_to_target", "rounds_to_target", "bytes_to_target", "samples_per_worker_to_target")
_COUNTED = ("seconds", "round", "bytes_up", "bytes_down", "samples")
_WORKERS = "train.workers"

Row = dict[str, Any]


_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e100)]


class _Figures(msgspec.Struct):
    """The values of ``summary.json`` from which the figures of a cell are computed; the number of workers is required."""

    workers: Annotated[int, msgspec.Meta(ge=1)]
    metrics: dict[str, float | None] = {}
    rounds: _Amount = 0
    epochs: _Amount = 0
    samples: _Amount = 0
    seconds: _Amount = 0
    samples_per_second: _Amount = 0
    bytes_up: _Amount = 0
    bytes_down: _Amount = 0
    bits_per_element_up: _Amount = 0
    bits_per_element_down: _Amount = 0
    compression_ratio: _Amount = 0
    lost_workers: int = 0
    stopped_by: str = ""


def run_row(cell: Cell, folder: Path, state: State, reason: str, target: Mapping[str, float] | None) -> Row:
    """Return the row of one run.

    Parameters
    ----------
    folder : folder of the comparison.
    """
    row: Row = {"cell": cell.label, "folder": cell.name, "settings": cell.settings, "state": state}
    if cell.seed is not None:
        row["seed"] = cell.seed
    if reason:
        row["error"] = reason
    row |= {"engine": cell.engine, "virtual": cell.is_virtual}
    summary = _read(safe_path(folder, f"{cell.name}/summary.json")) if state == "finished" else {}
    instead = {"epsilon": summary["epsilon"]} if isinstance(summary.get("epsilon"), str) else {}  # there is none
    row["metrics"] = {**summary.get("metrics", {}), **instead}
    row |= {key: summary[key] for key in (*SUMMARY_KEYS, *MEASURED, "stopped_by", "lost_workers") if key in summary}
    if target and summary:
        row |= dict(
            zip(TARGET_KEYS, _when_reached(safe_path(folder, cell.name), target, summary["workers"]), strict=True)
        )
    return row


def with_speed_ups(runs: Sequence[Row]) -> list[Row]:
    """Return the runs, with a ``speed_up`` if the number of workers varies.

    The speed-up is a ratio of samples per worker until the target. The run with the fewest workers and equal other settings is
    divided by this run. The speed-up is None if one of the two did not reach the target.
    """
    fewest: dict[str, Row] = {}
    for run in runs:
        if _WORKERS in run["settings"]:
            best = fewest.setdefault(_all_but_workers(run), run)
            if int(run["settings"][_WORKERS]) < int(best["settings"][_WORKERS]):
                fewest[_all_but_workers(run)] = run
    key = "samples_per_worker_to_target"
    return [
        {**run, "speed_up": _ratio(fewest[_all_but_workers(run)].get(key), run[key])}
        if key in run and _WORKERS in run["settings"]
        else run
        for run in runs
    ]


def _all_but_workers(run: Row) -> str:
    others = {key: value for key, value in run["settings"].items() if key != _WORKERS}
    return repr((sorted(others.items()), run.get("seed")))


def rows_of(runs: Sequence[Row], varied: Sequence[str]) -> list[Row]:
    """Return a row for each cell: the row of its run or the means over its seeds, with ratios to its baseline."""
    groups: dict[str, list[Row]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(run["settings"].items())), []).append(run)
    rows = [_mean(group) for group in groups.values()]
    for row in rows:
        baseline = _baseline(row, rows, varied)
        row["baseline"] = baseline["cell"]
        row["times_fewer_bytes"] = _ratio(_moved(baseline), _moved(row))
        if row["virtual"] == baseline["virtual"]:
            key = "seconds_to_target" if "seconds_to_target" in baseline else "seconds"
            row["times_sooner"] = _ratio(baseline.get(key), row.get(key))
    return rows


def _mean(group: Sequence[Row]) -> Row:
    """Return one row for the runs of a cell: means over those that finished, and ``*_spread``, their standard deviation."""
    if len(group) == 1 and "seed" not in group[0]:
        return dict(group[0])
    done = [run for run in group if run["state"] == "finished"]
    first = group[0]
    kept = ("cell", "settings", "engine", "virtual")
    row: Row = {key: first[key] for key in kept}
    states = [run["state"] for run in group]
    worst = next((s for s in ("failed", "interrupted", "running", "waiting") if s in states), "finished")
    row |= {"folder": first["folder"], "state": worst, "seeds": [run["seed"] for run in group]}
    if failed := [run for run in group if "error" in run]:
        row["error"] = f"seed {failed[0]['seed']}: {failed[0]['error']}"
    names = [name for name in (done[0]["metrics"] if done else {}) if all(name in run["metrics"] for run in done)]
    measured = {name: [run["metrics"][name] for run in done] for name in names}
    texts = {name: values[0] for name, values in measured.items() if isinstance(values[0], str)}
    numbers = {name: values for name, values in measured.items() if name not in texts}
    row["metrics"] = {name: _mean_of(values) for name, values in numbers.items()} | texts
    row["metrics_spread"] = {name: _spread(values) for name, values in numbers.items()}
    for key in dict.fromkeys(key for run in done for key in run):
        values = [run.get(key) for run in done]
        if key in ("seed", "virtual") or not isinstance(values[0], int | float | None):
            continue
        row[key] = _mean_of(values)
        if key in ("seconds", "speed_up", *TARGET_KEYS):
            row[f"{key}_spread"] = _spread(values)
    return row


def _baseline(row: Row, rows: Sequence[Row], varied: Sequence[str]) -> Row:
    """Return the baseline: the row that differs only in the first varied key and has its first value."""
    if not varied:
        return rows[0]
    wanted = {**row["settings"], varied[0]: rows[0]["settings"][varied[0]]}
    return next((other for other in rows if other["settings"] == wanted), rows[0])


def _moved(row: Row) -> float | None:
    return row["bytes_up"] + row["bytes_down"] if "bytes_up" in row else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is None, which means not finite or a missed target."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _spread(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else statistics.stdev(known) if len(known) > 1 else 0.0


def csv_of(runs: Sequence[Row]) -> str:
    """Return a CSV table with a line per run, and a column per setting and metric."""
    flat = []
    for run in runs:
        line = {"cell": run["cell"], **run["settings"]}
        line |= {key: value for key, value in run.items() if key not in ("cell", "settings", "metrics")}
        flat.append(line | run["metrics"])
    columns = list(dict.fromkeys(key for line in flat for key in line))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, columns))
    writer.writerows([csv_cell(line.get(key, "")) for key in columns] for line in flat)
    return text.getvalue()


def _when_reached(folder: Path, target: Mapping[str, float], workers: int) -> tuple[float | None, ...]:
    """Return when the target was first met, in the units of `TARGET_KEYS`; None if it was not met."""
    budget = Budget(rounds=1, target=target)
    for row in read_metrics(folder):
        metrics = {key: value for key, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}
        if all(name in metrics for name in (*target, *_COUNTED)) and budget.reached(Counters(), metrics, 1) == "target":
            seconds, rounds, up, down, samples = (metrics[name] for name in _COUNTED)
            return seconds, rounds, up + down, samples / workers
    return (None,) * len(TARGET_KEYS)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_regular(path, MAX_DOCUMENT_BYTES)
        msgspec.json.decode(content, type=_Figures)
        found: dict[str, Any] = msgspec.json.decode(content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; remove it, and resume") from error
    return found
