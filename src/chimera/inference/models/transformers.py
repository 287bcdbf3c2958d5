"""Models of Hugging Face, by id or folder, for any task of the ``pipeline`` of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from chimera.core.errors import ConfigurationError, DataError
from chimera.inference.models.hub import FILES, check_components, downloaded, located, stamp_of
from chimera.inference.models.images import open_image
from chimera.inference.models.pipelines import PipelineTask, task_of
from chimera.inference.models.positions import position_limits
from chimera.inference.models.processor import is_on_cpu
from chimera.inference.models.table import KINDS
from chimera.inference.models.weights import all_from_files
from chimera.models.instantiation import first_line

IMAGE_TASKS = frozenset(
    {
        *("depth-estimation", "image-classification", "image-feature-extraction"),
        *("image-segmentation", "mask-generation", "object-detection"),
    }
)
"""Tasks whose queries are images. `open_image` opens them, so that URLs of fsspec work and limits apply."""

_UNUSED = {"feature-extraction": "pooler.*", "image-feature-extraction": "pooler.*"}
"""Weights that do not affect the results of a task; many models for these tasks have none. The option ``pool`` uses them."""
_CUTS = frozenset({"feature-extraction", "text-classification"})
"""Tasks for which texts longer than the model allows are cut by default. transformers has rules of its own for the others."""
_PICKLED = ["*.bin", "*.pt", "*.pth"]


@KINDS.register("transformers", requires="transformers", extra="inference", preload=["torch", "transformers.pipelines"])
@dataclass(frozen=True, kw_only=True)
class Transformers:
    """A model of Hugging Face in a pipeline of transformers.

    Parameters
    ----------
    task : task of the pipeline: ``image-classification``, ``fill-mask``, ``text-classification``, ...
    model : a folder, or an id such as ``google/vit-base-patch16-224``, which is downloaded unless it is in the cache.
    revision : commit of an id; required, so that all workers load the same weights. A branch or tag is accepted too.
    options : options of the pipeline's calls, such as ``top_k``.
    device : ``cpu``, ``cuda``, ``cuda:1``; default: a GPU if there is one.
    dtype : type of the weights, such as ``bfloat16``; default: the type in the model's files.
    pickled_weights : whether to load pickled weights too. Loading them may run code of their author.
    trust_remote_code : whether to run code that comes with the model.
    allow_missing : names of weights that the files may lack, or patterns such as ``classifier.*``. They are drawn at random,
        the same on all workers.
    stamp : set automatically. It changes when the files of a folder are written again, so that workers load the model again.
    """

    task: str
    model: str
    revision: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: str = "auto"
    pickled_weights: bool = False
    trust_remote_code: bool = False
    allow_missing: list[str] = field(default_factory=list)
    stamp: str | None = None

    def __post_init__(self) -> None:
        for key in ("task", "model"):
            if not getattr(self, key).strip():
                raise ConfigurationError(f"kind 'transformers': {key} is empty")
        task = self._task()
        if task is not None:
            task.check_options(self.options)

    @property
    def code(self) -> str:
        """The first key that makes the model's files run code; empty if there is none."""
        return next((key for key in ("trust_remote_code", "pickled_weights") if getattr(self, key)), "")

    @property
    def shared(self) -> bool:
        """Whether the model computes on the processor, and its files run no code."""
        return not self.code and is_on_cpu(self.device)

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with an absolute path, if the model is a folder."""
        model = located(self.model, self.revision, folder)
        if Path(model).is_absolute():
            self._check_components(model)
        return replace(self, model=model, stamp=self.stamp or stamp_of(model))

    def load(self) -> PipelinePredictor:
        """Make the pipeline. An id is downloaded first, or taken from the cache."""
        folder = self._downloaded()
        self._check_components(folder)
        if not self.pickled_weights and not any(Path(folder).glob("*.safetensors")):
            raise ConfigurationError(
                f"the model {self.model!r} has no safetensors; set pickled_weights = true if you trust their author"
            )
        from transformers import pipeline
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        taken = sorted(set(self.options) & set(inspect.signature(pipeline).parameters))
        if taken:
            raise ConfigurationError(f"kind 'transformers': options.{taken[0]} is not an option of a pipeline's call")
        unused = [] if self.options.get("pool") else [_UNUSED.get(self.task, "")]
        with all_from_files(self.model, [*self.allow_missing, *unused]):
            try:
                made = pipeline(
                    self.task,
                    model=folder,
                    device=self.device,
                    dtype=self.dtype,
                    trust_remote_code=self.trust_remote_code,
                    model_kwargs={} if self.pickled_weights else {"use_safetensors": True},
                    **self._call_options(),
                )
            except Exception as error:  # many libraries raise many types
                raise ConfigurationError(f"the model {self.model!r} cannot be loaded: {_reason(error)}") from error
        _limit_length(made)
        return PipelinePredictor(made, self.options)

    def _call_options(self) -> dict[str, Any]:
        """Return the options of the pipeline's calls, with the defaults of Chimera."""
        task = self._task()
        cuts = task is not None and task.name in _CUTS and "truncation" not in self.options.get("tokenize_kwargs", {})
        return {"truncation": True, **self.options} if cuts else self.options

    def _task(self) -> PipelineTask | None:
        """Return the task; None if the model's own code may define it, or if its source cannot be understood."""
        return None if self.trust_remote_code else task_of(self.task)

    def _check_components(self, folder: str) -> None:
        task = self._task()
        if task is not None:
            check_components(Path(folder), task.needs, f"the task {task.name!r}")

    def _downloaded(self) -> str:
        """Return the folder of the model's files; missing files of an id are downloaded into the cache."""
        code = ["*.py"] if self.trust_remote_code else []
        return downloaded(self.model, self.revision, [*FILES, *(_PICKLED if self.pickled_weights else ()), *code])


