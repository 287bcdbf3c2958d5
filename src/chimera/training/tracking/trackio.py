"""Trackio: local runs, shown by ``trackio show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.training.tracking.tracker import TRACKERS, Tracked, Tracker


@TRACKERS.register("trackio", requires="trackio", extra="track")
class Trackio(Tracker):
    """A run of Trackio in its local folder, ``TRACKIO_DIR``: show it by ``trackio show``.

    Parameters
    ----------
    project : name of the project; default: ``chimera``.
    """

    def __init__(self, *, project: str = "chimera") -> None:
        self._project = project
        self._run: Any = None

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

    def log(self, values: Mapping[str, float], round_: int, seconds: float) -> None:  # noqa: ARG002 - among the values
        """Record values."""
        self._run.log(dict(values), step=round_)

    def event(self, text: str, round_: int) -> None:
        """Record the event as a text of its round."""
        self._run.log({"event": text}, step=round_)

    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:  # noqa: ARG002
        """Record final figures, and end the run. Trackio keeps no files."""
        if summary:
            self._run.log({f"final/{name}": value for name, value in summary.items()})
        self._run.finish()
