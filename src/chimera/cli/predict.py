"""``chimera predict``: predict the time and the bytes of an experiment from a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera.cli.train import Json

if TYPE_CHECKING:
    from chimera.calibration.prediction import Interval, Predicted


def predict(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    engine_from: Annotated[
        Path,
        typer.Option(
            "--engine-from",
            metavar="FILE",
            help="Read the calibration from this file, which 'chimera calibrate' has written.",
        ),
    ],
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Set the number of workers.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,...",
            help="Predict for each of these values, as in 'chimera compare'. Repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the file. Repeatable."),
    ] = None,
    processors: Annotated[
        int | None,
        typer.Option(
            "--processors",
            metavar="N",
            min=0,
            help="Let all workers share this number of processors; 0: each has its own. Default: as in the calibrated runs.",
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option("--draws", metavar="K", min=1, help="Draw this number of sets of parameters for the intervals."),
    ] = 20,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="Simulate this number of rounds with each set.")
    ] = 100,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Predict time, bytes and time to the target of an experiment, with 90 % intervals; nothing real is started."""
    from chimera.calibration.engine_file import read_engine
    from chimera.calibration.prediction import predict as predicted
    from chimera.cli.rows import Shown, line, printed, table
    from chimera.training.experiment.experiment import Experiment

    calibration = read_engine(engine_from)
    experiment = Experiment.load(file)
    overrides = [*(settings or []), *([] if workers is None else [f"train.workers={workers}"])]

    def progress(cell: str, number: int, cells: int) -> None:
        typer.echo(f"{number + 1} of {cells}: {cell}", err=True)

    found = predicted(
        experiment,
        calibration,
        vary or [],
        settings=overrides,
        processors=processors,
        draws=draws,
        rounds=rounds,
        progress=None if quiet or not vary else progress,
    )
    if as_json:
        typer.echo(line({"predictions": found, "warnings": list(calibration.warnings)}))
        return
    rows = [_row(each) for each in found]
    columns = [Shown(key, len(rows[0]) - i, long=i == 0, is_number=i > 0) for i, key in enumerate(rows[0])]
    printed(table(rows, columns))
    notes = dict.fromkeys(f"{each.cell}: {note}" if each.cell else note for each in found for note in each.notes)
    for note in (*calibration.warnings, *notes):
        typer.echo(f"warning: {note}", err=True)


def _row(found: Predicted) -> dict[str, Any]:
    from chimera.report.units import in_bytes, number

    return {
        "experiment": found.cell or "as in the file",
        "round": _interval(found.round_s),
        "round p95": _interval(found.round_p95_s),
        "rounds": None if found.rounds is None else number(found.rounds),
        "time": _interval(found.seconds),
        "to target": _interval(found.target_s),
        "up": in_bytes(found.bytes_up),
        "down": in_bytes(found.bytes_down),
    }


def _interval(interval: Interval | None) -> str | None:
    if interval is None:
        return None
    from chimera.report.units import in_seconds

    return f"{in_seconds(interval.median)} ({in_seconds(interval.low)} to {in_seconds(interval.high)})"
