"""The kernels, compiled by numba. `plain` has the same functions in NumPy, with the same results to float tolerance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chimera.core.jit import F, N, U, as_bits, as_float, inlined, njit, prefetch, reordered

_L = np.uint64
_GAMMA, _FIRST, _SECOND = _L(0x9E3779B97F4A7C15), _L(0xBF58476D1CE4E5B9), _L(0x94D049BB133111EB)
_HALF = _L(0xFFFFFFFF)


@njit
def draw(thresholds: Any, aliases: Any, key: Any, begin: Any, out: Any) -> None:
    """Draw words, shape (n,), from an alias table: numbers ``begin`` and up of the sequence of ``key`` (SplitMix64).

    Source: Steele, Lea and Flood (2014), Fast Splittable Pseudorandom Number Generators.
    """
    words = _L(thresholds.size)
    state = key + _L(begin) * _GAMMA
    for i in range(out.size):
        state += _GAMMA
        z = (state ^ (state >> _L(30))) * _FIRST
        z = (z ^ (z >> _L(27))) * _SECOND
        z ^= z >> _L(31)
        word = ((z >> _L(32)) * words) >> _L(32)
        out[i] = N(word) if (z & _HALF) < thresholds[word] else aliases[word]


@njit
def fill_samples(targets: Any, drawn: Any, rows: Any) -> None:
    """Write each target and its negative samples, shape (n, 1 + k). A sample equal to the target becomes -1."""
    at = 0
    for i in range(rows.shape[0]):
        rows[i, 0] = targets[i]
        for j in range(1, rows.shape[1]):
            rows[i, j] = N(-1) if drawn[at] == targets[i] else drawn[at]
            at += 1


_AHEAD = 2  # windows whose rows are prefetched


@reordered
def accumulate(
    embedding: Any, output: Any, inputs: Any, pool_scales: Any, begin: Any, rows: Any, labels: Any, scale: Any,
    to_embedding: Any, to_output: Any,
) -> Any:  # fmt: skip
    """Add ``scale`` times the gradient of each window to two tables, window by window; return the sum of the losses.

    If the tables are not the parameters, the sum is the gradient of the batch. If they are the parameters, and the scale is
    negative, each window is a step of SGD.
    """
    size = embedding.shape[1]
    hidden, back = np.empty(size, F), np.empty(size, F)
    flat_embedding, flat_output = embedding.reshape(-1), output.reshape(-1)
    loss: Any = 0.0
    for i in range(inputs.shape[0]):
        if i + _AHEAD < inputs.shape[0]:
            for c in range(inputs.shape[1]):
                if inputs[i + _AHEAD, c] >= 0:
                    prefetch(flat_embedding, inputs[i + _AHEAD, c] * size, size)
            for j in range(begin[i + _AHEAD], begin[i + _AHEAD + 1]):
                if rows[j] >= 0:
                    prefetch(flat_output, rows[j] * size, size)
        count = 0
        hidden[:] = F(0)
        for c in range(inputs.shape[1]):
            word = inputs[i, c]
            if word >= 0:
                count += 1
                for k in range(size):
                    hidden[k] += embedding[word, k]
        pool_scale = pool_scales[count]
        for k in range(size):
            hidden[k] *= pool_scale
            back[k] = F(0)
        product = 1.0
        for j in range(begin[i], begin[i + 1]):
            row = rows[j]
            if row < 0:
                continue
            logit: Any = F(0)
            for k in range(size):
                logit += hidden[k] * output[row, k]
            wrong = -logit if labels[j] else logit  # large if the prediction is wrong
            grown = math.exp(-abs(wrong))
            if wrong > 0:
                loss += wrong
            product *= 1.0 + grown  # one logarithm for many factors of at most 2
            if product > 1e200:
                loss += math.log(product)
                product = 1.0
            slope = F(1.0 / (1.0 + grown)) if wrong > 0 else F(grown / (1.0 + grown))
            slope = scale * (-slope if labels[j] else slope)
            for k in range(size):
                back[k] += slope * output[row, k]
            for k in range(size):
                to_output[row, k] += slope * hidden[k]
        loss += math.log(product)
        for k in range(size):
            back[k] *= pool_scale
        for c in range(inputs.shape[1]):
            word = inputs[i, c]
            if word >= 0:
                for k in range(size):
                    to_embedding[word, k] += back[k]
    return loss


@njit
def pool(embedding: Any, inputs: Any, pool_scales: Any, hidden: Any) -> None:
    """Write the scaled sum of the context vectors of each window, shape (n, d)."""
    for i in range(inputs.shape[0]):
        count = 0
        hidden[i] = F(0)
        for c in range(inputs.shape[1]):
            word = inputs[i, c]
            if word >= 0:
                count += 1
                for k in range(hidden.shape[1]):
                    hidden[i, k] += embedding[word, k]
        for k in range(hidden.shape[1]):
            hidden[i, k] *= pool_scales[count]


@njit
def spread(back: Any, inputs: Any, pool_scales: Any, to_embedding: Any) -> None:
    """Add the gradient of each window's pooled vector, shape (n, d), to the rows of its context words."""
    for i in range(inputs.shape[0]):
        count = 0
        for c in range(inputs.shape[1]):
            count += inputs[i, c] >= 0
        for c in range(inputs.shape[1]):
            word = inputs[i, c]
            if word >= 0:
                for k in range(back.shape[1]):
                    to_embedding[word, k] += pool_scales[count] * back[i, k]


