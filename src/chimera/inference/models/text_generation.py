"""Language models that continue texts or conversations: a folder of transformers, an id, or an adapter of peft."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.inference.models.generation import TextGenerator
from chimera.inference.models.hub import downloaded, located, stamp_of
from chimera.inference.models.processor import is_on_cpu
from chimera.inference.models.sampling import TOKENIZER, SampledModel
from chimera.inference.models.table import KINDS
from chimera.inference.models.weights import all_from_files
from chimera.models.instantiation import first_line

_ADAPTER, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@KINDS.register(
    "text-generation",
    requires="transformers",
    extra="inference",
    preload=["torch", "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"],
)
@dataclass(frozen=True, kw_only=True)
class TextGeneration(SampledModel):
    """A causal language model that answers prompts. The same query always has the same answer.

    Each query is computed alone, so its answer depends neither on the other queries of its batch nor on their number.

    Parameters
    ----------
    model : a folder of a model of transformers, or of an adapter of peft; or the id of a model.
    base : folder or id of the base of an adapter; default: the folder that the adapter's configuration names.
    tokenizer : folder of the tokenizer; default: that of the model, else that of the base.
    revision : commit of the id in ``model`` or ``base``.
    max_new_tokens, temperature, top_k, top_p, seed, dtype, stamp : see `SampledModel`.
    device : ``cpu``, ``cuda``, ``cuda:1``; default: a GPU if there is one.
    """

    base: str | None = None
    device: str | None = None

    @property
    def shared(self) -> bool:
        """Whether the model computes on the processor."""
        return is_on_cpu(self.device)

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with absolute paths, and with the base that an adapter names.

        Raises
        ------
        ConfigurationError : a folder is missing, or an adapter names a base that is no folder of this machine.
        """
        model = located(self.model, self.revision, folder, ("config.json", _ADAPTER))
        base = self.base
        if (Path(model) / _ADAPTER).is_file():
            if not (Path(model) / _WEIGHTS).is_file():
                raise ConfigurationError(f"the adapter {model!r} has no {_WEIGHTS}")
            if find_spec("peft") is None:
                raise MissingExtraError("an adapter", "peft", "text")
            base = located(base, self.revision, folder) if base else _base_of(Path(model))
        elif base is not None:
            raise ConfigurationError(f"base = {base!r}: the model {model!r} is no adapter, so it needs no base")
        tokenizer = located(self.tokenizer, None, folder, TOKENIZER) if self.tokenizer else None
        stamp = self.stamp or stamp_of(*(place for place in (model, base, tokenizer) if place))
        return replace(self, model=model, base=base, tokenizer=tokenizer, stamp=stamp)

    def load(self) -> TextGenerator:
        """Load model and tokenizer, without any code or pickled weights of the model."""
        base = downloaded(self.base or self.model, self.revision)
        place = self.tokenizer_folder(self.model, base)
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        with all_from_files(self.base or self.model):
            try:
                tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
                module = self._module(base)
            except Exception as error:  # many libraries raise many types
                raise ConfigurationError(f"the model {self.model!r} cannot be loaded: {first_line(error)}") from error
        return TextGenerator(module, tokenizer, self.sampling())

    def _module(self, base: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        module = AutoModelForCausalLM.from_pretrained(
            base, dtype=self.dtype, use_safetensors=True, trust_remote_code=False
        )
        if self.base is not None:
            from peft import PeftModel

            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, about peft's use of it
                warnings.filterwarnings("error", message="Found missing adapter keys")
                module = PeftModel.from_pretrained(module, self.model, use_safetensors=True)
        return module.eval().to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _base_of(adapter: Path) -> str:
    """Return the absolute path of the base that an adapter names.

    Raises
    ------
    ConfigurationError : it names no folder of this machine. An id is not followed: it would be a download that the files of
        another user select.
    """
    try:
        found = json.loads((adapter / _ADAPTER).read_text(encoding="utf-8"))
        name = found.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{adapter / _ADAPTER} cannot be read: {first_line(error)}") from error
    if not isinstance(name, str) or not (adapter / name / "config.json").is_file():
        raise ConfigurationError(
            f"the adapter {str(adapter)!r} names the base {name!r}, which is no folder of this machine: set base to a "
            "folder, or to an id with its revision"
        )
    return str((adapter / name).resolve())
