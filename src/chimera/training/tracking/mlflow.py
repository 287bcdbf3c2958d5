"""MLflow: runs of a tracking server, or of local files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.training.tracking.tracker import TRACKERS, RoundTexts, Tracked, Tracker

_PARAMETERS_AT_ONCE = 100
_METRICS_AT_ONCE = 500
_MAX_TAG_CHARACTERS = 5000
_WAIT_S = 2.0
"""Seconds between requests. Rows within this time are sent together: a request costs as much as several rows."""


@TRACKERS.register("mlflow", requires="mlflow", extra="track")
class MLflow(Tracker):
    """A run of MLflow. ``MLFLOW_TRACKING_URI`` and the other variables of MLflow select the server and sign in.

    Parameters
    ----------
    experiment : name of MLflow's experiment; default: ``chimera``.
    """

    def __init__(self, *, experiment: str = "chimera") -> None:
        self._experiment = experiment
        self._client: Any = None
        self._id = ""
        self._pending: list[Any] = []
        self._sent_s = 0.0
        self._texts = RoundTexts()

    def begin(self, run: Tracked) -> str:
        """Create or continue a run, and record the settings as parameters."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if run.known is not None:
            self._id = run.known
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        self._parameters(run.settings)
        return self._id

    def log(self, values: Mapping[str, float], round_: int, seconds: float) -> None:  # noqa: ARG002 - metrics have times
        """Record metrics, at once or with those of the following rows."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        self._pending += [Metric(name, value, now_ms, round_) for name, value in values.items()]
        if len(self._pending) >= _METRICS_AT_ONCE or time.monotonic() >= self._sent_s + _WAIT_S:
            self._send()

    def event(self, text: str, round_: int) -> None:
        """Record the event in the tag of its round."""
        texts = self._texts.added(text, round_)
        self._client.set_tag(self._id, f"event.round_{round_}", texts[:_MAX_TAG_CHARACTERS])

    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:
        """Record final figures and files, and end the run."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        self._send()
        self._client.log_batch(self._id, metrics=[Metric(f"final/{k}", v, now_ms, 0) for k, v in summary.items()])
        for path in files.values():
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")

    def _send(self) -> None:
        if self._pending:
            self._client.log_batch(self._id, metrics=self._pending)
        self._pending, self._sent_s = [], time.monotonic()

    def _parameters(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:500]) for key, value in settings.items()]
        for start in range(0, len(params), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=params[start : start + _PARAMETERS_AT_ONCE])
