"""Objectives of word models that replace a softmax over all words by a few logistic losses."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.models.word2vec.huffman import huffman_paths
from chimera.models.word2vec.kernels import kernels
from chimera.models.word2vec.kernels.plain import logits_of, losses_of
from chimera.models.word2vec.noise import Noise

Table: TypeAlias = NDArray[np.float32]
"""float32, shape (rows, d)."""


class BatchLoss(Protocol):
    """The loss of one batch of windows."""

    @property
    def output_rows(self) -> NDArray[np.int32]:
        """The rows of the output table that the loss uses, with repetitions; -1 is no row."""

    def remapped(self, rows: NDArray[np.int64]) -> BatchLoss:
        """Return the same loss for a table that has only the given rows, in ascending order, which include all used ones."""

    def accumulate(
        self, embedding: Table, output: Table, windows: Windows, scale: float, into: tuple[Table, Table]
    ) -> float:
        """Add ``scale`` times the sum of the gradients to two tables, and return the sum of the losses."""


class Windows(NamedTuple):
    """Context words, int32 (n, w), -1 where there is none, and the factor of the pooled sum by number of words."""

    inputs: NDArray[np.int32]
    pool_scales: NDArray[np.float32]


class LogisticLoss(NamedTuple):
    """A sum of logistic losses: for each window rows of the output table, and their labels; see `kernels`."""

    begin: NDArray[np.int64]
    rows: NDArray[np.int32]
    labels: NDArray[np.uint8]

    @property
    def output_rows(self) -> NDArray[np.int32]:
        """See `BatchLoss`, here and below."""
        return self.rows

    def remapped(self, rows: NDArray[np.int64]) -> LogisticLoss:
        """Return the loss with row numbers replaced by their positions in ``rows``."""
        return self._replace(rows=positions_in(rows, self.rows))

    def accumulate(
        self, embedding: Table, output: Table, windows: Windows, scale: float, into: tuple[Table, Table]
    ) -> float:
        """Add the gradients window by window."""
        return float(kernels().accumulate(embedding, output, *windows, *self, np.float32(scale), *into))


def positions_in(rows: NDArray[np.int64], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the position of each number in ``rows``, which are ascending; -1 for -1."""
    return np.where(numbers < 0, -1, np.searchsorted(rows, numbers)).astype(np.int32)


class Objective(Protocol):
    """A training objective for the word that belongs to a window."""

    def rows(self) -> int:
        """Return the number of rows of the output table."""

    def reseed(self, seed: int) -> None:
        """Set the seed of the draws of `batch_loss`."""

    def batch_loss(self, targets: NDArray[np.int32]) -> BatchLoss:
        """Return the loss of windows with these targets, int32 (n,); it may draw negative samples."""

    def losses(self, hidden: Table, output: Table, targets: NDArray[np.int32], seed: int) -> NDArray[np.float32]:
        """Return the loss of each window, given its pooled vector; draws depend on the seed alone."""

    def log_probabilities(self, hidden: Table, output: Table) -> Table:
        """Return log p(word | window), shape (n, V), up to a constant per row."""


class _LogisticObjective:
    """An objective with a few logistic losses per window."""

    def logistic_loss(self, targets: NDArray[np.int32], seed: int | None = None) -> LogisticLoss:
        """Return the losses. Draws depend on ``seed`` if it is given, else they continue from `Objective.reseed`."""
        raise NotImplementedError

    def batch_loss(self, targets: NDArray[np.int32]) -> BatchLoss:
        """See `Objective`, here and below."""
        return self.logistic_loss(targets)

    def losses(self, hidden: Table, output: Table, targets: NDArray[np.int32], seed: int) -> NDArray[np.float32]:
        """Return the loss of each window."""
        batch_loss = self.logistic_loss(targets, seed)
        with np.errstate(over="ignore", invalid="ignore"):
            found = losses_of(logits_of(hidden, output, batch_loss.begin, batch_loss.rows), batch_loss.labels) * (
                batch_loss.rows >= 0
            )
            return np.asarray(np.add.reduceat(found, batch_loss.begin[:-1]))


class NegativeSampling(_LogisticObjective):
    """Classification of the word of a window against a few words drawn at random.

    Source: Mikolov et al. (2013), Distributed Representations of Words and Phrases and their Compositionality, equation 4.
    """

    def __init__(self, counts: NDArray[np.int64], negatives: int, power: float) -> None:
        self._noise, self._negatives = Noise(counts, power), negatives
        self._log_noise = np.log(np.maximum(self._noise.probabilities, 1e-30)).astype(np.float32)
        self._begin, self._labels = np.zeros(1, np.int64), np.empty(0, np.uint8)

    def rows(self) -> int:
        """Return the number of words."""
        return int(self._log_noise.size)

    def reseed(self, seed: int) -> None:
        """Restart the sequence of negative samples."""
        self._noise.reseed(seed)

    def logistic_loss(self, targets: NDArray[np.int32], seed: int | None = None) -> LogisticLoss:
        """Return a positive label for the target, and a negative one for each drawn word."""
        each = 1 + self._negatives
        if self._labels.size != targets.size * each:  # the same for all batches of a size
            self._begin = np.arange(targets.size + 1) * each
            self._labels = np.tile(np.arange(each) == 0, targets.size).astype(np.uint8)
        drawn = np.empty(targets.size * self._negatives, np.int32)
        if seed is None:
            self._noise.draw(drawn)
        else:
            self._noise.draw_with_seed(seed, drawn)
        rows = np.empty((targets.size, each), np.int32)
        kernels().fill_samples(targets, drawn, rows)
        return LogisticLoss(self._begin, rows.reshape(-1), self._labels)

    def log_probabilities(self, hidden: Table, output: Table) -> Table:
        """See `Objective`; training makes a logit log p(word | window) - log(noise p(word)), up to a constant."""
        return np.asarray(hidden @ output.T + self._log_noise)


