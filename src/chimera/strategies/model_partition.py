"""Cuts of a model over workers, for strategies in which each worker holds a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class ModelPartition:
    """The cuts of a model over workers.

    Attributes
    ----------
    stages : number of parts of successive layers; default 1.
    slices : number of slices of the layers of a stage, as far as layers can be cut; default 1. Worker r holds slice
        r modulo ``slices`` of stage r // ``slices`` modulo ``stages``, and reads the data of pipeline r // ``readers``.
    micro_batches : number of pieces of a batch; default 1.
    balance : what is spread evenly over the stages, ``parameters`` (default) or ``time``; ignored if ``cuts`` is given.
    cuts : numbers of the layers before which the model is cut.
    recompute : whether activations are computed again in the backward pass; default False.
    """

    stages: int = 1
    slices: int = 1
    micro_batches: int = 1
    balance: Literal["parameters", "time"] = "parameters"
    cuts: tuple[int, ...] | None = None
    recompute: bool = False

    @property
    def readers(self) -> int:
        """The number of successive workers that read the same data."""
        return self.stages * self.slices


@dataclass(frozen=True)
class SplitPartition:
    """The split of a model between clients with the data and one server.

    Attributes
    ----------
    cut : number of the layer before which the model is cut. Earlier layers are on each worker, the others on the server.
    head : number of the first later layer that is on the workers again. All layers after it and the loss are there, too. If
        None, labels go to the server.
    """

    cut: int
    head: int | None = None
    readers: ClassVar[int] = 1