@njit
def add_rows(table: Any, rows: Any, values: Any) -> None:
    """Add ``values``, shape (n, d), to rows of a table; a row may occur many times."""
    for i in range(rows.size):
        for k in range(table.shape[1]):
            table[rows[i], k] += values[i, k]


_LOG2E, _LN2_HIGH, _LN2_LOW = F(1.4426950408889634), F(0.693359375), F(-2.12194440e-4)
_ROUND = F(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer


@inlined
def _exp(x: Any) -> Any:
    """Return e**x for -87 <= x <= 0, to 2 units in the last place (Cephes' polynomial), in vector instructions."""
    n = F(F(x * _LOG2E) + _ROUND) - _ROUND
    r = F(x - n * _LN2_HIGH) - n * _LN2_LOW
    p = F(1.9875691500e-4)
    p = F(p * r) + F(1.3981999507e-3)
    p = F(p * r) + F(8.3334519073e-3)
    p = F(p * r) + F(4.1665795894e-2)
    p = F(p * r) + F(1.6666665459e-1)
    p = F(p * r) + F(5.0000001201e-1)
    p = F(F(p * r) * r) + r + F(1)
    return as_float(U(as_bits(p) + U(U(N(n)) << U(23))))


@inlined
def _log1p(x: Any) -> Any:
    """Return log(1 + x) for 0 <= x <= 1, to 1e-7, by twice the inverse hyperbolic tangent of x / (2 + x)."""
    s = x / F(x + F(2))
    t = s * s
    p = F(2.0 / 13)
    p = F(p * t) + F(2.0 / 11)
    p = F(p * t) + F(2.0 / 9)
    p = F(p * t) + F(2.0 / 7)
    p = F(p * t) + F(2.0 / 5)
    p = F(p * t) + F(2.0 / 3)
    return F(F(p * t) * s) + F(F(2) * s)


@reordered
def logistic(logits: Any, targets: Any, shared: Any, weight: Any, scale: Any) -> Any:
    """Replace logits, shape (n, m), of negative samples by ``scale * weight`` times the slopes of their losses.

    If word ``shared[j]`` is the target of the window, loss and slope are 0. Return the sum of the weighted losses.
    """
    loss: Any = 0.0
    factor = weight * scale
    for i in range(logits.shape[0]):
        part: Any = F(0)
        for j in range(logits.shape[1]):
            x = logits[i, j]
            grown = _exp(max(F(-abs(x)), F(-87)))
            over = F(1) / F(F(1) + grown)
            counts = F(0) if shared[j] == targets[i] else F(1)
            # max(x, 0) is computed by a sum, so that NaN stays NaN.
            part += counts * F(F(0.5) * F(x + abs(x)) + _log1p(grown))
            logits[i, j] = counts * factor * (over if x > 0 else F(grown * over))
        loss += part
    return loss * weight


@njit
def take_rows(table: Any, gradient: Any, rows: Any, rate: Any) -> None:
    """Subtract ``rate`` times the gradient from rows of a table, and set these rows of the gradient to 0."""
    for i in range(rows.size):
        row = rows[i]
        if row >= 0:
            for k in range(table.shape[1]):
                table[row, k] -= rate * gradient[row, k]
                gradient[row, k] = F(0)


@njit
def clear_rows(table: Any, rows: Any) -> None:
    """Set rows of a table to 0."""
    for i in range(rows.size):
        if rows[i] >= 0:
            table[rows[i]] = F(0)
