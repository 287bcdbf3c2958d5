"""Byzantine workers, for experiments with robust aggregation (attacks of Blanchard et al. 2017, Yin et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from chimera.core.device import copy_of, copy_to
from chimera.core.parameters import Flat
from chimera.training.worker.gradients import Gradients

Kind: TypeAlias = Literal["sign flip", "noise", "label flip"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Attack:
    """The attack of a Byzantine worker in each round.

    Attributes
    ----------
    kind : ``sign flip``: the worker sends its vector times minus ``scale``. ``noise``: it sends normal noise with standard
        deviation ``scale``. ``label flip``: it trains on its rows with label y of c classes replaced by c - 1 - y.
    scale : see ``kind``; not used for label flips.
    """

    kind: Kind
    scale: float = 1.0

    @property
    def in_messages(self) -> bool:
        """Whether the attack falsifies messages, not training data."""
        return self.kind != "label flip"

    def falsify(self, vector: Flat, seed: list[int]) -> None:
        """Falsify a gradient or a change, shape (P,), in place. Equal seeds give equal noise."""
        if self.kind == "sign flip":
            vector *= np.float32(-self.scale)
        elif self.kind == "noise":
            noise = np.random.default_rng(seed).standard_normal(len(vector), np.float32)
            with np.errstate(over="ignore"):  # the sender checks it
                noise *= np.float32(self.scale)
            copy_to(noise, vector)


class Attacker:
    """The part of a `Learner` that attacks after `attack` was called. Until then the worker is honest."""

    _rank: int
    _seed: int
    _gradients: Gradients
    _attack: Attack | None = None

    def attack(self, kind: Kind, scale: float) -> None:
        """Attack from now on, see `Attack`."""
        self._attack = Attack(kind, scale)
        self._gradients.flips_labels = kind == "label flip"
        self._gradients.forget_ahead()

    def _falsify(self, vector: Any, step: int) -> None:
        """Falsify a vector before it is sent, in place, if the worker attacks."""
        if self._attack is not None:
            self._attack.falsify(vector, [*b"noise", self._seed, self._rank, step])

    def _falsified_weights(self, begun: Any, reached: Any, step: int) -> None:
        """Falsify the change from weights ``begun`` to ``reached``, in place of ``reached``, if the worker attacks."""
        if self._attack is not None and self._attack.in_messages:
            change = copy_of(reached)
            change -= begun
            self._falsify(change, step)
            reached[:] = begun
            reached += change
