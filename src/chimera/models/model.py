"""The model's protocol: from flat parameters to a flat gradient and a loss (docs/architecture.md, section 5)."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.core.parameters import Flat, Layout
from chimera.core.registry import Registry

Task: TypeAlias = Literal["classification", "regression"]
"""What a model predicts: classes 0 to k - 1, or real values."""


class Model(Protocol):
    """A model that is trained by gradients.

    A batch is any nesting of tuples, lists, mappings and dataclasses with arrays or tensors at its leaves, see
    `chimera.core.batch`. Most batches are ``(inputs, targets)``: NumPy arrays, possibly read-only, shapes (n, ...) and (n,) or
    (n, k).

    A model that computes on a device may have a method ``device_view``. It returns an object with `parameters` and `gradient`
    whose vectors are tensors on that device (see `chimera.models.device_view`).

    A model whose gradient is zero in most rows may have a method ``descend(batch, learning_rate)``. It takes one step
    of plain SGD in place, ``parameters -= learning_rate * gradient``, in the rows whose gradient is not zero, and
    returns the mean loss. An option of such a model may make it update after each sample of a batch instead.

    A model whose batches need few rows of large tensors (an embedding) may have two more methods, so that workers pull and
    push only these rows. A row is the part that an index on the first axis selects; rows of a 1-D tensor have one element. ::

        def rows(self, batch) -> dict[str, array]
        def row_gradient(self, batch) -> tuple[dict[str, tuple[array, array]], float]

    ``rows`` returns, by tensor, the numbers of the rows that `gradient` would read or write for this batch: int64, ascending,
    unique. Tensors that are missing need no rows. ``row_gradient`` returns the mean loss and, by tensor, row numbers (a subset
    of ``rows``) and their gradients, float32, shape (k, ...), which the next call may overwrite. All other rows are zero. It
    reads no parameters of rows that ``rows`` did not return: those may be stale. After the same `reseed`, all three methods
    draw the same random numbers (such as negative samples), so that they use the same rows.

    A model may also have a method ``own_optimizer(length)``, whose `OwnOptimizer` steps unless the user sets another
    one. A method ``locate(position)`` receives the `Position` of the next gradient before it is computed. An attribute
    ``notice`` is a line that the run shows at its start. A method ``work_of(batch)`` returns the `BatchWork` of a
    training step, or None; with it, the run shows tokens per second. A model with this method may have another one,
    ``peak_flops()``: the peak of its device in FLOPs per second, None if not known. Each of these five attributes may
    be None.
    """

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters in the flat vector."""

    def parameters(self) -> Flat:
        """Return the live vector of all parameters, float32, shape (P,): a view that `load` and steps change."""

    def load(self, flat: Flat) -> None:
        """Set all parameters from ``flat``, shape (P,), which may be read-only and is not kept."""

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the mean gradient over the batch, a view that the next call overwrites, and the mean loss."""

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the mean ``loss`` and the metrics over a whole data set, which may read its samples in `pieces_of`."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return one prediction for each row: class indices for a classifier, values for a regressor."""

    def reseed(self, seed: int) -> None:
        """Seed the random numbers that `gradient` draws, such as those of dropout."""

    def buffers(self) -> Flat:
        """Return a copy of the state besides parameters (such as running means) as one vector, possibly empty."""

    def load_buffers(self, flat: Flat) -> None:
        """Set the buffers from one vector."""


MODELS: Registry[Any] = Registry("model", "chimera.models", family="models")
"""Factories by name. They return anything that `chimera.models.conversion.as_model` can convert to a `Model`.

Factories with parameters named ``input_shape``, ``outputs``, ``task``, ``counts`` (number of samples of each class, if known)
or ``seed`` receive these values, unless the user set them. Instead of ``outputs``, ``count_outputs`` receives a function.
"""
