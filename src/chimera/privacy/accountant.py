"""What a run's noise guarantees: epsilon by Rényi differential privacy (Mironov 2017), as opacus accounts for it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence

from chimera.core.errors import MissingExtraError


class Accountant:
    """Counts rounds of the subsampled Gaussian mechanism (Mironov, Talwar and Zhang 2019).

    Opacus takes for granted that each client takes part in a round with the same probability, independently of the others
    (Poisson sampling), and that two data sets are neighbours where one has a client more than the other.

    Parameters
    ----------
    history : of another accountant, to go on from.

    Attributes
    ----------
    history : [noise multiplier, sample rate, rounds], a row for each stretch of rounds alike.
    """

    def __init__(self, history: Iterable[Sequence[float]] = ()) -> None:
        self.history = [[float(noise), float(rate), int(rounds)] for noise, rate, rounds in history]

    def count(self, noise: float, sample_rate: float, rounds: int = 1) -> None:
        """Count rounds whose sum had noise of ``noise`` times the norm that a client's update has at most."""
        if self.history and self.history[-1][:2] == [noise, sample_rate]:
            self.history[-1][2] += rounds
        else:
            self.history.append([noise, sample_rate, rounds])

    def epsilon(self, delta: float, *, sampled: bool = True) -> float:
        """Return epsilon of all rounds together at this delta; infinite where a round had no noise, 0 before the first.

        Parameters
        ----------
        sampled : whether it is taken to be unknown who took part; if not, all rounds count as if all clients did.

        Raises
        ------
        MissingExtraError : opacus is not installed.
        """
        merged: dict[tuple[float, float], int] = {}
        for noise, rate, rounds in self.history:
            key = noise, rate if sampled else 1.0
            merged[key] = merged.get(key, 0) + int(rounds)
        if not merged:
            return 0.0
        if any(noise == 0 for noise, _ in merged):
            return math.inf
        try:
            from opacus.accountants import RDPAccountant
        except ImportError as error:
            raise MissingExtraError("epsilon", "opacus", "privacy") from error
        accountant = RDPAccountant()
        accountant.history = [(noise, rate, rounds) for (noise, rate), rounds in merged.items()]
        with (
            warnings.catch_warnings()
        ):  # the bound holds at any order of Rényi's; it says that a finer one might be tighter
            warnings.filterwarnings("ignore", "Optimal order is")
            return float(accountant.get_epsilon(delta))
