"""Estimates of the parameters of the simulated engine, from groups of calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from chimera.calibration.cells import Group
from chimera.calibration.measured_run import Floats

PARAMETERS = {
    "seconds_per_call": "s",
    "seconds_per_batch": "s",
    "seconds_per_sample": "s",
    "seconds_per_element": "s",
    "latency_s": "s",
    "seconds_per_byte": "s",
    "seconds_per_evaluation": "s",
    "seconds_to_start": "s",
    "seconds_to_serve": "s",
}
"""The estimated parameters, in the order of the covariance matrix, and their units."""
_SLOW = 1.25


@dataclass(frozen=True, eq=False)
class Point:
    """One data point of the page: a measured median and the value that the model computes for it."""

    what: str
    run: str
    actor: str
    measured_s: float
    fitted_s: float

    def misfit(self) -> float:
        """Return the absolute logarithm of the ratio of both values."""
        return abs(math.log(max(self.measured_s, 1e-9) / max(self.fitted_s, 1e-9)))


def fit_call(medians: Sequence[float]) -> float:
    """Return the fixed seconds of a call: the median over runs; 0 if there are none."""
    return float(np.median(medians)) if medians else 0.0


def fit_batches(groups: Sequence[Group], medians: Sequence[float], call_s: float) -> tuple[float, float]:
    """Return seconds per batch and per sample, both at least 0, with the least squares of the logarithms.

    If all calls have the same samples per batch, the two cannot be separated: all time is then attributed to samples.
    """
    work = np.array([(group.batches, group.samples) for group in groups])
    measured = np.maximum(np.array(medians), 1e-9)
    if not separable(groups):
        return 0.0, float(np.exp(np.mean(np.log(np.maximum(measured - call_s, 1e-9) / work[:, 1]))))
    return _positive_fit(work, measured, call_s)


def fit_elements(groups: Sequence[Group], medians: Sequence[float], call_s: float) -> float:
    """Return the seconds per element that a server reads."""
    if not groups:
        return 0.0
    elements = np.array([group.elements for group in groups])
    return float(np.exp(np.mean(np.log(np.maximum(np.array(medians) - call_s, 1e-10) / elements))))


def fit_network(sizes: Floats, waits: Floats, min_latency_s: float | None) -> tuple[float, float]:
    """Return latency and seconds per byte: ``waits = 2 latency + seconds_per_byte * sizes``, both at least 0.

    Parameters
    ----------
    sizes, waits : bytes and seconds of messages on the path of a round, shape (runs,).
    min_latency_s : latency that other calls show; None if it is not known. This latency is used if all messages have one
        size.
    """
    if not len(waits):
        return min_latency_s or 0.0, 0.0
    if np.ptp(sizes) > 0.2 * sizes.max():
        fitted, _ = optimize.nnls(np.column_stack([np.full(len(sizes), 2.0), sizes / sizes.max()]), waits)
        return float(fitted[0]), float(fitted[1] / sizes.max())
    if min_latency_s is None or not sizes.any():
        return float(np.mean(waits)) / 2, 0.0
    latency_s = min(min_latency_s, float(np.mean(waits)) / 2)
    return latency_s, float(np.mean(waits - 2 * latency_s) / np.mean(sizes))


def separable(groups: Sequence[Group]) -> bool:
    """Return whether groups have different numbers of samples per batch."""
    ratios = [group.samples / group.batches for group in groups]
    return max(ratios) > 1.2 * min(ratios)


def slow_workers(groups: Sequence[Group], fitted: Sequence[float]) -> dict[str, float]:
    """Return the factors of workers that are slower than the median worker in all runs, by name."""
    ratios: dict[str, list[float]] = {}
    for group, seconds in zip(groups, fitted, strict=True):
        ratios.setdefault(group.actor, []).append(group.median() / max(seconds, 1e-9))
    medians = {worker: float(np.median(values)) for worker, values in ratios.items()}
    ordered = sorted(medians.values())
    typical = ordered[(len(ordered) - 1) // 2]
    return {
        worker: median / typical
        for worker, median in medians.items()
        if median > _SLOW * typical and min(ratios[worker]) > typical
    }


def _positive_fit(work: NDArray[np.float64], measured: Floats, call_s: float) -> tuple[float, float]:
    scale = work.max(axis=0)
    start, _ = optimize.nnls(work / scale / measured[:, None], np.maximum(measured - call_s, 0) / measured)

    def residuals(values: Floats) -> Floats:
        return np.asarray(np.log((call_s + work / scale @ values) / measured))

    floor = 1e-12
    found = optimize.least_squares(residuals, np.maximum(start, 10 * floor), bounds=(floor, np.inf), loss="soft_l1")
    batch, sample = (float(value) for value in found.x / scale)
    return batch, sample
