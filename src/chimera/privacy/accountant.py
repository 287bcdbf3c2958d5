"""The guarantee of a run's noise: epsilon by Rényi differential privacy (Mironov 2017), as opacus computes it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from chimera.core.errors import MissingExtraError

_ORDERS = np.array([1 + tenth / 10 for tenth in range(1, 100)] + list(range(12, 64)))  # those of opacus


class Accountant:
    """An accountant of rounds of the subsampled Gaussian mechanism (Mironov, Talwar and Zhang 2019).

    Opacus assumes Poisson sampling: each client participates in a round with the same probability, independently of the others.
    Neighbouring data sets differ by one client that only one of them has.

    Parameters
    ----------
    history : the history of another accountant, to continue from.

    Attributes
    ----------
    history : rows of [noise multiplier, sample rate, rounds], one for each sequence of equal rounds.
    """

    def __init__(self, history: Iterable[Sequence[float]] = ()) -> None:
        self.history = [[float(noise), float(rate), int(rounds)] for noise, rate, rounds in history]

    def count(self, noise: float, sample_rate: float, rounds: int = 1) -> None:
        """Count rounds with noise. ``noise`` is its standard deviation divided by the largest norm of a client's update."""
        if self.history and self.history[-1][:2] == [noise, sample_rate]:
            self.history[-1][2] += rounds
        else:
            self.history.append([noise, sample_rate, rounds])

    def epsilon(self, delta: float, *, sampled: bool = True) -> float:
        """Return epsilon of all rounds together at this delta; infinite if a round had no noise, 0 before the first round.

        Parameters
        ----------
        sampled : whether the participants are assumed to be secret. If not, all rounds count as if all clients participated.

        Raises
        ------
        MissingExtraError : opacus, which a sampling rate below 1 needs, is not installed.
        """
        merged: dict[tuple[float, float], int] = {}
        for noise, rate, rounds in self.history:
            key = noise, rate if sampled else 1.0
            merged[key] = merged.get(key, 0) + int(rounds)
        if not merged:
            return 0.0
        if any(noise == 0 for noise, _ in merged):
            return math.inf
        if all(rate == 1 for _, rate in merged):
            return _unsampled({noise: rounds for (noise, _), rounds in merged.items()}, delta)
        try:
            from opacus.accountants import RDPAccountant
        except ImportError as error:
            raise MissingExtraError("epsilon", "opacus", "privacy") from error
        accountant = RDPAccountant()
        accountant.history = [(noise, rate, rounds) for (noise, rate), rounds in merged.items()]
        with (
            warnings.catch_warnings()
        ):  # the warning says that other orders might be tighter; the bound holds at any order
            warnings.filterwarnings("ignore", "Optimal order is")
            return float(accountant.get_epsilon(delta))


def _unsampled(rounds: Mapping[float, int], delta: float) -> float:
    """Return epsilon of rounds without sampling, by noise multiplier, as opacus does, whose import takes seconds.

    The Rényi divergence of order a is then a / (2 noise^2) a round. Epsilon follows by theorem 21 of Balle et al. 2020,
    "Hypothesis Testing Interpretations and Renyi Differential Privacy".
    """
    with np.errstate(over="ignore", divide="ignore"):
        slope = sum(count / (2 * np.float64(noise) ** 2) for noise, count in rounds.items())
        bounds = _ORDERS * slope - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1) + np.log1p(-1 / _ORDERS)
    return float(bounds.min())
