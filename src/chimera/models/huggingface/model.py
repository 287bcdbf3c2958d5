"""A model of the library transformers as a `Model`, with or without adapters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from chimera.core.batch import Batch
from chimera.core.errors import ConfigurationError
from chimera.models.batch_metrics import Perplexity
from chimera.models.batch_work import BatchWork, peak_flops_of, work_on_tokens
from chimera.models.compute import Compute
from chimera.models.huggingface.source import Source
from chimera.models.huggingface.step import LibraryStep
from chimera.models.huggingface.tasks import TASKS
from chimera.models.huggingface.tokens import parameter_counts, tokens_in
from chimera.models.metrics import Metrics
from chimera.models.step import Step
from chimera.models.torch_model import TorchModel


class HuggingFaceModel(TorchModel):
    """A `TorchModel` of a module of transformers, or of one of peft around it.

    With adapters, all workers of a machine share the frozen parameters.

    Parameters
    ----------
    module : the module.
    task : the name of its task.
    source : its source.
    metrics, step, buffers : see `TorchModel`; by default those of the task.
    """

    def __init__(
        self,
        module: Any,
        task: str,
        source: Source,
        *,
        metrics: Metrics | None = None,
        step: Step | None = None,
        buffers: str = "average",
    ) -> None:
        self._source, self._adapted, self._task = source, hasattr(module, "peft_config"), task
        self._sizes = parameter_counts(module)
        super().__init__(
            module,
            metrics=TASKS[task].metrics if metrics is None else metrics,
            step=step or LibraryStep(task, module),
            predict_transform=_most_probable,
            buffers=buffers,
            share_frozen=self._adapted,
        )
        if step is None:
            counting = partial(Perplexity, shifted=TASKS[task].shifted)
            self._metrics = {name: counting if make is Perplexity else make for name, make in self._metrics.items()}
        if source.tokenizer is not None:
            source.read_tokenizer()  # raises now, and not after the training

    def configure(self, compute: Compute) -> None:
        """See `TorchModel.configure`."""
        super().configure(compute)
        if compute.activation_checkpointing and self._adapted:
            self.module.enable_input_require_grads()  # type: ignore[operator]  # a checkpoint without one has no gradients

    @property
    def work_of(self) -> Callable[[Batch], BatchWork | None] | None:
        """A function that returns the work of a training step; None if not all parameters see each token of the task."""
        return self._work_of if TASKS[self._task].of_tokens else None

    def _work_of(self, batch: Batch) -> BatchWork | None:
        tokens = tokens_in(batch, self.module.main_input_name)  # type: ignore[arg-type]
        trained, frozen = self._sizes
        return None if tokens is None else work_on_tokens(tokens, trained=trained, frozen=frozen)

    def peak_flops(self) -> float | None:
        """Return the peak of its GPU in FLOPs per second, see `peak_flops_of`; None if it is not known."""
        device = self._flat.device
        if device.type != "cuda":
            return None
        import torch

        return peak_flops_of(torch.cuda.get_device_name(device))

    @property
    def kept_tensors(self) -> Collection[str] | None:
        """Names of the tensors that the file of a run's weights needs to hold; None if it needs all.

        Frozen parameters that come from files are not written again.
        """
        return {*self.layout.names, *self._buffer_names} if self._adapted and not self._source.new else None

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder for ``from_pretrained`` of transformers or peft, with the tokenizer, if one is known.

        Adapters of a model with new weights are useless without those weights, which are written to ``base`` in the
        folder.

        Raises
        ------
        ConfigurationError : the tokenizer cannot be read.
        """
        folder, module = Path(folder), self.module
        if not self._adapted:
            module.save_pretrained(folder)  # type: ignore[operator]
        else:
            if self._source.new:
                base = folder.absolute() / "base"
                copy.deepcopy(module).unload().save_pretrained(base)  # type: ignore[operator]
                module.active_peft_config.base_model_name_or_path = str(base)  # type: ignore[union-attr]
            module.save_pretrained(folder, save_embedding_layers=False)  # type: ignore[operator]
        self._source.save_tokenizer(folder)


def merged(module: Any) -> Any:
    """Return the module with its adapters added to its own weights.

    Raises
    ------
    ConfigurationError : it has no adapters that can be merged.
    """
    if not hasattr(module, "merge_and_unload"):
        raise ConfigurationError(f"{type(module).__name__} has no adapters to merge: leave out merge")
    return module.merge_and_unload()


def _most_probable(outputs: Any) -> Any:
    return getattr(outputs, "logits", outputs).argmax(-1)
