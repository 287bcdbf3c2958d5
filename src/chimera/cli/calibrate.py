"""``chimera calibrate``: estimate the parameters of the simulated engine from real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chimera.cli.train import Json


def calibrate(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Folders of finished runs on one engine, not 'simulated'."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the table [engine] to this file, and a page beside it."
        ),
    ] = Path("engine.toml"),
    codecs: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="NAME",
            help="Measure on this machine how long a codec takes, e.g. top-k:ratio=0.01. Repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the times of the engine 'simulated' from the traces of real runs; write engine.toml and an HTML page."""
    from chimera.calibration.calibration import calibrate as estimate
    from chimera.calibration.engine_file import write_engine
    from chimera.calibration.page import shown_parameters, write_page
    from chimera.cli.rows import Shown, line, printed, table
    from chimera.core.errors import ConfigurationError

    if output.suffix != ".toml":
        raise ConfigurationError(f"-o {output}: give the name of a TOML file, such as engine.toml")
    calibration = estimate(run_dirs, codecs=codecs or [])
    written = write_engine(calibration, output), write_page(calibration, output.with_suffix(".html"))
    for warning in calibration.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        parameters = {
            name: {"estimate": value, "standard_error": calibration.errors[name]}
            for name, value in calibration.values.items()
        }
        plain = {
            "parameters": parameters,
            "straggler_spread": calibration.stragglers.spread,
            "straggler_factors": calibration.stragglers.factors,
            "spread": calibration.spread,
            "slow": dict(calibration.slow),
            "warnings": list(calibration.warnings),
            "files": [str(path) for path in written],
        }
        typer.echo(line(plain))
        return
    rows = [
        {"parameter": name, "estimate": estimate_, "standard error": error}
        for name, estimate_, error in shown_parameters(calibration)
    ]
    columns = [
        Shown("parameter", 3),
        Shown("estimate", 2, is_number=True),
        Shown("standard error", 1, is_number=True),
    ]
    printed(table(rows, columns))
    for path in written:
        typer.echo(path)
