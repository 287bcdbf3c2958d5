"""A callback that ends a run by an error of the user's."""

from __future__ import annotations

import chimera


class KilledError(Exception):
    """The error of `Kill`."""


class Kill(chimera.Callback):
    """Ends a run when a number of rounds is reached, after the checkpoints of these rounds."""

    def __init__(self, rounds: int = 5) -> None:
        self.rounds = rounds

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds >= self.rounds:
            raise KilledError
