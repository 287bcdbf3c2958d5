"""The kernels in NumPy, slower, for machines on which numba does not work. They are documented in `compiled`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F, L = np.float32, np.uint64


def draw(thresholds: Any, aliases: Any, key: Any, begin: Any, out: Any) -> None:
    with np.errstate(over="ignore"):
        z = L(key) + (L(begin) + np.arange(1, out.size + 1, dtype=L)) * L(0x9E3779B97F4A7C15)
        z = (z ^ (z >> L(30))) * L(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> L(27))) * L(0x94D049BB133111EB)
        z ^= z >> L(31)
    word = ((z >> L(32)) * L(thresholds.size)) >> L(32)
    out[:] = np.where((z & L(0xFFFFFFFF)) < thresholds[word], word, aliases[word])


def fill_samples(targets: Any, drawn: Any, rows: Any) -> None:
    rows[:, 0], rows[:, 1:] = targets, drawn.reshape(targets.size, -1)
    rows[:, 1:][rows[:, 1:] == targets[:, None]] = -1


def logits_of(hidden: Any, output: Any, begin: Any, rows: Any) -> NDArray[Any]:
    """Return the product of each window's pooled vector with each of its rows, concatenated, shape (m,)."""
    return np.asarray(np.einsum("ij,ij->i", np.repeat(hidden, np.diff(begin), axis=0), output[rows]))


def losses_of(logits: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return the logistic losses of logits with labels 1 and 0."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.logaddexp(F(0), np.where(labels != 0, -logits, logits)))


def accumulate(
    embedding: Any, output: Any, inputs: Any, pool_scales: Any, begin: Any, rows: Any, labels: Any, scale: Any,
    to_embedding: Any, to_output: Any,
) -> Any:  # fmt: skip
    if to_embedding is not embedding:
        return _accumulate(embedding, output, inputs, pool_scales, begin, rows, labels, scale, to_embedding, to_output)
    loss = 0.0
    for i in range(len(inputs)):  # one row after another, since a row may occur twice
        hidden, back = np.empty((1, embedding.shape[1]), F), np.zeros((1, embedding.shape[1]), F)
        pool(embedding, inputs[i : i + 1], pool_scales, hidden)
        for row, label in zip(rows[begin[i] : begin[i + 1]], labels[begin[i] : begin[i + 1]], strict=True):
            if row >= 0:
                with np.errstate(over="ignore", invalid="ignore"):
                    logit = hidden[0] @ output[row]
                    slope = F((1 / (1 + np.exp(-logit)) - label) * scale)
                    back += slope * output[row]
                    output[row] += slope * hidden[0]
                loss += float(losses_of(logit, label))
        spread(back, inputs[i : i + 1], pool_scales, embedding)
    return loss


def _accumulate(
    embedding: Any, output: Any, inputs: Any, pool_scales: Any, begin: Any, rows: Any, labels: Any, scale: Any,
    to_embedding: Any, to_output: Any,
) -> float:  # fmt: skip
    present = rows >= 0
    begin = np.concatenate([[0], np.cumsum(present)])[begin]
    rows, labels = rows[present], labels[present]
    hidden = np.empty((len(inputs), embedding.shape[1]), F)
    pool(embedding, inputs, pool_scales, hidden)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = logits_of(hidden, output, begin, rows)
        slopes = ((1 / (1 + np.exp(-logits)) - labels) * scale).astype(F)
        owner = np.repeat(np.arange(len(inputs)), np.diff(begin))
        back = np.zeros_like(hidden)
        np.add.at(back, owner, slopes[:, None] * output[rows])
        np.add.at(to_output, rows, slopes[:, None] * hidden[owner])
        spread(back, inputs, pool_scales, to_embedding)
    return float(losses_of(logits, labels).sum(dtype=np.float64))


def pool(embedding: Any, inputs: Any, pool_scales: Any, hidden: Any) -> None:
    present = inputs >= 0
    np.einsum("ijk,ij->ik", embedding[inputs], present.astype(F), out=hidden)
    hidden *= pool_scales[present.sum(1)][:, None]


def spread(back: Any, inputs: Any, pool_scales: Any, to_embedding: Any) -> None:
    present = inputs >= 0
    owner, place = np.nonzero(present)
    np.add.at(to_embedding, inputs[owner, place], (pool_scales[present.sum(1)][:, None] * back)[owner])


def add_rows(table: Any, rows: Any, values: Any) -> None:
    np.add.at(table, rows, values)


def logistic(logits: Any, targets: Any, shared: Any, weight: Any, scale: Any) -> Any:
    counts = shared[None, :] != targets[:, None]
    loss = float((losses_of(logits, np.zeros(1)) * counts).sum(dtype=np.float64)) * float(weight)
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(weight * scale, 1 + np.exp(-logits), out=logits)
    logits *= counts
    return loss


def take_rows(table: Any, gradient: Any, rows: Any, rate: Any) -> None:
    rows = np.unique(rows[rows >= 0])
    table[rows] -= F(rate) * gradient[rows]
    gradient[rows] = 0


def clear_rows(table: Any, rows: Any) -> None:
    table[rows[rows >= 0]] = 0
