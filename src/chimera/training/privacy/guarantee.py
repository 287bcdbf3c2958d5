"""What a private run guarantees so far, and on what terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chimera.privacy.accountant import Accountant
from chimera.training.privacy.settings import Privacy
from chimera.training.rejection import Applied


class Guarantee:
    """Counts the rounds of a run whose sums had noise. What was let out is never taken back, whatever becomes of the round.

    Parameters
    ----------
    privacy : what the run promises; with nothing, or without noise, there is no epsilon to tell.
    """

    def __init__(self, privacy: Privacy | None) -> None:
        self._privacy, self._accountant = privacy, Accountant()

    def count(self, told: Sequence[Any]) -> None:
        """Count a round by the values of `Round.done`: all its shards are pieces of one sum."""
        mechanisms = [value.mechanism for value in told if isinstance(value, Applied) and value.mechanism is not None]
        if mechanisms:
            self._accountant.count(*mechanisms[0])

    def measures(self) -> dict[str, float]:
        """Return epsilon, as a measure beside loss and metrics."""
        if self._privacy is None or self._privacy.noise == 0:
            return {}
        return {"epsilon": self._accountant.epsilon(self._privacy.delta)}

    def figures(self) -> Mapping[str, Any]:
        """Return what the summary of the run says: epsilon and delta, what was promised, and what epsilon takes for granted."""
        if self._privacy is None:
            return {}
        told: dict[str, Any] = {**self.measures(), "delta": self._privacy.delta} if self._privacy.noise else {}
        if not told:
            return {"privacy": {"guarantee": "no noise, and so no epsilon", **asdict(self._privacy)}}
        unsampled = self._accountant.epsilon(self._privacy.delta, sampled=False)
        said = f"epsilon {told['epsilon']:.3g} at delta {self._privacy.delta:g}"
        if any(rate < 1 for _, rate, _ in self._accountant.history):
            poisson = "by Poisson sampling, though they are drawn without replacement"
            said += f" if nobody knows who takes part ({poisson}), {unsampled:.3g} if somebody does"
        if not (self._privacy.secure_aggregation and self._privacy.on == "clients"):
            said += ", but not against the servers"
        if self._privacy.noise_seed == "run":
            said += "; the noise follows from the seed"
        return {**told, "privacy": {"guarantee": said, "epsilon_unsampled": unsampled, **asdict(self._privacy)}}

    def state(self) -> dict[str, Any]:
        """Return what was counted."""
        return {"history": self._accountant.history}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._accountant = Accountant(state.get("history", ()))
