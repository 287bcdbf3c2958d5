"""Encoders that turn texts into vectors: a folder of transformers, or an id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from chimera.core.errors import ConfigurationError, DataError
from chimera.inference.models.hub import downloaded, located, stamp_of
from chimera.inference.models.positions import position_limits
from chimera.inference.models.processor import is_on_cpu
from chimera.inference.models.table import KINDS
from chimera.models.instantiation import first_line

POOLINGS = ("mean", "cls")
_UNUSED = ("pooler.",)  # weights of layers after the last hidden state


@KINDS.register(
    "text-embeddings",
    requires="transformers",
    extra="inference",
    preload=["torch", "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"],
)
@dataclass(frozen=True, kw_only=True)
class TextEmbeddings:
    """An encoder whose last hidden state, pooled over the tokens of a text, is the vector of the text.

    Parameters
    ----------
    model : a folder of a model of transformers, or the id of a model.
    revision : commit of the id.
    pooling : ``mean`` of the states of all tokens, or the state of the first token (``cls``). The model's card names it.
    normalize : whether to divide each vector by its Euclidean norm.
    device : ``cpu``, ``cuda``, ``cuda:1``; default: a GPU if there is one.
    dtype : type of the weights, such as ``bfloat16``; default: the type in the model's files.
    stamp : set automatically. It changes when the files of a folder are written again, so that workers load the model again.
    """

    model: str
    revision: str | None = None
    pooling: str = "mean"
    normalize: bool = True
    device: str | None = None
    dtype: str = "auto"
    stamp: str | None = None

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ConfigurationError(
                f"kind 'text-embeddings': pooling = {self.pooling!r} must be one of {', '.join(POOLINGS)}"
            )

    @property
    def code(self) -> str:
        """Empty: neither code nor pickled weights of a model are loaded."""
        return ""

    @property
    def shared(self) -> bool:
        """Whether the model computes on the processor."""
        return is_on_cpu(self.device)

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with an absolute path, if the model is a folder."""
        model = located(self.model, self.revision, folder)
        return replace(self, model=model, stamp=self.stamp or stamp_of(model))

    def load(self) -> TextEncoder:
        """Load model and tokenizer, without any code or pickled weights of the model."""
        place = downloaded(self.model, self.revision)
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            module, found = AutoModel.from_pretrained(
                place, dtype=self.dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # many libraries raise many types
            raise ConfigurationError(f"the model {self.model!r} cannot be loaded: {first_line(error)}") from error
        missing = [name for name in sorted(found["missing_keys"]) if not name.startswith(_UNUSED)]
        if missing:  # the library would fill them with random numbers
            raise ConfigurationError(f"the model {self.model!r} lacks {len(missing)} weights, such as {missing[0]!r}")
        module = module.eval().to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return TextEncoder(module, tokenizer, pooling=self.pooling, normalize=self.normalize)


class TextEncoder:
    """Turns texts into vectors.

    Parameters
    ----------
    module : an encoder of transformers, in evaluation mode.
    tokenizer : its tokenizer.
    pooling, normalize : see `TextEmbeddings`.
    """

    def __init__(self, module: Any, tokenizer: Any, *, pooling: str, normalize: bool) -> None:
        self._module, self._tokenizer = module, tokenizer
        self._mean, self._normalize = pooling == "mean", normalize
        stated = getattr(module.config, "max_position_embeddings", None)
        limits = [tokenizer.model_max_length, *position_limits(module)]
        self._max_tokens = min([*limits, *([] if stated is None else [stated])])

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return the answer of each query, a text: a dictionary with ``embedding``, ``prompt_tokens`` and ``generated_tokens``.

        ``embedding`` is a list of numbers, as long as the hidden state. The answer of a query that cannot be used is an
        exception. All texts are computed together, padded to the longest.
        """
        read = [self._read(query) for query in queries]
        vectors = iter(self._vectors([tokens for tokens in read if not isinstance(tokens, Exception)]))
        return [one if isinstance(one, Exception) else _answer(next(vectors), len(one)) for one in read]

    def _read(self, query: Any) -> list[int] | DataError:
        """Return the tokens of a text."""
        if not isinstance(query, str):
            return DataError(f"a query must be a text, not a {type(query).__name__}")
        tokens: list[int] = self._tokenizer(query)["input_ids"]
        if not tokens:
            return DataError("the text has no tokens")
        if len(tokens) > self._max_tokens:
            return DataError(f"the text has {len(tokens)} tokens; the model accepts {self._max_tokens}")
        return tokens

    def _vectors(self, texts: list[list[int]]) -> list[list[float]]:
        """Return a vector for each text."""
        if not texts:
            return []
        import torch

        longest, pad = max(map(len, texts)), self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[*text, *[pad] * (longest - len(text))] for text in texts], device=self._module.device)
        lengths = torch.tensor([len(text) for text in texts], device=ids.device)
        mask = torch.arange(longest, device=ids.device) < lengths[:, None]
        with torch.inference_mode():
            states = self._module(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
            summed = (states * mask[:, :, None]).sum(1) / lengths[:, None] if self._mean else states[:, 0]
            vectors = torch.nn.functional.normalize(summed, dim=-1) if self._normalize else summed
        found: list[list[float]] = vectors.tolist()
        return found


def _answer(vector: list[float], tokens: int) -> dict[str, Any]:
    return {"embedding": vector, "prompt_tokens": tokens, "generated_tokens": 0}
