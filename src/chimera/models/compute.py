"""Settings of a torch model's computation: precision, accumulation, activation checkpointing, compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.validation_message import validation_message

Precision: TypeAlias = Literal["fp32", "bf16-mixed", "fp16-mixed"]
_AUTOCAST = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}


@dataclass(frozen=True)
class Compute:
    """Settings of a torch model's computation of gradients. Weights, gradients and messages are float32 in each case.

    Attributes
    ----------
    precision : ``bf16-mixed`` runs the step under autocast to bfloat16, ``fp16-mixed`` to float16, with a scaled loss, on a GPU
        only; default ``fp32``.
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

    @property
    def autocast(self) -> str | None:
        """The type of torch to which the step is cast automatically; None: no cast."""
        return _AUTOCAST.get(self.precision)

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, since small gradients would be zero in the type of the step."""
        return self.precision == "fp16-mixed"

    def check_device(self, *, gpu: bool) -> None:
        """Raise ConfigurationError if the device does not support the settings; ``gpu``: whether it is a GPU."""
        if self.scales and not gpu:
            raise ConfigurationError(
                'precision "fp16-mixed" needs a GPU: set worker_resources = { gpus = 1 }, or, on the CPU, '
                'precision = "bf16-mixed"'
            )

    def check_parts(self) -> None:
        """Raise ConfigurationError if the settings do not allow a model that is cut into parts."""
        ignored = [key for key, on in (("precision", self.precision != "fp32"), ("compile", self.compile)) if on]
        if ignored:
            raise ConfigurationError(
                "a strategy that cuts the model into parts computes in float32, without compilation: leave out "
                f"{' and '.join(ignored)}"
            )

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


def enable_checkpointing(module: Any) -> None:
    """Make a module recompute its activations in the backward pass.

    Raises
    ------
    ConfigurationError : the module does not offer that.
    """
    names = (
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
    )  # the new name in transformers, the old one
    enable = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    if enable is None:
        raise ConfigurationError(
            f"activation_checkpointing: {type(module).__name__} has no gradient_checkpointing_enable(); "
            "checkpoint activations in its forward method, and leave out the option"
        )
    enable()
