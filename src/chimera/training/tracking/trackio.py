"""Trackio: local runs, shown by ``trackio show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chimera.training.tracking.logged_run import LoggedRun
from chimera.training.tracking.tracker import TRACKERS, Tracked


@TRACKERS.register("trackio", requires="trackio", extra="track")
class Trackio(LoggedRun):
    """A run of Trackio in its local folder, ``TRACKIO_DIR``: show it by ``trackio show``.

    Parameters
    ----------
    project : name of the project; default: ``chimera``.
    """

    def begin(self, run: Tracked) -> str:
        """Create or continue a run with the settings as its configuration."""
        import trackio

        name = run.known or run.name
        self._run = trackio.init(
            project=self._project,
            name=name,
            config=dict(run.settings),
            resume="allow" if run.known else "never",
            embed=False,
        )
        return str(self._run.name)

    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:  # noqa: ARG002
        """Record final figures, and end the run. Trackio keeps no files."""
        if summary:
            self._run.log({f"final/{name}": value for name, value in summary.items()})
        self._run.finish()