class SharedNegativesLoss(NamedTuple):
    """The loss of a batch with shared negatives: the target of each window, int32 (n,), and the drawn words with a weight."""

    targets: NDArray[np.int32]
    drawn: NDArray[np.int32]
    weight: np.float32

    @property
    def output_rows(self) -> NDArray[np.int32]:
        """See `BatchLoss`, here and below."""
        return np.concatenate([self.targets, self.drawn])

    def remapped(self, rows: NDArray[np.int64]) -> SharedNegativesLoss:
        """Return the loss with word numbers replaced by their positions in ``rows``."""
        return SharedNegativesLoss(positions_in(rows, self.targets), positions_in(rows, self.drawn), self.weight)

    def accumulate(
        self, embedding: Table, output: Table, windows: Windows, scale: float, into: tuple[Table, Table]
    ) -> float:
        """Add the gradients of all windows at once."""
        targets, drawn, weight = self
        kernel, factor = kernels(), np.float32(scale)
        hidden = np.empty((targets.size, embedding.shape[1]), np.float32)
        kernel.pool(embedding, *windows, hidden)
        right, wrong = output[targets], output[drawn]
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = -np.einsum("ij,ij->i", hidden, right)[:, None]
            loss = kernel.logistic(slopes, targets, _NO_TARGET, np.float32(1), factor)
            logits = hidden @ wrong.T
            loss += kernel.logistic(logits, targets, drawn, weight, factor)
            back = logits @ wrong
            back -= slopes * right
            kernel.add_rows(into[1], drawn, logits.T @ hidden)
            hidden *= -slopes
        kernel.add_rows(into[1], targets, hidden)
        kernel.spread(back, *windows, into[0])
        return float(loss)


_NO_TARGET = np.full(1, -1, np.int32)


class SharedNegatives(NegativeSampling):
    """Negative sampling with one draw of words for a whole batch, so that the computation consists of matrix products.

    Source: Ji et al. (2016), Parallelizing Word2Vec in Shared and Distributed Memory. Each of the shared words counts as
    ``negatives / shared``, so that the objective is the same, and the variance of its gradient is smaller.
    """

    def __init__(self, counts: NDArray[np.int64], negatives: int, power: float, shared: int) -> None:
        super().__init__(counts, negatives, power)
        self._shared, self._weight = shared, np.float32(negatives / shared)

    def batch_loss(self, targets: NDArray[np.int32]) -> BatchLoss:
        """Draw the negative samples of a batch."""
        drawn = np.empty(self._shared, np.int32)
        self._noise.draw(drawn)
        return SharedNegativesLoss(targets, drawn, self._weight)


class HierarchicalSoftmax(_LogisticObjective):
    """Prediction of the word of a window by a binary decision at each node of a path in a Huffman tree.

    Source: Mikolov et al. (2013), Distributed Representations of Words and Phrases and their Compositionality, equation 3.
    Its loss is a cross-entropy over all words, like that of a full softmax.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._paths = huffman_paths(counts)

    def rows(self) -> int:
        """Return the number of inner nodes."""
        return self._paths.begin.size - 2

    def reseed(self, seed: int) -> None:
        """Do nothing: nothing is random."""

    def logistic_loss(self, targets: NDArray[np.int32], seed: int | None = None) -> LogisticLoss:  # noqa: ARG002
        """Return a label for each node on the path to the target."""
        first = self._paths.begin[targets]
        lengths = self._paths.begin[targets + 1] - first
        begin = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(begin[-1]) + np.repeat(first - begin[:-1], lengths)
        return LogisticLoss(begin, self._paths.nodes[places], self._paths.labels[places])

    def log_probabilities(self, hidden: Table, output: Table) -> Table:
        """See `Objective`: the sums over the paths."""
        logits = hidden @ output.T
        yes, no = (-losses_of(logits, np.full(1, label)) for label in (1, 0))
        begin, nodes, labels = self._paths.begin, self._paths.nodes, self._paths.labels
        total, lengths = np.zeros((len(hidden), begin.size - 1), np.float32), np.diff(begin)
        for depth in range(int(lengths.max())):
            words = np.flatnonzero(lengths > depth)
            place = begin[words] + depth
            total[:, words] += np.where(labels[place] != 0, yes[:, nodes[place]], no[:, nodes[place]])
        return total
