"""Workers that harm, for experiments with servers that withstand it (attacks of Blanchard et al. 2017, Yin et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from chimera.core.device import copy_of, put
from chimera.core.parameters import Flat
from chimera.training.worker.gradients import Gradients

Kind: TypeAlias = Literal["sign flip", "noise", "label flip"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Attack:
    """What an attacker does in each round.

    Attributes
    ----------
    kind : ``sign flip``: it sends minus ``scale`` times what it should; ``noise``: in its place, normal noise of that standard
        deviation; ``label flip``: it learns from its own rows with class y of c called c - 1 - y, and sends what it has learnt.
    scale : see there; it says nothing where labels are flipped.
    """

    kind: Kind
    scale: float = 1.0

    @property
    def in_messages(self) -> bool:
        """Whether it falsifies what is sent, and not what is learnt from."""
        return self.kind != "label flip"

    def falsify(self, vector: Flat, seed: list[int]) -> None:
        """Make of a gradient or a change, shape (P,), what is sent in its place; equal seeds make equal noise."""
        if self.kind == "sign flip":
            vector *= np.float32(-self.scale)
        elif self.kind == "noise":
            noise = np.random.default_rng(seed).standard_normal(len(vector), np.float32)
            with np.errstate(over="ignore"):  # whoever sends it looks at it
                noise *= np.float32(self.scale)
            put(noise, vector)


class Attacker:
    """The part of a `Learner` that lets it be one; until somebody says so, it is honest."""

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
        """Make of a vector that is to be sent what is sent in its place, if it attacks."""
        if self._attack is not None:
            self._attack.falsify(vector, [*b"noise", self._seed, self._rank, step])

    def _pretend(self, begun: Any, reached: Any, step: int) -> None:
        """Make of the weights that were reached from others those that show a falsified change, if it attacks so."""
        if self._attack is not None and self._attack.in_messages:
            change = copy_of(reached)
            change -= begun
            self._falsify(change, step)
            reached[:] = begun
            reached += change
