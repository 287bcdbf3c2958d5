"""The selection of the tokens of answers: the keys of a table and of a query, and their limits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, DataError

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
"""Files of which the folder of a tokenizer has at least one."""
MAX_STOPS = 4
"""Maximum number of texts in ``stop``."""
_MAX_STOP_CHARACTERS = 200
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda value: _is_whole(value) and value >= 1, "at least 1"),
    "temperature": (lambda value: _is_number(value) and 0 <= value < math.inf, "0 or more"),
    "top_k": (lambda value: _is_whole(value) and value >= 0, "0 or more"),
    "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "above 0 and at most 1"),
    "seed": (lambda value: _is_whole(value) and 0 <= value < 2**63, "a whole number, 0 or more, and below 2**63"),
    "stop": (lambda value: _are_stops(value), f"a list of at most {MAX_STOPS} texts of 1 to 200 characters"),
}
"""The keys with which a query selects its tokens: a check, and its meaning in words."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The selection of the tokens of an answer.

    Parameters
    ----------
    max_new_tokens, temperature, top_k, top_p, seed : see `SampledModel`.
    stop : texts that end an answer; the answer does not contain them.

    Raises
    ------
    DataError : a value is invalid.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, (valid, must) in LIMITS.items():
            if not valid(getattr(self, key)):
                raise DataError(f"{key} = {getattr(self, key)!r} must be {must}")

    def of_query(self, given: Mapping[str, Any]) -> Sampling:
        """Return the same with the values that a query sets. A query can lower ``max_new_tokens`` only.

        Raises
        ------
        DataError : a value is invalid.
        """
        own = replace(self, **{key: value for key, value in given.items() if key in LIMITS})
        return replace(own, max_new_tokens=min(own.max_new_tokens, self.max_new_tokens))


@dataclass(frozen=True, kw_only=True)
class SampledModel:
    """The keys that the tables of all language models have.

    Parameters
    ----------
    model : a folder of a model of transformers, or the id of a model.
    tokenizer : folder of the tokenizer; default: that of the model.
    revision : commit of the id in ``model``.
    max_new_tokens : maximum number of tokens of an answer.
    temperature : 0 takes the most likely token; above 0, tokens are drawn from the softmax of the logits divided by it.
    top_k : draw from the k most likely tokens only; 0: from all.
    top_p : draw from the most likely tokens whose probabilities sum to this; above 0, at most 1.
    seed : seed of the draws. The generator of a query is seeded by this and the query's tokens.
    dtype : type of the weights, such as ``bfloat16``; default: the type in the model's files.
    stamp : set automatically. It changes when the files of a folder are written again, so that workers load the model again.
    """

    model: str
    tokenizer: str | None = None
    revision: str | None = None
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    stamp: str | None = None

    def __post_init__(self) -> None:
        try:
            self.sampling()
        except DataError as error:
            raise ConfigurationError(f"the model {self.model!r}: {error}") from None
        if not self.temperature and (self.top_k or self.top_p < 1):
            raise ConfigurationError(f"the model {self.model!r}: top_k and top_p need a temperature above 0")

    @property
    def code(self) -> str:
        """Empty: neither code nor pickled weights of a model are loaded."""
        return ""

    def sampling(self) -> Sampling:
        """Return the selection of the tokens, unless a query sets values of its own.

        Raises
        ------
        DataError : a value is invalid.
        """
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
        )

    def tokenizer_folder(self, *folders: str) -> str:
        """Return the folder of the tokenizer: that of the table, else the first of these folders that has one.

        Raises
        ------
        ConfigurationError : none has one.
        """
        place = self.tokenizer or next((one for one in folders if _has_tokenizer(one)), None)
        if place is None:
            raise ConfigurationError(
                f'the model {self.model!r} has no tokenizer, none of {", ".join(TOKENIZER)}: set tokenizer = "its folder"'
            )
        return place


def query_seed(seed: int, tokens: list[int]) -> int:
    """Return the seed of a query's generator: 63 bits of the SHA-256 of seed and tokens.

    Equal queries of a job have equal seeds, in any batch, order or process.
    """
    content = json.dumps([seed, tokens]).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def _has_tokenizer(folder: str) -> bool:
    return any((Path(folder) / name).is_file() for name in TOKENIZER)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_stops(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) > MAX_STOPS:
        return False
    return all(isinstance(text, str) and 0 < len(text) <= _MAX_STOP_CHARACTERS for text in value)
