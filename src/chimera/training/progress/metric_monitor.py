"""The monitored metric: counts evaluations without improvement, and keeps the weights of the best model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.models.model import Model
from chimera.training.optimizers.plateau import Plateaus
from chimera.training.optimizers.schedule import Schedule
from chimera.training.progress.budget import smaller_is_better

Keep: TypeAlias = Literal["best", "last"]


@dataclass(frozen=True)
class Stopping:
    """Settings of the monitored metric.

    Attributes
    ----------
    patience : the run stops after this many evaluations without improvement; None: no limit.
    monitor : name of the metric; default: ``accuracy`` if it is measured, else ``loss``.
    keep : the model that the run returns: the model of the ``best`` evaluation, or the ``last`` one.

    Raises
    ------
    ConfigurationError : an option has another value.
    """

    patience: int | None = None
    monitor: str | None = None
    keep: Keep = "last"

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ConfigurationError(f"patience must be at least 1, not {self.patience}")
        if self.keep not in get_args(Keep):
            raise ConfigurationError(f"keep must be 'best' or 'last', not {self.keep!r}")


class MetricMonitor:
    """Compares the monitored metric of each evaluation with the best one so far.

    Parameters
    ----------
    stopping : settings of the run.
    schedules : schedules of the run's optimizers; the monitor reduces those that are plateaus.
    """

    def __init__(self, stopping: Stopping, schedules: Sequence[Schedule] = ()) -> None:
        self._stopping, self._plateaus = stopping, Plateaus(schedules)
        self._metric = ""
        self._round = -1  # round of the last evaluation
        self._best: float | None = None
        self._waited = 0  # evaluations since the best one
        self._kept: dict[str, Any] | None = None
        self._end: int | None = (
            None  # the round in which the run ended between evaluations, with a model that is the best
        )

    @property
    def exhausted(self) -> bool:
        """Whether ``patience`` evaluations passed without improvement."""
        return self._stopping.patience is not None and self._waited >= self._stopping.patience

    @property
    def kept_round(self) -> int | None:
        """The round of the model that is kept; None if the run keeps the last one."""
        if self._stopping.keep == "last" or self._kept is None:
            return None
        return int(self._kept["round"]) if self._end is None else self._end

    def evaluated(self, metrics: Mapping[str, float], round_: int, model: Model, *, due: bool = True) -> bool:
        """Compare the metrics of ``model`` after ``round_`` with the best ones; return whether learning rates must be reduced.

        A repeated evaluation of a round has no effect. An evaluation that is not ``due``, at the end of a run, only decides
        which model is kept. A resumed run therefore equals a run that never stopped.

        Raises
        ------
        ConfigurationError : the metric is not measured.
        """
        if round_ <= self._round or (self._stopping == Stopping() and not {"accuracy", "loss"} & metrics.keys()):
            return False  # nodes that keep their rows may give no metrics
        if not metrics or (self._metric and self._metric not in metrics):
            return False  # the nodes that measure it are away
        self._metric = self._metric or self._name(metrics)
        value = metrics[self._metric]
        if not due:
            self._end = round_ if self._improves(value) else None
            return False
        self._round, self._end = round_, None
        if not self._improves(value):
            self._waited += 1
            return self._plateaus.evaluated(value, falls=smaller_is_better(self._metric))
        self._best, self._waited = value, 0
        if self._stopping.keep == "best":
            self._kept = {
                "round": round_,
                "metrics": dict(metrics),
                "weights": model.parameters().copy(),
                "buffers": model.buffers(),
            }
        return self._plateaus.evaluated(value, falls=smaller_is_better(self._metric))

    def load_kept(self, model: Model) -> dict[str, float] | None:
        """Load the model that the run keeps into ``model``; return its metrics. None: the run keeps the last model."""
        if self._kept is None or self._end is not None:
            return None
        model.load(self._kept["weights"])
        model.load_buffers(self._kept["buffers"])
        return dict(self._kept["metrics"])

    def state(self) -> dict[str, Any]:
        """Return the state, whose arrays do not change later."""
        state = {"metric": self._metric, "round": self._round, "best": self._best, "waited": self._waited}
        return {**state, "end": self._end, "kept": self._kept, "plateaus": self._plateaus.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned. If the run now monitors another metric, or keeps another model, start over."""
        wanted, keeps = self._stopping.monitor or state.get("metric"), self._stopping.keep == "best"
        if not state or wanted != state["metric"] or (keeps and state["best"] is not None and not state["kept"]):
            self._metric, self._round, self._best, self._waited, self._kept, self._end = "", -1, None, 0, None, None
            same = bool(state) and wanted == state["metric"]  # then the reductions of the rate are still valid
            self._plateaus.restore(*((state["plateaus"], state["best"]) if same else ({},)))
            return
        self._metric, self._round, self._best = state["metric"], state["round"], state["best"]
        self._waited, self._kept = state["waited"], state["kept"] if keeps else None
        self._end = state["end"]
        self._plateaus.restore(state["plateaus"], self._best)

    def _improves(self, value: float) -> bool:
        if self._best is None or math.isnan(value):
            return not math.isnan(value)
        return value < self._best if smaller_is_better(self._metric) else value > self._best

    def _name(self, metrics: Mapping[str, float]) -> str:
        name = self._stopping.monitor or ("accuracy" if "accuracy" in metrics else "loss")
        if name not in metrics:
            meant = did_you_mean(name, metrics)
            raise ConfigurationError(f"monitor: {name!r} is not measured{meant} measured: {', '.join(metrics)}")
        return name
