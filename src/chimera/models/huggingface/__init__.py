"""Models of the library transformers by name, with or without adapters of the library peft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from chimera.core.errors import ConfigurationError
from chimera.core.registry import load_object
from chimera.models.huggingface.source import Source
from chimera.models.huggingface.tasks import TASKS, TaskName
from chimera.models.metrics import Metrics
from chimera.models.model import MODELS


@MODELS.register(
    "huggingface", requires="transformers", extra="text", preload=("transformers.modeling_utils", "peft.peft_model")
)
def huggingface(
    *,
    count_outputs: Callable[[], int],
    task: TaskName,
    path: str | None = None,
    from_: Literal["pretrained", "config"] = "pretrained",
    config: dict[str, Any] | None = None,
    gguf_file: str | None = None,
    dtype: Literal["fp32", "bf16"] = "fp32",
    tokenizer: str | None = None,
    lora: dict[str, Any] | None = None,
    peft: dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    metrics: Metrics | None = None,
    step: str | Callable[..., Any] | None = None,
    buffers: str = "average",
) -> Any:
    """A model of the library transformers, pretrained or from a configuration; ``task`` selects its head.

    Parameters
    ----------
    count_outputs : returns the number of classes.
    task : ``causal-lm``, ``masked-lm``, ``seq2seq``, or ``sequence-``, ``token-`` or ``image-classification``.
    path : a folder, ``package:NAME`` for that of an installed package, or a name of the hub. With ``from = "config"`` also a
        ``config.json``.
    from_ : ``pretrained`` reads the weights, ``config`` draws new ones.
    config : options of the configuration that replace those of ``path``; without a ``path`` also ``model_type``.
    gguf_file : the file in ``path`` that holds the weights, in the format GGUF.
    dtype : type of the frozen parameters. Those that are trained are float32.
    tokenizer : folder or name of the hub of the tokenizer that `Run.save` writes; by default the one in ``path``.
    lora : train only adapters, see `chimera.models.huggingface.adapters.lora`.
    peft : train only adapters of any type of peft: ``peft_type`` and the options of its configuration.
    trust_remote_code : run the code that comes with the model.
    metrics, step, buffers : see `TorchModel`. By default perplexity or accuracy, and the loss of the model.
    """
    if task not in TASKS:  # the trainer passes the task of the data if the user sets none
        raise ConfigurationError(f"model 'huggingface' needs the option 'task': {', '.join(TASKS)}")
    if lora is not None and peft is not None:
        raise ConfigurationError("model 'huggingface' has both tables 'lora' and 'peft': give one")
    if dtype != "fp32" and lora is None and peft is None:
        raise ConfigurationError(
            f"dtype = {dtype!r} is the type of frozen parameters: add a table 'lora' or 'peft', or leave it out and set "
            "precision = 'bf16-mixed' in [train]"
        )
    from chimera.models.huggingface.adapters import adapted, lora_config, peft_config
    from chimera.models.huggingface.model import HuggingFaceModel

    adapter = None  # made first, so that its errors are raised before a large model is read
    if lora is not None:
        adapter = lora_config(lora, task)
    elif peft is not None:
        adapter = peft_config(peft, task), False
    source = Source(path, from_ == "config", dict(config or {}), gguf_file, tokenizer, trust_remote_code)
    module = source.module(TASKS[task], count_outputs, dtype)
    if adapter is not None:
        module = adapted(module, *adapter)
    return HuggingFaceModel(
        module,
        task,
        source,
        metrics=metrics,
        step=load_object(step) if isinstance(step, str) else step,
        buffers=buffers,
    )
