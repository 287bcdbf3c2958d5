"""``engine.toml``: the table of the simulated engine that a calibration writes, and its uncertainty."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from chimera.calibration.calibration import Calibration, Source
from chimera.calibration.estimates import PARAMETERS
from chimera.calibration.measured_run import Floats
from chimera.calibration.stragglers import Stragglers
from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml
from chimera.core.validation_message import validation_message
from chimera.engines.simulated.models.compute import Compute
from chimera.engines.simulated.options import options
from chimera.report.run_files import replace_file
from chimera.training.experiment.toml import dump_toml

_MAX_BYTES = 1 << 20
_MAX_SECONDS = 1e6
Seconds = Annotated[float, msgspec.Meta(ge=0, le=_MAX_SECONDS)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class _Parameter(msgspec.Struct, forbid_unknown_fields=True):
    estimate: Seconds
    standard_error: Seconds
    unit: Text = ""


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    name: Text
    engine: Text
    strategy: Text
    workers: int
    batch_size: int
    processors: int
    chimera: Text
    round_s: Seconds
    round_p95_s: Seconds


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """The table ``[calibration]``."""

    version: Text
    date: Text
    processors: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    straggler_spread: Annotated[float, msgspec.Meta(ge=0, le=10)]
    straggler_distances: tuple[float, float]
    warnings: Annotated[list[Text], msgspec.Meta(max_length=1000)]
    covariance: Annotated[list[list[float]], msgspec.Meta(max_length=64)]
    parameters: dict[str, _Parameter]
    sources: Annotated[list[_Source], msgspec.Meta(max_length=1000)]
    codec_starts: dict[str, Seconds] = msgspec.field(default_factory=dict)


def engine_table(calibration: Calibration, values: dict[str, float] | None = None, seed: int = 0) -> dict[str, Any]:
    """Return the table ``[engine]`` of a calibration, or of other values of its parameters."""
    values = values or dict(calibration.values)
    byte_s, factors = values["seconds_per_byte"], list(calibration.stragglers.factors)
    compute: dict[str, Any] = {
        key: values[key]
        for key in ("seconds_per_call", "seconds_per_batch", "seconds_per_sample", "seconds_per_element")
    }
    compute |= {"straggler_factors": factors} if factors else {"straggler_spread": calibration.stragglers.spread}
    if calibration.stragglers.correlation:
        compute["straggler_correlation"] = calibration.stragglers.correlation
    compute["spread"] = calibration.spread
    if calibration.slow:
        compute["slow"] = dict(calibration.slow)
    if calibration.codecs:
        compute["codecs"] = {
            name: {key: value for key, value in asdict(cost).items() if value is not None}
            for name, cost in calibration.codecs.items()
        }
    network: dict[str, Any] = {
        "latency_s": values["latency_s"],
        "bandwidth_bytes_s": 1 / byte_s if byte_s else math.inf,
    }
    if all(source.engine == "ray" for source in calibration.sources):
        network["collectives"] = "direct"
    return {"name": "simulated", "seed": seed, "network": network, "compute": compute}


def write_engine(calibration: Calibration, path: str | os.PathLike[str]) -> Path:
    """Write ``engine.toml`` atomically, and return its path.

    Raises
    ------
    ConfigurationError : the file cannot be written.
    """
    table = {
        "version": calibration.version,
        "date": calibration.date,
        "processors": calibration.processors,
        "straggler_spread": calibration.stragglers.spread,
        "straggler_distances": list(calibration.stragglers.distances),
        "warnings": list(calibration.warnings),
        "covariance": calibration.covariance.tolist(),
        "codec_starts": dict(calibration.codec_starts),
        "sources": [asdict(source) for source in calibration.sources],
        "parameters": {
            name: {"estimate": calibration.values[name], "standard_error": calibration.errors[name], "unit": unit}
            for name, unit in PARAMETERS.items()
        },
    }
    path = Path(path)
    replace_file(path, dump_toml({"engine": engine_table(calibration), "calibration": table}).encode())
    return path


def read_engine(path: str | os.PathLike[str]) -> Calibration:
    """Read ``engine.toml``.

    Raises
    ------
    ConfigurationError : the file cannot be read, is too large, or is not the file of a calibration.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        tables = read_toml(content.decode())
    except OSError as error:
        raise ConfigurationError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{str(path)!r} is not a TOML file: {error}") from None
    if len(content) > _MAX_BYTES:
        raise ConfigurationError(f"{str(path)!r} is larger than {_MAX_BYTES >> 20} MiB: it is no file of a calibration")
    if "calibration" not in tables:
        raise ConfigurationError(
            f"{str(path)!r} has no table [calibration]: give the file that 'chimera calibrate' has written"
        )
    try:
        table = msgspec.convert(tables["calibration"], _Table)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}, [calibration]: {validation_message(error, _Table)}") from None
    engine = tables.get("engine")
    compute = options(Compute, engine.get("compute") if isinstance(engine, dict) else None, f"{path}, [engine.compute]")
    return _checked(table, compute, path)


def _checked(table: _Table, compute: Compute, path: Path) -> Calibration:
    if missing := PARAMETERS.keys() - table.parameters.keys():
        raise ConfigurationError(f"{path}, [calibration]: the parameter {min(missing)!r} is missing: calibrate again")
    covariance: Floats = np.zeros((len(PARAMETERS),) * 2)
    if [len(row) for row in table.covariance] != [len(PARAMETERS)] * len(PARAMETERS):
        raise ConfigurationError(f"{path}, [calibration]: covariance has not {len(PARAMETERS)} rows of that length")
    covariance[:] = table.covariance
    if not (
        np.isfinite(covariance).all() and np.allclose(covariance, covariance.T) and (np.diag(covariance) >= 0).all()
    ):
        raise ConfigurationError(f"{path}, [calibration]: covariance is not that of parameters")
    return Calibration(
        values={name: table.parameters[name].estimate for name in PARAMETERS},
        covariance=covariance,
        stragglers=Stragglers(
            table.straggler_spread,
            tuple(compute.straggler_factors),
            table.straggler_distances,
            compute.straggler_correlation,
        ),
        spread=compute.spread,
        slow=compute.slow,
        codecs=compute.codecs,
        sources=[Source(**msgspec.structs.asdict(source)) for source in table.sources],
        warnings=table.warnings,
        date=table.date,
        processors=table.processors,
        version=table.version,
        codec_starts=table.codec_starts,
    )
