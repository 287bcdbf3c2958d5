"""One model object that many workers of a process use in turn, so that they do not need a copy each."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.core.parameters import Flat, Layout
from chimera.models.model import Model

_keys = itertools.count()
_shared: weakref.WeakValueDictionary[str, SharedInstance] = weakref.WeakValueDictionary()


class SharedInstance:
    """A model object and its current user. Unpickling it in this process gives the object itself.

    Parameters
    ----------
    model : the object. No other code may use it.

    Attributes
    ----------
    user : the `SharedModel` whose state the object holds now.
    common : dictionary that all users share.
    """

    immutable = True  # engines do not copy it for each receiver

    def __init__(self, model: Model) -> None:
        self.model, self.initial_buffers = model, model.buffers()
        self.user: SharedModel | None = None
        self.common: dict[Any, Any] = {}
        self.key = f"{os.getpid()}-{next(_keys)}"
        _shared[self.key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _instance_of, (self.key,)


class SharedModel:
    """A `Model` of one worker that uses the shared object during a call. Each call must begin by setting all parameters.

    Between calls it keeps its buffers only; the parameters are those that the last user of the object left. Unpickling it in
    this process creates another user of the same object.

    Parameters
    ----------
    shared : the shared object.
    """

    __slots__ = ("_buffers", "_model", "_shared")

    def __init__(self, shared: SharedInstance) -> None:
        self._shared, self._model = shared, shared.model
        self._buffers = shared.initial_buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedModel, (self._shared,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def layout(self) -> Layout:
        """See `Model`, here and below."""
        return self._model.layout

    @property
    def common(self) -> dict[Any, Any]:
        """Return the dictionary that all users of the object share."""
        return self._shared.common

    def device_view(self) -> SharedModel:
        """Return this model: it computes on the host."""
        return self

    def parameters(self) -> Flat:
        """Return the live vector."""
        if self._shared.user is not self:
            self._acquire()
        return self._model.parameters()

    def load(self, flat: Flat) -> None:
        """Set all parameters."""
        if self._shared.user is not self:
            self._acquire()
        self._model.load(flat)

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the mean gradient and the mean loss."""
        if self._shared.user is not self:
            self._acquire()
        return self._model.gradient(batch)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return loss and metrics."""
        if self._shared.user is not self:
            self._acquire()
        return self._model.evaluate(batch)

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return one prediction for each row."""
        if self._shared.user is not self:
            self._acquire()
        return self._model.predict(inputs)

    def reseed(self, seed: int) -> None:
        """Seed the random numbers."""
        self._model.reseed(seed)

    def buffers(self) -> Flat:
        """Return a copy of this user's buffers."""
        return self._model.buffers() if self._shared.user is self else self._buffers.copy()

    def load_buffers(self, flat: Flat) -> None:
        """Set this user's buffers."""
        if self._shared.user is self:
            self._model.load_buffers(flat)
        else:
            self._buffers = flat.copy()

    def _acquire(self) -> None:
        """Make this the current user: save the buffers of the previous user and load those of this one."""
        shared = self._shared
        if shared.initial_buffers.size:
            if shared.user is not None:
                shared.user._buffers = self._model.buffers()
            self._model.load_buffers(self._buffers)
        shared.user = self


def _instance_of(key: str) -> SharedInstance:
    return _shared[key]
