"""How a torch model computes: precision, accumulation, activation checkpointing, compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.validation_message import validation_message

Precision: TypeAlias = Literal["fp32", "bf16-mixed"]


@dataclass(frozen=True)
class Compute:
    """How a torch model computes a gradient. Weights, gradients and messages are float32 in each case.

    Attributes
    ----------
    precision : ``bf16-mixed`` runs the step under autocast to bfloat16; default ``fp32``.
    accumulate : number of pieces in which a batch is computed, one after another, to save memory; their gradients are averaged.
    activation_checkpointing : recompute activations in the backward pass, by the module's ``gradient_checkpointing_enable``.
    compile : compile the module by ``torch.compile`` at the first step.
    """

    precision: Precision = "fp32"
    accumulate: int = 1
    activation_checkpointing: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ConfigurationError(f"accumulate must be at least 1, not {self.accumulate}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the settings of a table.

        Raises
        ------
        ConfigurationError : a value has the wrong type.
        """
        try:
            return msgspec.convert(dict(options), cls)
        except msgspec.ValidationError as error:
            raise ConfigurationError(validation_message(error, cls)) from error
