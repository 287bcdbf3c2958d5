"""Adapters of the library peft: small matrices that are trained while the model itself is frozen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from chimera.core.errors import ConfigurationError, MissingExtraError, did_you_mean
from chimera.core.registry import checked_options
from chimera.models.huggingface.tasks import TASKS
from chimera.models.instantiation import first_line

_HEADS = ["classifier", "score"]


def lora_config(options: Mapping[str, Any], task: str) -> tuple[Any, bool]:
    """Return the configuration of a table ``lora``, and whether the matrices A are frozen; see `lora`."""
    _require_peft()
    return lora(task, **checked_options("model 'huggingface', table 'lora'", lora, options, {"task": task}))


def lora(
    task: str,
    *,
    r: int = 8,
    alpha: float = 16.0,
    targets: list[str] | str | None = None,
    dropout: float = 0.0,
    freeze_a: bool = False,
) -> tuple[Any, bool]:
    """Low-rank adapters (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models").

    Parameters
    ----------
    r : rank of the product B A that is added to each target.
    alpha : the product is multiplied by ``alpha / r``.
    targets : names of the layers; by default those that peft knows for the type of the model; or ``all-linear``.
    dropout : probability with which an input of an adapter is dropped in training.
    freeze_a : train B only, so that the mean of the workers' products is the product of A and the mean B (Sun et al. 2024,
        "Improving LoRA in Privacy-preserving Federated Learning").
    """
    if r < 1:
        raise ConfigurationError(f"model 'huggingface', table 'lora': r must be at least 1, not {r}")
    if not 0 <= dropout < 1:
        raise ConfigurationError(
            f"model 'huggingface', table 'lora': dropout is {dropout}: it must be at least 0 and below 1"
        )
    if not 0 < alpha < math.inf:
        raise ConfigurationError(
            f"model 'huggingface', table 'lora': alpha is {alpha}: it must be a finite number above 0, else nothing is learned"
        )
    from peft import LoraConfig

    config = LoraConfig(
        r=r, lora_alpha=alpha, target_modules=targets, lora_dropout=dropout, task_type=TASKS[task].adapter,
        modules_to_save=list(_HEADS) if task == "image-classification" else None,
        exclude_modules=list(_HEADS) if targets == "all-linear" and TASKS[task].classes else None,  # heads are trained whole
    )  # fmt: skip
    return config, freeze_a


def peft_config(options: Mapping[str, Any], task: str) -> Any:
    """Return the configuration of a table ``peft``.

    Raises
    ------
    ConfigurationError : unknown types or options, or values that peft refuses.
    """
    _require_peft()
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    kinds = {str(name.value): kind for name, kind in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    own = {"task_type": TASKS[task].adapter, **options}
    name = str(own.pop("peft_type", "")).upper()
    if name not in kinds:
        raise ConfigurationError(
            f"model 'huggingface', table 'peft': peft_type is {name!r}{did_you_mean(name, kinds)} "
            f"known: {', '.join(sorted(kinds))}"
        )
    known = [field.name for field in fields(kinds[name])]
    for option in own:
        if option not in known:
            raise ConfigurationError(
                f"model 'huggingface', table 'peft': {name} has no option {option!r}{did_you_mean(option, known)} "
                f"its options: {', '.join(known)}"
            )
    try:
        return kinds[name](**own)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"model 'huggingface', table 'peft': {first_line(error)}") from error


def adapted(module: Any, config: Any, freeze_a: bool = False) -> Any:
    """Return the module with adapters, which are float32, and everything else frozen.

    Raises
    ------
    ConfigurationError : the adapter does not fit the model.
    """
    import torch
    from peft import get_peft_model
    from peft.utils import ModulesToSaveWrapper

    _check_rank(module, config)
    layers = {
        name.rpartition(".")[2] for name, part in module.named_modules() if getattr(part, "weight", None) is not None
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # peft sets it to the value that the layer needs
            warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, about peft's use of it
            made = get_peft_model(module, config)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the adapter does not fit {type(module).__name__}: {first_line(error)}; set targets (in a table 'peft': "
            f"target_modules) to 'all-linear', or to some of its layers: {', '.join(sorted(layers))}"
        ) from error
    if not any(parameter.numel() for parameter in made.parameters() if parameter.requires_grad):
        raise ConfigurationError(
            f"the adapter of {type(module).__name__} trains no parameters: increase its size, or remove inference_mode"
        )
    for part in made.modules():
        if isinstance(part, ModulesToSaveWrapper):
            part.register_forward_pre_hook(_as_float32)
    for name, parameter in made.named_parameters():
        if freeze_a and ("lora_A" in name or "lora_embedding_A" in name):
            parameter.requires_grad_(False)
        elif parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
    return made


def _check_rank(module: Any, config: Any) -> None:
    """Refuse a rank that no layer can have, before peft allocates its matrices."""
    rank = getattr(config, "r", None)
    largest = max((min(each.shape) for each in module.parameters() if each.ndim == 2), default=0)
    if isinstance(rank, int) and rank > largest > 0:
        raise ConfigurationError(
            f"the adapter does not fit {type(module).__name__}: r is {rank}, and no layer has more than {largest} inputs or "
            f"outputs: set r to at most {largest}"
        )


def _as_float32(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a trained head in its type; a base in bfloat16 gives it others."""
    return tuple(
        each.float() if hasattr(each, "is_floating_point") and each.is_floating_point() else each for each in inputs
    )


def _require_peft() -> None:
    if find_spec("peft") is None:
        raise MissingExtraError("the tables 'lora' and 'peft' of model 'huggingface'", "peft", "text")
