"""The model's protocol: flat parameters in, a flat gradient and a loss out (docs/architecture.md, section 5)."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from chimera.core.parameters import Flat, Layout
from chimera.core.registry import Registry

Batch: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Inputs, shape (n, ...), and targets, shape (n,) or (n, k): NumPy arrays, possibly read-only."""

Task: TypeAlias = Literal["classification", "regression"]
"""What a model is to learn: classes 0 to k - 1, or real values."""


class Model(Protocol):
    """Anything that learns by gradients.

    One that computes on a device may have a method ``near``, which returns an object with `parameters` and `gradient` whose
    vectors are tensors there (see `chimera.models.on_device`).

    One whose gradient is 0 in most rows may have a method ``descend(batch, learning_rate)``: it takes one step of plain SGD in
    place, ``parameters -= learning_rate * gradient``, touching only these rows, and returns the mean loss. An option of such a
    model may say that it learns the samples of a batch one after another instead.

    One whose batches need few rows of large tensors (an embedding) may have two methods more, so that workers pull and push
    only these. A row is what an index on the first axis selects; a tensor of one dimension has rows of one element. ::

        def rows(self, batch) -> dict[str, array]
        def row_gradient(self, batch) -> tuple[dict[str, tuple[array, array]], float]

    ``rows`` names, by tensor, the rows that `gradient` would read or write for this batch: int64, ascending, each once; a
    tensor that is not named needs none. ``row_gradient`` returns what `gradient` does, by tensor: numbers of rows, among those
    that ``rows`` named, and their values, float32, shape (k, ...), which the next call may overwrite; all other rows are zero.
    It reads no parameters of other rows: those need not be up to date. What is random (negative samples) all three draw
    in the same way after the same `reseed`, so that they speak of the same rows.
    """

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters in the flat vector."""

    def parameters(self) -> Flat:
        """Return the live vector of all parameters, float32, shape (P,): a view, which `load` and steps change."""

    def load(self, flat: Flat) -> None:
        """Set all parameters from ``flat``, shape (P,), which may be read-only and is not kept."""

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the mean gradient over the batch, a view that the next call overwrites, and the mean loss."""

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the mean ``loss`` and the metrics over a whole data set."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return one prediction a row: class indices for a classifier, values for a regressor."""

    def reseed(self, seed: int) -> None:
        """Set what randomness in `gradient` (dropout, say) draws from."""

    def buffers(self) -> Flat:
        """Return a copy of what the model carries besides parameters (running means, say), as one vector; maybe empty."""

    def load_buffers(self, flat: Flat) -> None:
        """Set the buffers from one vector."""


MODELS: Registry[Any] = Registry("model", "chimera.models")
"""Factories by name. They return anything that `chimera.models.conversion.as_model` makes a `Model` of.

A factory that names ``input_shape``, ``outputs``, ``task``, ``counts`` (how often each class occurs, where the data say so) or
``seed`` among its parameters is given them, unless the user did.
"""