class PipelinePredictor:
    """Answers queries by a pipeline, in one batch.

    ``fill-mask`` returns the whole sentence, each mask filled with the most likely token, unless ``top_k`` is set.

    Parameters
    ----------
    pipeline : a pipeline of transformers.
    options : the options with which it was made.
    """

    def __init__(self, pipeline: Any, options: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._opens_images = pipeline.task in IMAGE_TASKS
        self._sentence = pipeline.task == "fill-mask" and "top_k" not in options
        self._tokenizing = options.get("tokenizer_kwargs", {})
        tokenizer = pipeline.tokenizer
        self._batches = tokenizer is None or tokenizer.pad_token_id is not None  # no padding: one at a time
        if pipeline.task == "text-generation":
            tokenizer.padding_side = "left"  # text is generated at the end, so padding must be at the start

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return the pipeline's results. The result of an image that cannot be opened is an exception."""
        prepared = [self._prepared(query) for query in queries]
        found = iter(self._found([query for query in prepared if not isinstance(query, Exception)]))
        return [query if isinstance(query, Exception) else next(found) for query in prepared]

    def _prepared(self, query: Any) -> Any:
        if not self._opens_images:
            return query
        try:
            return open_image(query)
        except DataError as error:
            return error

    def _found(self, queries: list[Any]) -> list[Any]:
        if not queries:
            return []
        options = {"top_k": 1} if self._sentence else {}
        batch_size = len(queries) if self._batches else 1
        found = list(self._pipeline(_one_by_one(queries), batch_size=batch_size, **options))
        if len(found) != len(queries):
            raise DataError(f"the pipeline returned {len(found)} results for {len(queries)} queries")
        return [self._filled(*pair) for pair in zip(queries, found, strict=True)] if self._sentence else found

    def _filled(self, query: str, proposals: list[Any]) -> str:
        """Return the filled sentence. ``proposals`` has a list per mask; a single mask has one flat list."""
        if isinstance(proposals[0], Mapping):
            return str(proposals[0]["sequence"])
        tokenizer = self._pipeline.tokenizer
        tokens = iter([proposal[0]["token"] for proposal in proposals])
        ids = tokenizer(query, **self._tokenizing)["input_ids"]
        filled = [next(tokens) if token == tokenizer.mask_token_id else token for token in ids]
        return str(tokenizer.decode(filled, skip_special_tokens=True))


def _limit_length(pipeline: Any) -> None:
    """Set the number of positions of the model in the tokenizer, whose own files often lack it."""
    if pipeline.tokenizer is not None:
        limits = [pipeline.tokenizer.model_max_length, *position_limits(pipeline.model)]
        pipeline.tokenizer.model_max_length = min(limits)


def _reason(error: Exception) -> str:
    """Return the error in one line. A pipeline puts the tracebacks of all its attempts into one message."""
    text = str(error).strip()
    return text.splitlines()[-1] if "Traceback" in text else first_line(error)


def _one_by_one(queries: list[Any]) -> Iterator[Any]:
    """Yield the queries. A pipeline answers each item of a generator, but treats some lists as a single query."""
    yield from queries
