"""Weights & Biases: runs of its server, or offline in the folder of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.training.tracking.logged_run import LoggedRun
from chimera.training.tracking.tracker import TRACKERS, Tracked


@TRACKERS.register("wandb", requires="wandb", extra="track")
class WeightsAndBiases(LoggedRun):
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` is set; ``wandb sync`` uploads an offline run.

    Parameters
    ----------
    project : name of the project; default: ``chimera``.
    """

    def begin(self, run: Tracked) -> str:
        """Create or continue a run with the settings as its configuration."""
        import os

        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            id=run.known,
            resume="allow" if run.known else None,
            dir=str(run.folder),
            config=dict(run.settings),
            mode=mode,
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
            ),
        )
        return str(self._run.id)

    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:
        """Record final figures and files, and end the run."""
        import wandb

        self._run.summary.update({f"final/{name}": value for name, value in summary.items()})
        if files:
            artifact = wandb.Artifact(f"run-{self._run.id}", "chimera-run")
            for name, path in files.items():
                artifact.add_file(str(path), name)
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if finished else 1)
