"""The mean gradient of a group, computed with collectives in the form that the codec defines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.codecs.reduction import Reduction
from chimera.core.call import coded
from chimera.core.device import copy_of, copy_to
from chimera.core.engine import Group
from chimera.core.errors import NonFiniteError
from chimera.core.parameters import Flat, all_finite
from chimera.models.model import Model
from chimera.training.messages.rejection import ADVICE, Rejected, fault
from chimera.training.messages.tally import Tally
from chimera.training.worker.gradients import Gradients
from chimera.training.worker.participation import Participation


class GroupGradient:
    """The part of a `Learner` that computes mean gradients with collectives."""

    _model: Model
    _replica: Any  # the model's vectors where it computes
    _step: int
    _seed: int
    _codec: tuple[str, Mapping[str, Any]]
    _tally: Tally
    _gradients: Gradients
    _reduction: Reduction | None
    _kept: Sequence[Mapping[str, Any]]
    _kept_shared: Mapping[str, Any]
    _own: Flat | None

    def _count(self, loss: float) -> None:
        raise NotImplementedError

    def _own_reduction(self) -> Reduction:
        if self._reduction is None:
            name, options = self._codec
            self._reduction = CODECS.reduction(name, options, seed=self._seed)
            self._reduction.restore_shared(self._kept_shared)
            for kept in self._kept[:1]:
                self._reduction.restore(kept)
        return self._reduction

    def _mean_gradient(self, group: Group) -> tuple[Flat, Rejected | None]:
        """Return the mean gradient of the group, and the rejection of the worker's own gradient, if it is not in the mean.

        Workers do not check their own gradients first, which would need a collective more: if the mean is not finite, all
        workers see the same mean.
        """
        reduction, part = self._own_reduction(), Participation(group, self._tally)
        model = self._replica if group.size == 1 and reduction.on_device else self._model  # collectives are on the host
        buffers = self._gradients.buffers()
        gradient, loss = self._gradients.computed(model, self._step)
        if self._own is not None:
            copy_to(gradient, self._own)
        if not math.isfinite(loss):
            gradient[0] = np.nan  # so that the mean is not finite on any worker
        if self._codec[0] != "identity":  # identity takes no modelled time
            coded(self._codec[0], "reduce", len(gradient))
        mean = reduction.all_reduce(gradient, self._model.layout, part.mean)
        if all_finite(mean):
            self._count(loss)
            return self._reduced(mean), None
        if self._own is None:  # the collective has overwritten it; compute it again from the same batch and seed
            self._gradients.restore(buffers)
            gradient, loss = self._gradients.computed(model, self._step, again=True)
            self._own = copy_of(gradient)
        else:
            copy_to(self._own, gradient)
        rejected = self._gradients.verdict(gradient, loss, self._step, buffers)
        if not part.only_if(rejected is None):
            raise NonFiniteError(f"{rejected}, and there is no other gradient: {ADVICE}")
        if rejected is not None:
            gradient[:] = 0
        mean = reduction.all_reduce(gradient, self._model.layout, part.mean)
        if reason := fault(mean, "the sum of all gradients"):
            raise NonFiniteError(f"step {self._step}: {reason}: {ADVICE}")
        return self._reduced(mean, rejected is None), rejected

    def _reduced(self, mean: Flat, participated: bool = True) -> Flat:
        """Commit a mean with which the next step is taken; return it."""
        self._own_reduction().commit(participated)
        self._tally.reduced(mean)
        return mean
