"""How a model is cut over workers, for strategies in which each holds but a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Parts:
    """How a model is cut over workers, of which each holds a part.

    Attributes
    ----------
    stages : into how many parts of successive layers.
    slices : into how many slices the layers of a stage are cut, as far as they can be. Worker r holds slice r modulo ``slices``
        of stage r // ``slices`` modulo ``stages``, and reads the data of pipeline r // ``readers``.
    micro_batches : into how many pieces a batch is cut.
    balance : what is spread evenly over the parts, ``parameters`` or ``time``, unless ``cuts`` says before which layers.
    recompute : whether activations are computed again on the way back.
    """

    stages: int = 1
    slices: int = 1
    micro_batches: int = 1
    balance: Literal["parameters", "time"] = "parameters"
    cuts: tuple[int, ...] | None = None
    recompute: bool = False

    @property
    def readers(self) -> int:
        """How many workers, one after another, read the same data."""
        return self.stages * self.slices


@dataclass(frozen=True)
class Halves:
    """How a model is cut between workers, who have the data, and one server.

    Attributes
    ----------
    cut : before which layer; those before it are each worker's, the others the server's.
    head : from which layer on they are the workers' again, with the loss; if not given, labels go to the server.
    """

    cut: int
    head: int | None = None
    readers: ClassVar[int] = 1
