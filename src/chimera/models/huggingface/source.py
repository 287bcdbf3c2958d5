"""The source of a model of the library transformers: a folder, the hub, or a configuration."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from chimera.core.errors import ChimeraError, ConfigurationError, did_you_mean
from chimera.core.named_places import located
from chimera.core.registry import check_code_allowed
from chimera.models.huggingface.tasks import LibraryTask
from chimera.models.huggingface.weights import check_weights, without_report
from chimera.models.instantiation import extend_limit, first_line

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_OLD_TOKENIZER_FILES = ("tokenizer.model", "vocab.txt", "vocab.json")
_FIXED = ("model_type",)
_OF_WEIGHTS = ("num_attention_heads", "num_key_value_heads")
"""Options that give the weights another meaning, and may keep their shapes."""
_OF_GGUF = ("num_hidden_layers",)
"""Options that leave out weights. For files in the format GGUF, transformers does not report this."""
_WEIGHTS_PER_BYTE = 8  # at most: a file of 1-bit weights, or smaller types of float that are counted twice


@dataclass(frozen=True)
class Source:
    """The source of a model.

    Attributes
    ----------
    path : a folder or ``config.json``, or a name of the hub; None if there is only a configuration.
    new : whether the weights are new, drawn at random.
    config : options that replace those of the configuration in ``path``.
    gguf_file : the file of the weights in ``path``, if that is in the format GGUF.
    tokenizer : folder or name of the hub of its tokenizer; None: the one in ``path``, if any.
    trust_remote_code : whether to run code that comes with the model.

    Raises
    ------
    ConfigurationError : these contradict each other, or the code of a model is refused here.
    """

    path: str | None
    new: bool
    config: dict[str, Any]
    gguf_file: str | None
    tokenizer: str | None
    trust_remote_code: bool

    def __post_init__(self) -> None:
        if self.trust_remote_code:
            check_code_allowed(f"the code of the model {self.path!r} (trust_remote_code)")
        if self.path is None and not (self.new and "model_type" in self.config):
            raise ConfigurationError(
                "model 'huggingface' needs the option 'path', or from = \"config\" and a table 'config' with 'model_type'"
            )
        if self.new and self.gguf_file is not None:
            raise ConfigurationError('gguf_file holds weights, which from = "config" does not read: leave one out')

    def module(self, task: LibraryTask, count_outputs: Callable[[], int], dtype: str) -> Any:
        """Return the module, with its parameters in the type ``dtype``.

        Raises
        ------
        ConfigurationError : the model cannot be found, or it has no weights for the task.
        """
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        auto = getattr(transformers, task.auto)
        config = self._configuration(task, count_outputs)
        kind = torch.float32 if dtype == "fp32" else torch.bfloat16
        if self.new:
            with self._errors_of("a new model cannot be made", config):
                module = auto.from_config(config, trust_remote_code=self.trust_remote_code)
            _check_sizes(module)
            _check_order(module, task)
            return module.to(kind)
        extend_limit(_WEIGHTS_PER_BYTE * _bytes_in(self._folder))
        with self._errors_of(f"the weights of the model {self.path!r} cannot be read", config), without_report():
            module, found = auto.from_pretrained(
                self._folder, config=config, dtype=kind, trust_remote_code=self.trust_remote_code, output_loading_info=True,
                ignore_mismatched_sizes=True, **self._weights,
            )  # fmt: skip
        _check_sizes(module)
        _check_order(module, task)
        check_weights(str(self.path), module, found, classes=task.classes)
        module.name_or_path = module.config._name_or_path = self.path  # not the path of the cache: peft stores it
        return module

    @contextmanager
    def _errors_of(self, what: str, config: Any = None) -> Iterator[None]:
        """Raise ConfigurationError, with the reason in one line, in place of the errors of the library."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Initializing zero-element")  # `_check_sizes` refuses them
                yield
        except ChimeraError:
            raise
        except Exception as error:  # many types
            if str(error).startswith("Unrecognized configuration class"):
                raise ConfigurationError(
                    f"{what}: transformers has no model of type {config.model_type!r} for this task; set another task"
                ) from error
            hint = "; if the file is incomplete, download it again" if self.gguf_file else ""
            raise ConfigurationError(f"{what}: {first_line(error)}{hint}") from error

    @property
    def _weights(self) -> dict[str, Any]:
        """The options that select the file of the weights."""
        return {"gguf_file": self.gguf_file} if self.gguf_file else {"use_safetensors": True}

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer into a folder, if one is known.

        Raises
        ------
        ConfigurationError : it cannot be read.
        """
        read = self.read_tokenizer()
        if read is not None:
            read.save_pretrained(folder)

    def read_tokenizer(self) -> Any:
        """Return the tokenizer; None if none is known.

        Raises
        ------
        ConfigurationError : it cannot be read.
        """
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if self.tokenizer is not None:
            folder = _local(self.tokenizer, _FILES, "tokenizer")
            if not any((folder / name).is_file() for name in (*_TOKENIZER_FILES, *_OLD_TOKENIZER_FILES)):
                raise ConfigurationError(
                    f"the folder {self.tokenizer!r} has no tokenizer: write it with save_pretrained"
                )
        elif self.path is not None and not located(self.path).is_file():
            folder = self._folder
            options |= {"gguf_file": self.gguf_file} if self.gguf_file else {}
            if self.gguf_file is None and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
                return None
        else:
            return None
        from transformers import AutoTokenizer

        with self._errors_of(f"the tokenizer {self.tokenizer or self.path!r} cannot be read"):
            return AutoTokenizer.from_pretrained(folder, **options)

    @cached_property
    def _folder(self) -> Path:
        """The folder on this machine, downloaded if it is a name of the hub."""
        code = ("*.py",) if self.trust_remote_code else ()
        folder = _local(self.path or "", (*_FILES, *code, *((self.gguf_file,) if self.gguf_file else ())))
        if self.gguf_file and not (folder / self.gguf_file).is_file():
            known = ", ".join(sorted(file.name for file in folder.glob("*.gguf"))) or "none"
            raise ConfigurationError(f"the model {self.path!r} has no file {self.gguf_file!r}; its GGUF files: {known}")
        return folder

    def _configuration(self, task: LibraryTask, count_outputs: Callable[[], int]) -> Any:
        from transformers import AutoConfig

        options = dict(self.config)
        if task.classes and "num_labels" not in options:
            options["num_labels"] = count_outputs()
        if self.path is None:
            model_type = options.pop("model_type")
            try:
                config = AutoConfig.for_model(model_type)
            except (KeyError, ValueError) as error:
                raise ConfigurationError(
                    f"transformers has no model_type {model_type!r}: {first_line(error)}"
                ) from error
            _check_known(config, options)
            with self._errors_of("the options in the table 'config' cannot be used"):
                return AutoConfig.for_model(model_type, **options)
        place = located(self.path) if located(self.path).is_file() else self._folder
        how = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        with self._errors_of(f"the configuration of the model {self.path!r} cannot be read"):
            config = AutoConfig.from_pretrained(place, trust_remote_code=self.trust_remote_code, **how)
        _check_known(config, options)
        fixed = _FIXED if self.new else (*_FIXED, *_OF_WEIGHTS, *(_OF_GGUF if self.gguf_file else ()))
        before = {name: getattr(config, name, None) for name in fixed}
        with self._errors_of("the options in the table 'config' cannot be used"):
            for name, value in options.items():
                setattr(config, name, value)
        for name, value in before.items():
            if getattr(config, name, None) != value:
                raise ConfigurationError(
                    f"the model {self.path!r} has {name} = {value!r}, and a table 'config' cannot change it to "
                    f"{getattr(config, name)!r}: remove this option"
                )
        return config


def _check_known(config: Any, options: dict[str, Any]) -> None:
    """Raise ConfigurationError if a configuration has no such option: the library would accept and ignore it."""
    from transformers import GenerationConfig

    of_all = GenerationConfig()  # some models read options of it from their configuration
    for name in options:
        if callable(getattr(config, name, None)) or not (hasattr(config, name) or hasattr(of_all, name)):
            known = [*inspect.signature(type(config).__init__).parameters, *config.to_dict()]
            kind = type(config).__name__
            raise ConfigurationError(
                f"the configuration {kind} has no option {name!r}{did_you_mean(name, known)} see the documentation of {kind}"
            )


def _check_sizes(module: Any) -> None:
    """Raise ConfigurationError if a configuration leaves out all layers, or all elements of a parameter."""
    if (layers := getattr(module.config, "num_hidden_layers", None)) is not None and layers < 1:
        raise ConfigurationError(f"the configuration of the model has {layers} layers: at least 1 is needed")
    for name, parameter in module.named_parameters():
        if not parameter.numel():
            raise ConfigurationError(
                f"the parameter {name!r} of the model has shape {tuple(parameter.shape)}: increase the size in its "
                "configuration that is 0, such as vocab_size or num_labels"
            )


def _check_order(module: Any, task: LibraryTask) -> None:
    """Raise ConfigurationError if a model reads the next tokens that it predicts: its loss would be meaningless."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    config = module.config
    if task.shifted and type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", True):
        raise ConfigurationError(
            f"{type(module).__name__} reads the tokens that the task causal-lm predicts: set config = {{ is_decoder = true }} "
            'in [model], or task = "masked-lm"'
        )


def _local(path: str, files: tuple[str, ...], what: str = "model") -> Path:
    """Return the folder ``path``, or the one into which the hub's library downloads the model of this name."""
    folder = located(path)
    if folder.is_dir():
        return folder
    if folder.is_absolute() or path.startswith("."):
        raise ConfigurationError(f"there is no folder {path!r} with a {what} of transformers")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=list(files)))
    except (OSError, ValueError) as error:  # the library raises errors of these types
        raise ConfigurationError(
            f"the {what} {path!r} is not a folder, and it cannot be read from the hub or its cache: {first_line(error)}"
        ) from error


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
