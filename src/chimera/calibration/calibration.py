"""`calibrate`: the parameters of the simulated engine and their uncertainty, from runs on a real engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from chimera.calibration.codec_cost import codec_costs, codec_starts, shapes_of, work_of
from chimera.calibration.estimates import PARAMETERS, Point
from chimera.calibration.fit import Fit
from chimera.calibration.measured_run import IN_MEMORY, Floats, MeasuredRun, read_measured
from chimera.calibration.stragglers import Stragglers
from chimera.core.errors import ConfigurationError
from chimera.engines.simulated.models.compute import CodecCost
from chimera.report.run_files import finite
from chimera.version import __version__

_DRAWS = 100
_MAX_CHARACTERS = 200


@dataclass(frozen=True, eq=False)
class Source:
    """A run that a calibration has used.

    Attributes
    ----------
    name, engine, strategy : name, engine and strategy of the run.
    workers, batch_size, processors : number of workers, samples in a batch, and processors.
    chimera : version of Chimera that executed the run.
    round_s, round_p95_s : median and 95th percentile of the seconds of its rounds.
    """

    name: str
    engine: str
    strategy: str
    workers: int
    batch_size: int
    processors: int
    chimera: str
    round_s: float
    round_p95_s: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """Estimates of the parameters of the simulated engine.

    Attributes
    ----------
    values : estimate by parameter, see `PARAMETERS`.
    covariance : shape (parameters, parameters), in the order of `PARAMETERS`.
    stragglers : distribution of the factors of calls.
    spread : sigma of the factors of workers.
    slow : factors of single workers.
    codecs : costs of codecs, by name.
    codec_starts : seconds that the first message of a codec takes longer, because processes load the codec's code, by name.
    sources : the runs.
    warnings : sentences about what the runs cannot show.
    date : date of the calibration.
    processors : processors of the host that all workers of the runs shared; 0 if workers had hosts of their own.
    version : version of Chimera.
    points : medians that the fit used, and the fitted values; empty if the calibration was read from a file.
    """

    values: Mapping[str, float]
    covariance: Floats
    stragglers: Stragglers
    spread: float
    slow: Mapping[str, float]
    codecs: Mapping[str, CodecCost]
    sources: Sequence[Source]
    warnings: Sequence[str]
    date: str
    processors: int
    version: str = __version__
    points: Sequence[Point] = field(default=(), repr=False)
    codec_starts: Mapping[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> dict[str, float]:
        """The standard error of each parameter."""
        return dict(zip(PARAMETERS, self.errors_in_order().tolist(), strict=True))

    def errors_in_order(self) -> Floats:
        """Return the standard errors in the order of `PARAMETERS`."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.covariance), 0)))


def calibrate(
    run_dirs: Sequence[str | os.PathLike[str]],
    *,
    codecs: Sequence[str] = (),
    allow_simulated: bool = False,
    seed: int = 0,
) -> Calibration:
    """Estimate the parameters of the simulated engine from finished runs of one engine.

    Parameters
    ----------
    codecs : codecs to measure on this machine, as names with options such as ``top-k:ratio=0.01``. Processes exchange vectors.
    allow_simulated : whether runs in virtual time are accepted, for tests with known parameters.
    seed : seed of the bootstrap.

    Raises
    ------
    ConfigurationError : a run cannot be used, or the runs have different engines.
    """
    if not run_dirs:
        raise ConfigurationError("a calibration needs at least one run: give the folders of finished runs")
    runs = [read_measured(run_dir, allow_simulated=allow_simulated) for run_dir in run_dirs]
    if len(engines := sorted({run.engine for run in runs})) > 1:
        raise ConfigurationError(f"the runs used different engines ({', '.join(engines)}): calibrate each on its own")
    shapes = shapes_of(max(runs, key=MeasuredRun.elements_per_message)) if codecs else ()
    workers = max(len(run.workers) for run in runs)
    Fit(runs)  # raises an error before the measurements, which take long
    shared = runs[0].engine in IN_MEMORY
    starts_s = codec_starts(codecs, shapes, workers, preloaded=shared)
    fit = Fit(runs, starts_s)
    values = fit.estimate()
    rng = np.random.default_rng(seed)
    draws = np.array([list(fit.estimate(rng).values()) for _ in range(_DRAWS)])
    return Calibration(
        values=values,
        covariance=np.atleast_2d(np.cov(draws.T)) + np.diag(fit.misfit(values) ** 2),
        stragglers=fit.stragglers,
        spread=fit.spread(values),
        slow=fit.slow,
        codecs=codec_costs(codecs, shapes, workers, work_s=work_of(runs)),
        codec_starts=starts_s,
        sources=[_source(run) for run in runs],
        warnings=fit.warnings(values),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        processors=min((run.processors for run in runs), default=0) if shared else 0,
        points=fit.points(values),
    )


def _source(run: MeasuredRun) -> Source:
    rounds_s = run.seconds_of_rounds()[0]
    return Source(
        name=run.name[:_MAX_CHARACTERS],
        engine=run.engine[:_MAX_CHARACTERS],
        strategy=run.files.plugin("strategy")[:_MAX_CHARACTERS],
        workers=len(run.workers),
        batch_size=run.batch_size,
        processors=run.processors,
        chimera=str(run.files.environment.get("chimera", ""))[:_MAX_CHARACTERS],
        round_s=finite(float(np.median(rounds_s))) if len(rounds_s) else 0.0,
        round_p95_s=finite(float(np.percentile(rounds_s, 95))) if len(rounds_s) else 0.0,
    )
