"""The guarantee of a private run: epsilon so far, and its conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chimera.privacy.accountant import Accountant
from chimera.training.messages.rejection import Applied
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import OUTSIDE

SEEDED = "no guarantee (seeded noise)"
"""Reported in place of epsilon if a reader of the experiment file can compute the noise."""


class Guarantee:
    """Accounts for the noisy sums that a run has released. A released sum counts even if its round is repeated or lost.

    Parameters
    ----------
    privacy : privacy settings; without settings or noise there is no epsilon.
    """

    def __init__(self, privacy: Privacy | None) -> None:
        self._privacy, self._accountant = privacy, Accountant()

    def count(self, values: Sequence[Any]) -> None:
        """Count a round by the values of `Round.done`. All shards are pieces of one sum."""
        if self._privacy is None or self._privacy.secure_aggregation:
            return
        mechanisms = [value.mechanism for value in values if isinstance(value, Applied) and value.mechanism is not None]
        if mechanisms:
            self._accountant.count(*mechanisms[0])

    def count_released_sums(self, sums: list[tuple[float, float]]) -> None:
        """Count the sums that survivors unmasked, and empty the list. Servers may have read them already."""
        for noise, share in sums:
            self._accountant.count(noise, share)
        sums.clear()

    def measures(self) -> dict[str, float]:
        """Return epsilon as a metric; an empty dictionary if there is none."""
        if self._privacy is None or self._privacy.noise == 0 or self._privacy.noise_seed == "run":
            return {}
        return {"epsilon": self._accountant.epsilon(self._privacy.delta, sampled=False)}

    def instead(self) -> dict[str, str]:
        """Return the text that replaces epsilon if the noise is derived from the run's seed."""
        seeded = self._privacy is not None and self._privacy.noise > 0 and self._privacy.noise_seed == "run"
        return {"epsilon": SEEDED} if seeded else {}

    def figures(self) -> Mapping[str, Any]:
        """Return the entries of the run's summary: epsilon, delta, the guarantee, its exceptions, and the settings."""
        privacy = self._privacy
        if privacy is None:
            return {}
        reported: dict[str, Any] = {**self.measures(), **self.instead()}
        about: dict[str, Any] = {"outside": list(OUTSIDE), **asdict(privacy)}
        if not reported:
            guarantee = "no noise, and so no epsilon"
        elif self.instead():
            guarantee = SEEDED
        else:
            guarantee = f"epsilon {reported['epsilon']:.3g} at delta {privacy.delta:g}"
            if any(rate < 1 for _, rate, _ in self._accountant.history):
                about["epsilon_sampled"] = self._accountant.epsilon(privacy.delta)
                guarantee += f" ({about['epsilon_sampled']:.3g} if clients were drawn in secret, by Poisson sampling)"
            if not (privacy.secure_aggregation and privacy.on == "clients"):
                guarantee += ", but not against the servers"
        if privacy.secure_aggregation:
            guarantee += f"; {COLLUSION}"
        noisy = {"delta": privacy.delta} if reported else {}
        return {**reported, **noisy, "privacy": {"guarantee": guarantee, **about}}

    def state(self) -> dict[str, Any]:
        """Return the state of the accountant."""
        return {"history": self._accountant.history}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._accountant = Accountant(state.get("history", ()))


COLLUSION = (
    "with threshold t of n clients, masks hold while fewer than t clients work with the servers, "
    "or fewer than 2t - n if the servers lie about survivors"
)
"""Both bounds of secure aggregation."""
