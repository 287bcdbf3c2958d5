"""What a private run guarantees so far, and on what terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chimera.privacy.accountant import Accountant
from chimera.training.messages.rejection import Applied
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import OUTSIDE

SEEDED = "no guarantee (seeded noise)"
"""What stands in epsilon's place where a reader of the experiment file can compute the noise."""


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
        if self._privacy is None or self._privacy.secure_aggregation:
            return
        mechanisms = [value.mechanism for value in told if isinstance(value, Applied) and value.mechanism is not None]
        if mechanisms:
            self._accountant.count(*mechanisms[0])

    def count_released_sums(self, sums: list[tuple[float, float]]) -> None:
        """Count the sums that survivors took the masks from, and empty the list: servers may have read them already."""
        for noise, share in sums:
            self._accountant.count(noise, share)
        sums.clear()

    def measures(self) -> dict[str, float]:
        """Return epsilon, as a measure beside loss and metrics; nothing where there is none."""
        if self._privacy is None or self._privacy.noise == 0 or self._privacy.noise_seed == "run":
            return {}
        return {"epsilon": self._accountant.epsilon(self._privacy.delta, sampled=False)}

    def instead(self) -> dict[str, str]:
        """Return the text that replaces epsilon if the noise is derived from the run's seed."""
        seeded = self._privacy is not None and self._privacy.noise > 0 and self._privacy.noise_seed == "run"
        return {"epsilon": SEEDED} if seeded else {}

    def figures(self) -> Mapping[str, Any]:
        """Return what the summary of the run says: epsilon and delta, what was promised, and what is outside of that."""
        privacy = self._privacy
        if privacy is None:
            return {}
        told: dict[str, Any] = {**self.measures(), **self.instead()}
        about: dict[str, Any] = {"outside": list(OUTSIDE), **asdict(privacy)}
        if not told:
            said = "no noise, and so no epsilon"
        elif self.instead():
            said = SEEDED
        else:
            said = f"epsilon {told['epsilon']:.3g} at delta {privacy.delta:g}"
            if any(rate < 1 for _, rate, _ in self._accountant.history):
                about["epsilon_sampled"] = self._accountant.epsilon(privacy.delta)
                said += f" ({about['epsilon_sampled']:.3g} if clients were drawn in secret, by Poisson sampling)"
            if not (privacy.secure_aggregation and privacy.on == "clients"):
                said += ", but not against the servers"
        if privacy.secure_aggregation:
            said += f"; {COLLUSION}"
        noisy = {"delta": privacy.delta} if told else {}
        return {**told, **noisy, "privacy": {"guarantee": said, **about}}

    def state(self) -> dict[str, Any]:
        """Return what was counted."""
        return {"history": self._accountant.history}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._accountant = Accountant(state.get("history", ()))


COLLUSION = (
    "with threshold t of n clients, masks hold while fewer than t clients work with the servers, "
    "or fewer than 2t - n if the servers lie about survivors"
)
"""Both bounds of secure aggregation."""
