"""Word models that read and update only a few rows of two tables per window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.batch import Batch
from chimera.core.errors import ConfigurationError, DataError
from chimera.core.parameters import Flat, Layout
from chimera.models.word2vec.kernels import kernels
from chimera.models.word2vec.objectives import BatchLoss, Objective, Windows, positions_in

Memory = Callable[[int], Flat]
_CELLS = 1 << 22  # of a table of windows by words, at a time


class WordModel:
    """A `Model` of two tables: vectors of context words, and output vectors of an objective.

    A batch is context words, shape (n, w), -1 where there is none, and the words that they surround, shape (n,).

    Parameters
    ----------
    words : number of words.
    width : w, the largest number of context words of a window.
    dim : dimension of a vector.
    make_objective : factory of the objective; called again in each process that receives the model.
    pairs : False predicts the word from its whole context (CBOW), True from each context word alone (skip-gram).
    order : with ``batch`` `descend` takes a step with the mean gradient, with ``word`` one step per window.
    combiner : divisor of the sum of c context vectors: c (``mean``) or its square root (``sqrtn``).
    all_words : whether `evaluate` also returns the metrics that score all words for each window.
    memory : allocates the memory of parameters and gradient.
    seed : seed of the initial vectors, which are uniform as in word2vec; output vectors start at 0.
    """

    task = "classification"
    buffer_policy = "none"

    def __init__(
        self,
        words: int,
        width: int,
        dim: int,
        make_objective: Callable[[], Objective],
        *,
        pairs: bool,
        order: Literal["batch", "word"],
        combiner: Literal["mean", "sqrtn"],
        all_words: bool = True,
        memory: Memory = call.empty,
        seed: int = 0,
    ) -> None:
        self._words, self._width, self._pairs, self._order = words, width, pairs, order
        self._all_words = all_words
        self._make_objective, self._memory = make_objective, memory
        counts = np.maximum(np.arange(1 + (1 if pairs else width)), 1)
        self._pool_scales = (1 / (counts if combiner == "mean" else np.sqrt(counts))).astype(np.float32)
        self._objective = make_objective()
        self.layout = Layout(("embedding", "output"), ((words, dim), (self._objective.rows(), dim)))
        self._lay_out()
        spread = (
            1 if combiner == "mean" else self._pool_scales[-1]
        ) / dim  # in both cases the pooled vectors are those of word2vec
        rng = np.random.default_rng(seed)
        for begin in range(0, words, 1 << 16):
            rows = self._embedding[begin : begin + (1 << 16)]
            rows[:] = (rng.random(rows.shape, np.float32) - np.float32(0.5)) * np.float32(spread)
        self._output[:] = 0

    def _lay_out(self) -> None:
        self._weights = self._memory(self.layout.size)
        self._embedding, self._output = self.layout.split(self._weights).values()
        self._gradient: Flat | None = None
        # rows where the gradient is not 0
        self._nonzero_rows: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None

    def parameters(self) -> Flat:
        """Return the flat vector of both tables, not a copy."""
        return self._weights

    def load(self, flat: Flat) -> None:
        """Set both tables."""
        np.copyto(self._weights, flat)

    def reseed(self, seed: int) -> None:
        """Restart the sequence of negative samples from ``seed``."""
        self._objective.reseed(seed)

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the mean gradient over the windows of a batch, 0 in all rows that it does not use, and the mean loss.

        Raises
        ------
        DataError : the batch is empty, or its windows are invalid for this vocabulary.
        """
        gradient, tables = self._cleared()
        windows, batch_loss, n = self._batch_loss(batch)
        loss = batch_loss.accumulate(self._embedding, self._output, windows, 1 / n, tables)
        self._nonzero_rows = windows.inputs.reshape(-1), batch_loss.output_rows
        return gradient, loss / n

    def descend(self, batch: Batch, learning_rate: float) -> float:
        """Take one step of plain SGD in place, in the rows that the batch uses, and return the mean loss.

        With the order ``word``, each window is a step with its share of the learning rate.

        Raises
        ------
        DataError : as for `gradient`.
        """
        if self._order == "word":
            windows, batch_loss, n = self._batch_loss(batch)
            own = self._embedding, self._output
            return batch_loss.accumulate(*own, windows, -learning_rate / n, own) / n
        _, loss = self.gradient(batch)
        _, tables = self._gradient_tables()
        kernel, rate = kernels(), np.float32(learning_rate)
        for table, gradient, rows in zip(
            (self._embedding, self._output), tables, self._nonzero_rows or (), strict=True
        ):
            kernel.take_rows(table, gradient, rows, rate)
        self._nonzero_rows = None
        return loss

    def rows(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the rows of each table that `gradient` uses, for workers that pull only these."""
        windows, batch_loss, _ = self._batch_loss(batch)
        return dict(zip(self.layout.names, map(_distinct, (windows.inputs, batch_loss.output_rows)), strict=True))

    def row_gradient(self, batch: Batch) -> tuple[dict[str, tuple[NDArray[np.int64], Flat]], float]:
        """Return the gradient as rows of each table with their values, and the mean loss.

        The gradient is computed in tables of these rows alone, since a gradient of all rows takes as much memory as the
        model.
        """
        windows, batch_loss, n = self._batch_loss(batch)
        inputs, outputs = map(_distinct, (windows.inputs, batch_loss.output_rows))
        tables = self._embedding[inputs], self._output[outputs]
        into = np.zeros_like(tables[0]), np.zeros_like(tables[1])
        windows = windows._replace(inputs=positions_in(inputs, windows.inputs))
        loss = batch_loss.remapped(outputs).accumulate(*tables, windows, 1 / n, into)
        return dict(zip(self.layout.names, zip((inputs, outputs), into, strict=True), strict=True)), loss / n

    def _gradient_tables(self) -> tuple[Flat, tuple[Flat, Flat]]:
        if self._gradient is None:
            self._gradient = self._memory(self.layout.size)
            self._gradient.fill(0)
            self._tables = tuple(self.layout.split(self._gradient).values())
        embedding, output = self._tables
        return self._gradient, (embedding, output)

    def _cleared(self) -> tuple[Flat, tuple[Flat, Flat]]:
        gradient, tables = self._gradient_tables()
        for table, rows in zip(tables, self._nonzero_rows or (), strict=False):
            kernels().clear_rows(table, rows)
        self._nonzero_rows = None
        return gradient, tables

    def _batch_loss(self, batch: Batch) -> tuple[Windows, BatchLoss, int]:
        """Return the windows of a batch, their loss, and their number."""
        windows, words = self._windows(batch)
        return windows, self._objective.batch_loss(words), len(batch[1])

    def _windows(self, batch: Batch) -> tuple[Windows, NDArray[np.int32]]:
        """Return the context words to pool, and the target of each row."""
        inputs, targets = batch
        if not len(targets) or len(inputs) != len(targets):
            raise DataError(f"{len(inputs)} windows and {len(targets)} targets: the numbers must be equal and above 0")
        inputs = self._checked(inputs)
        words = _indices(targets, 0, self._words, "words")
        if not self._pairs:
            return Windows(inputs, self._pool_scales), words
        present = inputs >= 0
        return Windows(inputs[present][:, None], self._pool_scales), np.repeat(words, present.sum(1))

    def _checked(self, inputs: NDArray[Any]) -> NDArray[np.int32]:
        if inputs.ndim != 2 or inputs.shape[1] > self._width:
            raise DataError(f"the model takes up to {self._width} context words per window, not shape {inputs.shape}")
        return _indices(inputs, -1, self._words, "context words")

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the mean ``loss`` over all windows, with fixed negatives, and metrics over all words.

        ``cross-entropy`` is in nats per predicted word; ``accuracy`` is the share of windows whose word is the most probable.

        Raises
        ------
        DataError : as for `gradient`.
        """
        inputs, targets = batch
        loss, entropy, right, pairs = 0.0, 0.0, 0, 0
        for rows in _blocks(len(targets), self._words):
            (contexts, _), words = self._windows((inputs[rows], targets[rows]))
            hidden = self._hidden(contexts)
            loss += float(self._objective.losses(hidden, self._output, words, rows.start).sum(dtype=np.float64))
            if self._all_words:
                logs = self._log_probabilities(hidden)
                entropy -= float(logs[np.arange(words.size), words].sum(dtype=np.float64))
                right += int(np.count_nonzero(self._window_sums(logs, inputs[rows]).argmax(1) == targets[rows]))
                pairs += words.size
        figures = {"loss": loss / len(targets)}
        if self._all_words:
            figures |= {"cross-entropy": entropy / max(pairs, 1), "accuracy": right / len(targets)}
        return figures

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return the most probable middle word of each window, shape (n,)."""
        found = np.empty(len(inputs), np.int64)
        for rows in _blocks(len(inputs), self._words):
            contexts = self._checked(inputs[rows])
            each = contexts[contexts >= 0][:, None] if self._pairs else contexts
            found[rows] = self._window_sums(self._log_probabilities(self._hidden(each)), contexts).argmax(1)
        return found

    def _hidden(self, contexts: NDArray[np.int32]) -> NDArray[np.float32]:
        hidden = np.empty((len(contexts), self._embedding.shape[1]), np.float32)
        kernels().pool(self._embedding, contexts, self._pool_scales, hidden)
        return hidden

    def _log_probabilities(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return log p(word | pooled vector), shape (n, V)."""
        with np.errstate(over="ignore", invalid="ignore"):
            logs = self._objective.log_probabilities(hidden, self._output)
            logs -= logs.max(1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(1, keepdims=True))
        return logs

    def _window_sums(self, logs: NDArray[np.float32], inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the sum over the context words of each window, if each has its own row."""
        if not self._pairs:
            return logs
        present = inputs >= 0
        place = np.cumsum(present).reshape(present.shape) - 1
        total = np.zeros((len(inputs), self._words), np.float32)
        for column in range(present.shape[1]):
            there = present[:, column]
            total[there] += logs[place[there, column]]
        return total

    def buffers(self) -> Flat:
        """Return an empty vector: the model has no state besides its tables."""
        return np.empty(0, np.float32)

    def load_buffers(self, flat: Flat) -> None:
        """Accept only an empty vector."""
        if len(flat):
            raise ConfigurationError(f"a word model has no buffers, the vector has {len(flat)} elements")

    def __getstate__(self) -> dict[str, Any]:
        made = ("_embedding", "_output", "_gradient", "_tables", "_nonzero_rows", "_objective")
        return {key: value for key, value in vars(self).items() if key not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._objective = self._make_objective()
        self._lay_out()
        np.copyto(self._weights, state["_weights"])


def _blocks(rows: int, words: int) -> Iterator[slice]:
    """Cut rows into blocks whose tables by all words fit into memory; at least one, so that an empty batch raises."""
    size = max(_CELLS // words, 1)
    for begin in range(0, max(rows, 1), size):
        yield slice(begin, begin + size)


def _distinct(rows: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.unique(rows[rows >= 0]).astype(np.int64)


def _indices(values: NDArray[Any], lowest: int, words: int, what: str) -> NDArray[np.int32]:
    """Return checked word indices, since the kernels do not check bounds."""
    if values.dtype.kind not in "iu":
        raise DataError(f"the {what} must be indices into the vocabulary, not {values.dtype}")
    if values.size and (values.min() < lowest or values.max() >= words):
        raise DataError(f"the {what} range from {values.min()} to {values.max()}: {lowest} to {words - 1} are allowed")
    return values.astype(np.int32)
