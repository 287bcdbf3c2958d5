"""The work of a training batch in tokens and floating-point operations, and the peak of a device."""

from __future__ import annotations

import re
from typing import NamedTuple

_PEAKS: dict[str, float] = {
    r"A100(-|\s.*PCIe)": 312e12,  # SXM and PCIe, 40 and 80 GB
    r"H100 PCIe": 756e12,
    r"H100 NVL": 835e12,
    r"H100 80GB HBM3": 989e12,  # SXM
    r"H200 NVL": 835e12,
    r"H200$": 989e12,  # SXM
}
"""Peak of dense bfloat16 by a pattern of torch's name of the device; NVIDIA's data sheets, half of "with sparsity"."""


class BatchWork(NamedTuple):
    """The work of a training step on one batch.

    Attributes
    ----------
    tokens : tokens without padding.
    flops : floating-point operations of the forward and the backward pass by the model's formula; nothing is measured.
    """

    tokens: int
    flops: float


def work_on_tokens(tokens: int, *, trained: int, frozen: int) -> BatchWork:
    """Return the work of a training step of a transformer: (6 trained + 4 frozen) FLOPs per token.

    A parameter takes 2 FLOPs per token in the forward pass, 2 for the gradient of its input, and 2 for its own gradient, if it
    is trained (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1). The products of queries, keys and
    values, and what activation checkpointing computes again, are not counted. Embeddings are.

    Parameters
    ----------
    tokens : tokens of the batch.
    trained, frozen : numbers of parameters.
    """
    return BatchWork(tokens, float(6 * trained + 4 * frozen) * tokens)


def peak_flops_of(device_name: str) -> float | None:
    """Return the dense bfloat16 FLOPs per second of a GPU, by the name that torch gives it; None if it is not known.

    A part of a GPU (MIG) is not known.
    """
    if "MIG" in device_name:
        return None
    return next((peak for pattern, peak in _PEAKS.items() if re.search(pattern, device_name)), None)
